"""As in the vendor's package; torch.hpu is there once torch is imported."""
