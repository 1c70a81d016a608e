"""The training losses of the tasks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from classify.evaluation.metrics import Array
from classify.modeling.packing import send
from classify.tasks.base import MISSING, Column, Loss, Weights

# Exponent of the focal loss, the best in its paper (table 1b).
FOCAL_GAMMA = 2.0
# Instead of infinity, whose gradient times 0 is NaN.
_FAR = 1e4
# Sum of a row's targets above which they name several classes; probabilities sum to 1.
_SURELY_SEVERAL = 1.5
# Rows by which the loss of guessing is computed.
_CHANCE_ROWS = 10_000


def loss_by_chance(loss: Loss, targets: Array, outputs: int) -> float:
    """The mean loss of outputs that are 0 for all texts, on at most 10,000 of the targets."""
    some = targets[:: -(-len(targets) // _CHANCE_ROWS)]
    return float(loss.loss_sum(torch.zeros(len(some), outputs), torch.from_numpy(some))) / loss.weight_sum(some)


def _send(weights: Weights, device: torch.device) -> torch.Tensor | None:
    return None if weights is None else send(torch.from_numpy(weights), device)


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Cross-entropy with optional label smoothing (Szegedy et al., 2016, section 7) and class weights.

    With a `gamma` above 0 each row's loss is multiplied by (1 - p) ** gamma, p the probability of its label: Lin et
    al., 2017, "Focal Loss for Dense Object Detection", equation 4.
    """

    padding: ClassVar[float] = -100  # torch's cross-entropy ignores it

    label_smoothing: float = 0.0
    class_weights: Weights = None
    gamma: float = 0.0

    def losses(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Of logits (n, classes) and class indices (n,)."""
        logits, smoothing = logits.float(), self.label_smoothing
        weights = _send(self.class_weights, logits.device)
        losses = functional.cross_entropy(logits, targets, weight=weights, label_smoothing=smoothing, reduction="none")
        if self.gamma:
            right = logits.softmax(dim=1).gather(1, targets.clamp(min=0)[:, None])[:, 0]
            losses = losses * (1 - right) ** self.gamma
        return losses

    def weights(self, targets: Array) -> npt.NDArray[np.float32]:
        return super().weights(targets) if self.class_weights is None else self.class_weights[targets]


@dataclass(frozen=True)
class SoftCrossEntropy(CrossEntropy):
    """Cross-entropy towards the probabilities of the classes; each class counts with its weight."""

    padding: ClassVar[float] = 0.0

    def losses(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Of logits and targets (n, classes)."""
        logs, weights = logits.float().log_softmax(dim=1), _send(self.class_weights, logits.device)
        if self.label_smoothing:
            spread = targets.sum(dim=1, keepdim=True) / targets.shape[1]
            targets = (1 - self.label_smoothing) * targets + self.label_smoothing * spread
        if weights is not None:
            targets = targets * weights
        if self.gamma:
            targets = targets * (1 - logs.exp()) ** self.gamma
        return -(targets * logs).sum(dim=1)

    def weights(self, targets: Array) -> npt.NDArray[np.float32]:
        return np.asarray(targets.sum(axis=1) if self.class_weights is None else targets @ self.class_weights)


@dataclass(frozen=True)
class BinaryCrossEntropy(Loss):
    """Binary cross-entropy, averaged over the labels of a row, with label smoothing and weights of positive labels.

    With a `gamma` above 0 it is the focal loss of each label. By default every row weighs 1, so a step's loss is the
    mean over its rows however they are sharded. Targets may be probabilities.
    """

    padding: ClassVar[float] = 255

    label_smoothing: float = 0.0
    positive_weights: Weights = None
    gamma: float = 0.0

    def losses(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Of logits and targets (n, labels)."""
        counted, present = targets[:, :1] != self.padding, self.aims(targets)
        losses = functional.binary_cross_entropy_with_logits(
            logits.float(),
            present * (1 - self.label_smoothing) + self.label_smoothing / 2,
            reduction="none",
            pos_weight=_send(self.positive_weights, logits.device),
        )
        if self.gamma:
            losses = losses * (logits.float().sigmoid() - present).abs() ** self.gamma
        return (losses * counted).sum(dim=1) / logits.shape[1]

    def aims(self, targets: torch.Tensor) -> torch.Tensor:
        return targets.clamp(max=1).float()


@dataclass(frozen=True)
class SquaredError(Loss):
    """Squared error of targets minus `center` over `scale`, which a model computes while it is trained."""

    padding = math.nan

    center: float
    scale: float

    def losses(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Of logits (n, 1) and targets (n,), NaN for padding rows."""
        counted = ~targets.isnan()
        # Before the square: the gradient of one that is NaN would be NaN, even times 0.
        return (logits[:, 0].float() - self.aims(targets.where(counted, self.center))) ** 2 * counted

    def aims(self, targets: torch.Tensor) -> torch.Tensor:
        return (targets - self.center) / self.scale


@dataclass(frozen=True)
class ColumnLoss(Loss):
    """The mean, over the columns that a row has, of their losses, each on its own outputs."""

    padding: ClassVar[float] = MISSING  # as of a row whose columns are all empty

    columns: tuple[Column, ...]
    of_columns: tuple[Loss, ...]

    def losses(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Of logits (n, outputs) and targets (n, cells).

        No row is selected, since compilers for accelerators want shapes that stay: a loss ignores its padding.
        """
        present = [targets[:, column.cells.start] != MISSING for column in self.columns]
        total = logits.new_zeros(len(logits), dtype=torch.float32)
        for column, loss, has_label in zip(self.columns, self.of_columns, present, strict=True):
            cells = targets[:, column.cells].where(has_label[:, None], loss.padding)
            own = cells.to(torch.from_numpy(np.empty(0, column.task.targets.dtype)).dtype)
            own = own if column.task.targets.per_label else own[:, 0]
            total = total + loss.losses(logits[:, column.outputs], own)
        return total / torch.stack(present).sum(dim=0).clamp(min=1)

    def weights(self, targets: Array) -> npt.NDArray[np.float32]:
        weights, counts = np.zeros(len(targets), dtype=np.float32), np.zeros(len(targets), dtype=np.float32)
        for column, loss in zip(self.columns, self.of_columns, strict=True):
            rows = column.rows(targets)
            weights[rows] += loss.weights(column.unpack(targets[rows]))
            counts[rows] += 1
        return (weights / np.maximum(counts, 1)).astype(np.float32)


@dataclass(frozen=True)
class MarginalCrossEntropy(SoftCrossEntropy):
    """Cross-entropy of several classes together, for rows that may be any of them: minus the log of their summed share.

    Targets (n, classes) are 1 for each of these; those of other rows are probabilities, as of `SoftCrossEntropy`.
    Padding rows have none. A row weighs as its classes do on average.
    """

    def losses(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Of logits and targets (n, classes)."""
        logs, total = logits.float().log_softmax(dim=1), targets.sum(dim=1)
        together = logs.masked_fill(targets <= 0, -_FAR).logsumexp(dim=1)
        likely = torch.where(total > _SURELY_SEVERAL, together, (targets * logs).sum(dim=1))
        losses = -(1 - self.label_smoothing) * likely - self.label_smoothing * logs.mean(dim=1)
        if self.gamma:
            losses = losses * (1 - likely.exp()) ** self.gamma
        return losses * (total > 0) * self._weigh(targets)

    def weights(self, targets: Array) -> npt.NDArray[np.float32]:
        return self._weigh(torch.from_numpy(targets)).numpy() * (targets > 0).any(axis=1)

    def _weigh(self, targets: torch.Tensor) -> torch.Tensor:
        weights = _send(self.class_weights, targets.device)
        if weights is None:
            return torch.ones(len(targets), device=targets.device)
        return targets @ weights / targets.sum(dim=1).clamp(min=1)
