"""The model: found, loaded, packed texts through it, and what it costs."""
