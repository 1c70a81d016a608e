"""How several devices share a model and its optimizer: one file a strategy."""
