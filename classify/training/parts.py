"""Parts of a training that a caller gives from Python: callbacks, a loss, metrics."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from classify.config.schema import TrainingConfig
from classify.errors import InputError
from classify.evaluation.metrics import Scores
from classify.tasks.base import Loss, Task

if TYPE_CHECKING:
    import torch

LossFunction = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
Metric = Callable[[npt.NDArray[np.float64], npt.NDArray[Any]], float]


@dataclass(frozen=True)
class StepState:
    """What a `TrainerCallback` sees of the training.

    `loss` is the mean training loss since the last log line, None in steps without one (`logging_steps`); `model` the
    model of this process, which a callback must not change.
    """

    step: int
    epoch: float
    learning_rate: float
    loss: float | None
    is_main: bool
    model: torch.nn.Module


class TrainerCallback:
    """Looks at a training between two steps; override what is of interest. Every process calls its own.

    Contrastive steps and the models of folds are not seen.
    """

    def on_step_end(self, state: StepState) -> bool | None:
        """After each step. Returning True in any process ends the training, with a last step that is scored.

        That is the next step, or on several devices one of the next ten.
        """

    def on_evaluate(self, state: StepState, metrics: Mapping[str, float]) -> None:
        """After the validation rows were scored."""

    def on_save(self, state: StepState, folder: Path) -> None:
        """After a checkpoint was written."""

    def on_train_end(self, folder: Path) -> None:
        """After the model and its scores were written into `folder`; the report and the model card follow."""


@dataclass(frozen=True)
class Parts:
    """The parts that were given; none by default. What is recorded of each is its name."""

    callbacks: Sequence[TrainerCallback] = ()
    loss: LossFunction | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise TypeError for a part that is none."""
        if not isinstance(self.metrics, Mapping):
            raise TypeError(f"metrics: expected a dictionary of functions by name. Got {self.metrics!r} instead.")
        if isinstance(self.callbacks, TrainerCallback):
            raise TypeError("callbacks: expected a list. Got a single one instead.")
        for callback in self.callbacks:
            if not isinstance(callback, TrainerCallback):
                raise TypeError(f"callbacks: expected objects of classify.TrainerCallback. Got {callback!r} instead.")
        functions = {"loss": self.loss, **self.metrics}
        for name, function in functions.items():
            if function is not None and not callable(function):
                raise TypeError(f"{name}: expected a function. Got {function!r} instead.")

    def names(self) -> dict[str, Any] | None:
        """Names of the loss and the metrics, or None. A resumed run must pass the same ones."""
        found: dict[str, Any] = {} if self.loss is None else {"loss": _name(self.loss)}
        if self.metrics:
            found["metrics"] = {name: _name(metric) for name, metric in self.metrics.items()}
        return found or None

    def check(self, task: Task, config: TrainingConfig) -> None:
        """Raise InputError for parts that do not fit a task or the settings."""
        if task.columns and (self.loss is not None or self.metrics):
            raise InputError("loss and metrics: functions from Python are for one label column; name one.")
        known = {*task.scores.selection, "loss", "rows", "per_class", "method", "thresholds", "unseen"}
        known |= {"levels", "step", "epoch", "collapsed"}
        if taken := sorted(name for name in self.metrics if name in known or name.endswith("_interval")):
            raise InputError(f"metrics: {taken[0]!r} is a name of the program's; give yours another.")
        settings = {
            "class_weights": config.class_weights != "none",
            "label_smoothing_factor": config.label_smoothing_factor > 0,
            "loss='focal'": config.loss == "focal",
        }
        if self.loss is not None and (given := [name for name, is_given in settings.items() if is_given]):
            raise InputError(f"loss: a function takes the place of {', '.join(given)}; drop one of them.")

    def add_metrics(self, scores: Scores, probabilities: npt.NDArray[np.float64], targets: npt.NDArray[Any]) -> Scores:
        """The scores with the given metrics, without those that are not defined on these rows.

        Such a metric raises ValueError, or returns no finite number.
        """
        found: dict[str, float] = {}
        for name, metric in self.metrics.items():
            with contextlib.suppress(ValueError):
                value = metric(probabilities, targets)
                if np.ndim(value) or not isinstance(value, numbers.Real | np.ndarray):
                    raise TypeError(f"metrics: {name!r} must return a number. Got {value!r} instead.")
                found[name] = float(value)
        defined = {name: value for name, value in found.items() if math.isfinite(value)}
        return dataclasses.replace(scores, details={**scores.details, **defined}) if defined else scores


NO_PARTS = Parts()


class GivenLoss(Loss):
    """A function's losses of rows; the mean over a step is the same on any number of ranks."""

    def __init__(self, function: LossFunction, own: Loss):
        self._function, self._own = function, own
        self.padding = own.padding  # type: ignore[misc]

    def losses(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Those of the function, 0 for padding rows. Raises TypeError where it returns no loss a row."""
        absent = targets.isnan() if math.isnan(self.padding) else targets == self.padding
        rows = absent.reshape(len(targets), -1).all(dim=1)
        losses = self._function(logits.float(), self._own.aims(targets.masked_fill(absent, 0)))
        if not hasattr(losses, "requires_grad") or (logits.requires_grad and not losses.requires_grad):
            raise TypeError("loss: expected a tensor with a gradient; compute it from the logits with torch alone.")
        if tuple(losses.shape) != (len(targets),):
            raise TypeError(
                f"loss: expected one value per row, shape ({len(targets)},), of logits {tuple(logits.shape)} and "
                f"targets {tuple(targets.shape)}. Got shape {tuple(losses.shape)} instead; reduction='none' keeps rows "
                "apart."
            )
        return losses.masked_fill(rows, 0.0)


def _name(part: Any) -> str:
    named = part if hasattr(part, "__qualname__") else type(part)
    return f"{named.__module__}.{named.__qualname__}"
