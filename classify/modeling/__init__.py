"""The model: finding, loading, packing and precision."""
