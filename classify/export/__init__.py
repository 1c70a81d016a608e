"""Export a trained folder to other runtimes, checked against it."""
