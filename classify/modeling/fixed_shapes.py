"""Padded batches of few shapes, for devices that compile a program for each shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.data.sampler import Rows
from classify.data.tokenize import Collated
from classify.launch.devices import Accelerator
from classify.modeling.packing import Batch, Padding, pad


@dataclass(frozen=True)
class FixedShapes(Padding):
    """Pad texts, sequences and rows to the sizes that an accelerator names."""

    accelerator: Accelerator

    def batch(self, collated: Collated, pad_token_id: int, rows: int) -> Batch:
        shapes, longest = self.accelerator, int(collated.lengths.max())
        sequences = shapes.padded_rows(len(collated.lengths))
        return pad(collated, pad_token_id, sequences, shapes.padded_length(longest), shapes.padded_rows(rows))

    def targets(self, targets: npt.NDArray[Any], ignored: float) -> npt.NDArray[Any]:
        widths = [(0, self.accelerator.padded_rows(len(targets)) - len(targets)), *[(0, 0)] * (targets.ndim - 1)]
        return np.pad(targets, widths, constant_values=ignored)

    def divide(self, lengths: Rows, count: int, replicas: int, max_tokens: int | None) -> list[list[Rows]]:
        """Return micro-batches of texts of one padded length each."""
        sizes = np.array([self.accelerator.padded_length(length) for length in lengths.tolist()])
        alike = [np.flatnonzero(sizes == size) for size in np.unique(sizes)]
        return [[cut] for group in alike for cut in np.array_split(group, count) if len(cut)]
