"""A result folder and a table to predictions; nothing of training is imported here."""
