"""report.html and the model card of a result folder; made from its files alone."""
