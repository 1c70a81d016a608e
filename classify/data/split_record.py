"""The record of each text's split or fold, so that a table with more rows can be split alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow

from classify.errors import InputError
from classify.files import read_parquet, write_parquet
from classify.tables.rules import SPLITS
from classify.tables.text_hashes import TextHashes

FILE = "split.parquet"
# What a row can be in: a split, or no split where --max-train-samples left it out.
PARTS = (*SPLITS, "unused")
UNUSED = PARTS.index("unused")
_TRAIN = PARTS.index("train")


def write_record(folder: Path, hashes: TextHashes, assignment: npt.NDArray[np.int8], num_folds: int = 0) -> None:
    """Write a row per text: its hash and its split or fold; `assignment` (rows,) are their numbers, or -1.

    With `num_folds` the numbers are folds, else indices into `PARTS`.
    """
    # A text that a column, or time, puts into two splits was trained on if it is in train.
    order = np.argsort(assignment, kind="stable")[int((assignment < 0).sum()) :]
    numbers, first = np.unique(hashes[order], return_index=True)
    names = _fold_names(num_folds) or list(PARTS)
    parts = pyarrow.DictionaryArray.from_arrays(assignment[order][first], names)
    write_parquet(folder / FILE, pyarrow.table({"text_sha256": numbers, "part": parts}))


def read_record(hashes: TextHashes, folder: str) -> npt.NDArray[np.int8]:
    """Each text's split or fold in an earlier run (-1 if new); a text that --max-train-samples left out is in train.

    Raises InputError where the folder holds no record.
    """
    parts, num_folds = _read_parts(hashes, folder)
    return parts if num_folds else np.where(parts == UNUSED, _TRAIN, parts).astype(np.int8)


def is_recorded(folder: str, hashes: TextHashes) -> npt.NDArray[np.bool_]:
    """(rows,) whether each text is in the table of the run in a folder; False where it has no record."""
    if not (Path(folder) / FILE).is_file():
        return np.zeros(len(hashes), dtype=bool)
    return _read_parts(hashes, folder)[0] >= 0


def find_trained(folder: str, hashes: TextHashes) -> tuple[npt.NDArray[np.bool_], int]:
    """(rows,) whether the run in a folder was trained on each of these texts, and its number of folds.

    False and 0 for any other folder.
    """
    if not (Path(folder) / FILE).is_file():
        return np.zeros(len(hashes), dtype=bool), 0
    parts, num_folds = _read_parts(hashes, folder)
    # With folds the final model was trained on all rows.
    return parts >= 0 if num_folds else parts == _TRAIN, num_folds


def read_texts(folder: str) -> TextHashes:
    """The hashes of all texts of the run in a folder; raises as `read_record`."""
    return _read(folder)[0]


def read_num_folds(folder: str) -> int:
    """The number of folds of an earlier run, 0 where it has splits; raises as `read_record`."""
    return _read(folder)[2]


def _read_parts(hashes: TextHashes, folder: str) -> tuple[npt.NDArray[np.int8], int]:
    """Each text's part or fold (-1 if new), and the number of folds (0 if the run has splits)."""
    numbers, parts, num_folds = _read(folder)
    place = np.minimum(np.searchsorted(numbers, hashes), len(numbers) - 1)
    return np.where(numbers[place] == hashes, parts[place], -1).astype(np.int8), num_folds


def _read(folder: str) -> tuple[TextHashes, npt.NDArray[np.int8], int]:
    """The hashes of the texts, ascending, each one's part, and the number of folds (0 if it has splits)."""
    file = Path(folder) / FILE
    if not file.is_file():
        raise InputError(
            f"--split-like {folder}: expected the output folder of a run that split its table ({FILE} in it). "
            f"Got {'a folder without it' if Path(folder).is_dir() else 'no folder'} instead."
        )
    try:
        record = read_parquet(file)
        numbers = record["text_sha256"].to_numpy().astype(np.uint64)
        names = record["part"].unify_dictionaries().chunk(0).dictionary.to_pylist()
        if names not in (list(PARTS), _fold_names(len(names))):
            raise ValueError(f"unknown splits {names}")
        parts = np.array([names.index(part) for part in record["part"].to_pylist()], dtype=np.int8)
    except (pyarrow.ArrowException, KeyError, ValueError, OSError) as error:
        why = str(error).splitlines()[0]
        raise InputError(f"{file}: cannot be read ({why}); restore the file that the run wrote.") from None
    order = np.argsort(numbers)
    return numbers[order], parts[order], len(names) if names != list(PARTS) else 0


def _fold_names(num_folds: int) -> list[str]:
    return [f"fold {number + 1}" for number in range(num_folds)]
