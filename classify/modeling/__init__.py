"""The model: finding, loading, packing, precision and memory estimates."""
