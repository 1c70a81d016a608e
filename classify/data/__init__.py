"""From a person's table to token batches: read, understand, split, tokenise, plan."""
