"""Calibrate probabilities by a scale and a shift of each output's logits, and choose thresholds of labels.

Temperature scaling divides all logits by one number, which changes no predicted class (Guo et al., 2017, "On
Calibration of Modern Neural Networks", section 4.2). The output layer takes scale and shift, so the model stays stock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize, minimize_scalar

from classify.evaluation.metrics import Array, binary_cross_entropy, cross_entropy, sigmoid, softmax

BINS = 15
# Draws of calibrated answers: many for few rows, fewer of many, which vary less and take longer.
_DRAWS = 200
_LEAST_DRAWS = 50
_ROWS_DRAWN = 10**7
# Threshold of a label without rows, and the rows from which F1 chooses it.
_THRESHOLD = 0.5
_ENOUGH = 10
# Prior standard deviation of the temperature's logarithm; without it few rows, all correct, would make it 0.
_SPREAD = 1.0
# Bounds of the search for its logarithm.
_BOUNDS = (-3.0, 5.0)


@dataclass(frozen=True)
class Rescaling:
    """Scale and shift (outputs,) of the logits."""

    scale: npt.NDArray[np.float32]
    shift: npt.NDArray[np.float32]

    def apply(self, logits: Array) -> npt.NDArray[np.float32]:
        rescaled: npt.NDArray[np.float32] = logits * self.scale + self.shift
        return rescaled

    def take(self, outputs: slice) -> Rescaling:
        return Rescaling(self.scale[outputs], self.shift[outputs])

    @property
    def temperature(self) -> float | None:
        """The temperature, if all logits are only divided by it; else None."""
        same = bool((self.scale == self.scale[0]).all() and not self.shift.any())
        return 1 / float(self.scale[0]) if same else None

    def as_json(self) -> dict[str, Any]:
        temperature = self.temperature
        if temperature is not None:
            return {"temperature": temperature}
        return {"scale": self.scale.tolist(), "shift": self.shift.tolist()}


def fit_temperature(logits: Array, targets: Array) -> float:
    """The temperature with the lowest log loss of logits (rows, classes), for class numbers (rows,).

    A normal prior on its logarithm has the weight of about one row, so it matters only with few rows.
    """
    if not len(targets):
        return 1.0

    def loss(log_temperature: float) -> float:
        scaled = logits / np.exp(log_temperature)
        return len(targets) * cross_entropy(scaled, targets) + 0.5 * (log_temperature / _SPREAD) ** 2

    return float(np.exp(minimize_scalar(loss, bounds=_BOUNDS, method="bounded").x))


def fit_scale_and_shift(logits: Array, targets: Array) -> tuple[float, float]:
    """Scale and shift of the logits (rows,) with the lowest log loss, for targets 0 or 1 (rows,).

    Platt, 1999, "Probabilistic Outputs for Support Vector Machines", section 2, with a normal prior on the logarithm
    of the scale and on the shift instead of his smoothed targets.
    """
    logits, targets = logits.astype(np.float64), targets.astype(np.float64)

    def loss(parameters: Array) -> tuple[float, Array]:
        scale, shift = np.exp(parameters[0]), parameters[1]
        scaled = scale * logits + shift
        errors = sigmoid(scaled) - targets
        value = float(np.sum(np.logaddexp(0.0, scaled) - scaled * targets)) + 0.5 * float((parameters**2).sum())
        return value, np.array([(errors * logits).sum() * scale, errors.sum()]) + parameters

    fitted = minimize(loss, np.zeros(2), jac=True, bounds=[_BOUNDS, (-10, 10)]).x
    return float(np.exp(fitted[0])), float(fitted[1])


def choose_thresholds(probabilities: npt.NDArray[np.float64], targets: Array) -> npt.NDArray[np.float64]:
    """(labels,) the thresholds with the highest F1 on these rows.

    On few rows that is a matter of chance. So a label with fewer than 10 rows gets the threshold at which it is
    predicted for as many rows (PCut: Yang, 2001, "A Study of Thresholding Strategies for Text Categorization", section
    2.2). A label without rows gets 0.5.
    """
    thresholds = np.full(targets.shape[1], _THRESHOLD)
    for number in np.flatnonzero(targets.any(axis=0)).tolist():
        order = np.argsort(-probabilities[:, number], kind="stable")
        ranked = probabilities[order, number]
        hits = np.cumsum(targets[order, number], dtype=np.int64)
        # A cut lies between two different probabilities.
        cuts = np.flatnonzero(np.append(ranked[:-1] != ranked[1:], True))
        if hits[-1] >= _ENOUGH:
            f1 = 2 * hits[cuts] / (cuts + 1 + hits[-1])
            cut = int(cuts[f1.argmax()])
        else:
            cut = int(cuts[cuts < hits[-1]].max(initial=-1))
        above = ranked[cut] if cut >= 0 else 1.0
        below = ranked[cut + 1] if cut + 1 < len(ranked) else 0.0
        thresholds[number] = (above + below) / 2
    return thresholds


def binary_scores(logits: Array, targets: Array, seed: int) -> dict[str, Any]:
    """As `probability_scores`, of logits (n,) of targets 0 or 1 (n,)."""
    probabilities = sigmoid(logits)
    loss, squares = binary_cross_entropy(logits, targets), (probabilities - targets) ** 2
    return _score(loss, squares, probabilities, targets.astype(np.float64), seed)


def probability_scores(logits: Array, targets: Array, seed: int) -> dict[str, Any]:
    """Log loss, Brier score and expected calibration error of logits (rows, classes), and that of chance alone.

    The Brier score is the summed squared error over classes, averaged over rows (Brier, 1950): 0 to 2. `seed` is that
    of the last.
    """
    probabilities = softmax(logits)
    confidence, right = probabilities.max(axis=1), (probabilities.argmax(axis=1) == targets).astype(np.float64)
    probabilities[np.arange(len(targets)), targets] -= 1.0  # now the errors, in place: they may take gigabytes
    return _score(cross_entropy(logits, targets), (probabilities**2).sum(axis=1), confidence, right, seed)


def _score(loss: float, squares: Array, confidence: Array, right: Array, seed: int) -> dict[str, Any]:
    return {
        "log_loss": loss,
        "brier": float(squares.mean()),
        "ece": calibration_error(confidence, right),
        "ece_by_chance": error_by_chance(confidence, seed),
    }


def calibration_error(confidence: Array, right: Array) -> float:
    """The expected calibration error: |share right - mean confidence|, averaged over 15 bins of equal mass.

    `confidence` and `right` (0 or 1) are (rows,). Naeini et al., 2015, "Obtaining Well Calibrated Probabilities Using
    Bayesian Binning", section 2.
    """
    return _mean_gap(right - confidence, equal_mass_bins(confidence))


def _mean_gap(gaps: Array, bins: list[npt.NDArray[np.int64]]) -> float:
    return float(sum(abs(gaps[rows].sum()) for rows in bins) / len(gaps))


def equal_mass_bins(confidence: Array, bins: int = BINS) -> list[npt.NDArray[np.int64]]:
    """The rows of each bin, of confidences (rows,) in ascending order.

    Equal confidences share a bin, or the error would depend on the order of the rows; so bins may be fewer or unequal.
    """
    order = np.argsort(confidence, kind="stable")
    ends = np.cumsum([len(part) for part in np.array_split(order, min(bins, len(order)))])[:-1]
    cuts = np.searchsorted(confidence[order], confidence[order[ends]])
    return [part for part in np.split(order, np.unique(cuts)) if len(part)]


def error_by_chance(confidence: Array, seed: int) -> float:
    """The mean calibration error that confidences (rows,) would have if they were calibrated exactly.

    It is above 0, since each bin has few rows.
    """
    generator = np.random.default_rng(seed)
    confidence = np.sort(confidence)
    bins, draws = equal_mass_bins(confidence), min(_DRAWS, max(_LEAST_DRAWS, _ROWS_DRAWN // len(confidence)))
    rights = (generator.random(len(confidence)) < confidence for _ in range(draws))
    return float(np.mean([_mean_gap(right - confidence, bins) for right in rights]))
