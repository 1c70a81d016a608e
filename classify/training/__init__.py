"""A training run: inputs, loop, checkpoints, result folder."""
