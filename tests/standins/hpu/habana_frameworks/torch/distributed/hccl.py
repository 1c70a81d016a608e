"""As in the vendor's package: importing it makes the backend "hccl" known, which the stand-in did already."""
