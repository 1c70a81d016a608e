"""Prediction with a result folder; imports no training code."""
