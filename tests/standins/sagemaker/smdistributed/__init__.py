"""A stand-in for Amazon's `smdistributed`: the part of its data parallel library that is a backend of torch."""
