"""The record of each text's split or fold, so that a table with more rows can be split alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow

from classify.errors import InputError
from classify.files import read_parquet, write_parquet
from classify.tables.rules import SPLITS
from classify.tables.table import TextHashes

FILE = "split.parquet"
# What a row can be in: a split, no split where --max-train-samples left it out, or a source's training rows.
PARTS = (*SPLITS, "unused", "source")
UNUSED = PARTS.index("unused")
SOURCE = PARTS.index("source")
_TRAIN = PARTS.index("train")
_FOLD = "fold "
# Key of the file's metadata.
_LEARNED = b"learned"


@dataclass(frozen=True)
class SplitRecord:
    """The `hashes` (texts,) of a run's texts, ascending, and their `parts` (texts,): folds, or indices into `PARTS`.

    `learned` are the parts that the model has learned from, where there are no folds.
    """

    hashes: TextHashes
    parts: npt.NDArray[np.int8]
    num_folds: int
    learned: tuple[int, ...] = (_TRAIN,)

    @classmethod
    def find(cls, folder: str) -> Self:
        is_there = (Path(folder) / FILE).is_file()
        return cls.read(folder) if is_there else cls(np.empty(0, np.uint64), np.empty(0, np.int8), 0)

    @classmethod
    def read(cls, folder: str) -> Self:
        """Raises InputError where the folder of --split-like holds no record, or a damaged one."""
        file = Path(folder) / FILE
        if not file.is_file():
            raise InputError(
                f"--split-like {folder}: expected the output folder of a run that split its table ({FILE} in it). "
                f"Got {'a folder without it' if Path(folder).is_dir() else 'no folder'} instead."
            )
        try:
            record = read_parquet(file)
            hashes = record["text_sha256"].to_numpy().astype(np.uint64)
            names = record["part"].unify_dictionaries().chunk(0).dictionary.to_pylist()
            num_folds = sum(name.startswith(_FOLD) for name in names)
            if names not in (_part_names(num_folds), _part_names(num_folds)[:-1]):
                raise ValueError(f"unknown splits {names}")
            parts = np.array([names.index(part) for part in record["part"].to_pylist()], dtype=np.int8)
            learned = (record.schema.metadata or {}).get(_LEARNED, b"train").decode().split(",")
            learned_parts = tuple(map(PARTS.index, learned))
        except (pyarrow.ArrowException, KeyError, ValueError, OSError) as error:
            why = str(error).splitlines()[0]
            raise InputError(f"{file}: cannot be read ({why}); restore the file that the run wrote.") from None
        order = np.argsort(hashes)
        return cls(hashes[order], parts[order], num_folds, learned_parts)

    def find_parts(self, hashes: TextHashes) -> npt.NDArray[np.int8]:
        """(rows,) each text's part or fold; -1 where the run did not have it."""
        if not len(self.hashes):
            return np.full(len(hashes), -1, dtype=np.int8)
        place = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return np.where(self.hashes[place] == hashes, self.parts[place], -1).astype(np.int8)

    def find_trained(self, hashes: TextHashes) -> npt.NDArray[np.bool_]:
        """(rows,) whether the run was trained on each text; with folds its final model was trained on all."""
        parts = self.find_parts(hashes)
        return parts >= 0 if self.num_folds else np.isin(parts, self.learned)


def write_record(
    folder: Path,
    hashes: TextHashes,
    assignment: npt.NDArray[np.int8],
    num_folds: int = 0,
    learned: Sequence[str] = ("train",),
) -> None:
    """Write a row per text: its hash and its split or fold; `assignment` (rows,) are their numbers, or -1.

    With `num_folds` the numbers are folds, and the next one is a source; else they are indices into `PARTS`, of which
    the model has `learned` from some.
    """
    # A text that a column, or time, puts into two splits was trained on if it is in train.
    order = np.argsort(assignment, kind="stable")[int((assignment < 0).sum()) :]
    numbers, first = np.unique(hashes[order], return_index=True)
    parts = pyarrow.DictionaryArray.from_arrays(assignment[order][first], _part_names(num_folds))
    table = pyarrow.table({"text_sha256": numbers, "part": parts}, metadata={_LEARNED: ",".join(learned)})
    write_parquet(folder / FILE, table)


def _part_names(num_folds: int) -> list[str]:
    folds = [f"{_FOLD}{number + 1}" for number in range(num_folds)]
    return [*folds, PARTS[SOURCE]] if folds else list(PARTS)
