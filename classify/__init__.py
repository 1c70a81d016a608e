"""Fine-tune a BERT classifier on your own table of texts and labels.

Importing this package is cheap: torch and transformers load only when `train` or `predict` is called.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "load_classifier", "train"]


def __getattr__(name: str) -> Any:
    if name == "train":
        from classify.training.run import train

        return train
    if name == "load_classifier":
        from classify.prediction.predict import load_classifier

        return load_classifier
    raise AttributeError(f"module 'classify' has no attribute {name!r}")
