"""Read, check, split and tokenize tables; plan the batches."""
