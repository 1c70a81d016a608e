"""Evaluation: logits, metrics, baselines and predictions.csv."""
