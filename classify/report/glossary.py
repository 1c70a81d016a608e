"""Technical words of a report in plain ones."""

from __future__ import annotations

import re

# By the word as a report writes it. A metric has its name for display.
GLOSSARY = {
    "accuracy": "Share of the rows whose predicted label is the right one.",
    "balanced accuracy": "Mean of the recalls of all classes, so that a small class counts as much as a large one.",
    "precision": "Of the rows that are predicted as a class, the share that belong to it.",
    "recall": "Of the rows that belong to a class, the share that are predicted as it.",
    "F1": "One number for precision and recall, their harmonic mean: high only if both are.",
    "macro F1": "Mean of the F1 of all classes that occur as label or prediction: a small one counts as a large one.",
    "micro F1": "F1 over all decisions together. Frequent labels count most.",
    "weighted F1": "Mean of the F1 of all classes, weighted by their rows.",
    "subset accuracy": "Share of the rows for which the predicted labels are exactly the right ones.",
    "average precision": "Precision, averaged over all recalls: how well right labels rank above wrong ones.",
    "ROC AUC": "Probability that a row of the class gets a higher score than another row; 0.5 is chance.",
    "MCC": "Matthews correlation coefficient of predictions and labels: 0 is guessing, 1 is perfect.",
    "pearson": "Correlation of predictions and scores: 1 if they lie on a rising line.",
    "spearman": "Correlation of their ranks: 1 if they have the same order.",
    "mse": "Mean squared difference between prediction and score.",
    "mae": "Mean difference between prediction and score, without its sign.",
    "loss": "What training lowers: minus the logarithm of the probability of what is right; of scores a squared error.",
    "jaccard": "Share of the labels of a row, predicted or right, that are both; the mean over rows.",
    "95 % interval": "Of 100 intervals made so 95 hold the true value. Few rows leave it wide.",
    "TF-IDF": "The simple baseline: a linear model that counts words and parts of words, rare ones more.",
    "p": "How often chance alone would give such a difference, if there were none. Below 0.05 it is called clear.",
    "confidence": "The probability that the model gives to the label it predicts.",
    "calibration": "Whether confidence can be read as a share: of predictions with 80 %, 80 of 100 should be right.",
    "expected calibration error": "Mean distance between confidence and the share of right predictions.",
    "temperature": "A number by which the outputs are divided so that confidence fits (Guo et al., 2017).",
    "confident learning": "Finds labels that contradict what other rows teach (Northcutt et al., 2021).",
    "integrated gradients": "How much each word adds to an output (Sundararajan et al., 2017).",
    "validation": "Rows that choose the kept weights. Test rows choose no weights, so only they are a fair score.",
    "epoch": "One pass over all training rows.",
}


def anchor(word: str) -> str:
    """Return the id of a word's entry."""
    return "term-" + re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")
