"""What a model says of rows, and how good that is."""
