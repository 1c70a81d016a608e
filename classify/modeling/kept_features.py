"""Features of some training texts, which a run keeps so that a class can be added later without the texts themselves.

They are inputs of the output layer: rehearsal (Rebuffi et al., 2017, "iCaRL") on a frozen encoder, whose features of a
text never change. docs/loop.md has the measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from classify.errors import InputError
from classify.files import atomic_path
from classify.modeling.result_folder import read_labels

FILE = "features.safetensors"
# Rows in all: of many classes fewer than --keep-features are kept of each, so that the file has 15 MB at most.
_MOST_ROWS = 20_000


@dataclass(frozen=True)
class KeptFeatures:
    """Features (rows, width) of training texts, and the `targets` (rows,) of these as numbers of `labels`."""

    labels: tuple[str, ...]
    features: npt.NDArray[np.float16]
    targets: npt.NDArray[np.int64]

    @property
    def known(self) -> set[str]:
        """The labels that have a row."""
        return {self.labels[number] for number in np.unique(self.targets).tolist()}

    def rename(self, name_of: Callable[[str], str | None], labels: Sequence[str]) -> Self:
        """The same rows by the classes of a later run; those of a label that is no class any more are left out."""
        names = map(name_of, self.labels)
        number_of = np.array([-1 if name is None else labels.index(name) for name in names], dtype=np.int64)
        targets = number_of[self.targets]
        return type(self)(tuple(labels), self.features[targets >= 0], targets[targets >= 0])

    def write(self, folder: Path) -> None:
        with atomic_path(folder / FILE) as temporary:
            save_file({"features": self.features, "targets": self.targets}, temporary)

    @classmethod
    def read(cls, folder: str | None) -> Self | None:
        """The features that a run's folder has; None for any other model. Raises InputError for a damaged file."""
        if folder is None or not (Path(folder) / FILE).is_file():
            return None
        try:
            stored = load_file(Path(folder) / FILE)
        except SafetensorError as error:
            raise InputError(f"--model {folder}: {FILE} is damaged ({error}); copy the folder again.") from None
        return cls(tuple(read_labels(folder)), stored["features"], stored["targets"])


def choose_rows(numbers: npt.NDArray[np.int64], per_class: int, *, seed: int) -> npt.NDArray[np.int64]:
    """At most `per_class` rows of each class, drawn at random; `numbers` (rows,) are the classes. Ascending."""
    shuffled = np.random.default_rng(seed).permutation(len(numbers))
    by_class = shuffled[np.argsort(numbers[shuffled], kind="stable")]
    counts = np.bincount(numbers)
    place = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(by_class[place < min(per_class, max(1, _MOST_ROWS // max(1, int((counts > 0).sum()))))])
