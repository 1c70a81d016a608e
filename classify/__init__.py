"""Fine-tune a BERT classifier on your own table of texts and labels.

    import classify

    run = classify.train("my.csv", epochs=3)
    run.predict(["a text"])

Importing this package is cheap: torch and transformers load only when something is trained or predicted.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from classify.versions import __version__

if TYPE_CHECKING:
    from classify.api import Run, compare, inspect, load, train
    from classify.estimator import TextClassifier
    from classify.prediction.predictor import load_classifier
    from classify.training.parts import StepState, TrainerCallback

__all__ = [
    "Run", "StepState", "TextClassifier", "TrainerCallback", "__version__", "compare", "inspect", "load",
    "load_classifier", "train",
]  # fmt: skip
# The modules of the names that are not in `api`.
_MODULES = {
    "StepState": "training.parts",
    "TextClassifier": "estimator",
    "TrainerCallback": "training.parts",
    "load_classifier": "prediction.predictor",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'classify' has no attribute {name!r}")
    return getattr(importlib.import_module(f"classify.{_MODULES.get(name, 'api')}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
