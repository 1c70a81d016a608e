"""As in the vendor's package."""
