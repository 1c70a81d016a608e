"""The loss of one label a row."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import cross_entropy

from classify.modeling.transfer import send

# The class number of a row that is filling and counts for nothing; torch's cross-entropy leaves it out.
_NO_LABEL = -100


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy, with smoothed labels (Szegedy et al., 2016, section 7) and weights of classes where asked for.

    The loss of a batch is the weighted mean: the sum over rows of weight times loss, divided by the sum of weights.
    Both sums are over all ranks and micro-batches of a step, so dividing a batch otherwise changes nothing.
    """

    label_smoothing: float = 0.0
    class_weights: npt.NDArray[np.float32] | None = None
    _sent: dict[torch.device, torch.Tensor] = field(default_factory=dict, compare=False, repr=False)

    def loss_sum(self, logits: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        """Sum over rows of weight times loss; logits (n, classes), truth (n,) class numbers."""
        return cross_entropy(
            logits.float(),
            truth,
            weight=self._weights_on(logits.device),
            label_smoothing=self.label_smoothing,
            reduction="sum",
        )

    def weight_sum(self, truth: npt.NDArray[np.int64]) -> float:
        """Sum of the rows' weights: their number where classes weigh the same."""
        return float(len(truth)) if self.class_weights is None else float(self.class_weights[truth].sum())

    def filled(self, truth: npt.NDArray[np.int64], rows: int) -> npt.NDArray[np.int64]:
        """The truth of a batch that is filled up to `rows` with rows that count for nothing."""
        return np.concatenate([truth, np.full(rows - len(truth), _NO_LABEL)])

    def _weights_on(self, device: torch.device) -> torch.Tensor | None:
        """The classes' weights, sent there once."""
        if self.class_weights is not None and device not in self._sent:
            self._sent[device] = send(torch.from_numpy(self.class_weights), device)
        return self._sent.get(device)


def balanced_weights(labels: npt.NDArray[np.int64], classes: int) -> npt.NDArray[np.float32]:
    """Weights (classes,) inversely proportional to how often a class occurs among `labels`, 1 on average over rows.

    King and Zeng, 2001; the rule of scikit-learn. A class without a row weighs 1; it cannot matter.
    """
    counts = np.bincount(labels, minlength=classes)
    present = max(1, int((counts > 0).sum()))
    weights = np.where(counts > 0, len(labels) / (present * np.maximum(counts, 1)), 1.0)
    return weights.astype(np.float32)
