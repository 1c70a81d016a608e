"""The record of each text's split, so that a table with more rows can be split alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from classify.data.files import atomic_path
from classify.data.names import SPLITS
from classify.data.text_hashes import TextHashes
from classify.errors import InputError

FILE = "split.parquet"


def write_record(folder: Path, hashes: TextHashes, assignment: npt.NDArray[np.int8]) -> None:
    """Write a row per text: its hash and its split; `assignment` (rows,) are indices into `SPLITS`, or -1."""
    import pyarrow
    from pyarrow import parquet

    numbers, first = np.unique(hashes[assignment >= 0], return_index=True)
    parts = pyarrow.DictionaryArray.from_arrays(assignment[assignment >= 0][first], list(SPLITS))
    with atomic_path(folder / FILE) as temporary:
        parquet.write_table(pyarrow.table({"text_sha256": numbers, "part": parts}), temporary)


def read_record(hashes: TextHashes, folder: str) -> npt.NDArray[np.int8]:
    """Return (texts,) the split of each text in an earlier run, as an index into `SPLITS`; -1 for other texts.

    Raises InputError where the folder holds no record.
    """
    import pyarrow
    from pyarrow import parquet

    file = Path(folder) / FILE
    if not file.is_file():
        raise InputError(
            f"--split-like {folder}: expected the output folder of a run that split its table ({FILE} in it). "
            f"Got {'a folder without it' if Path(folder).is_dir() else 'no folder'} instead."
        )
    try:
        record = parquet.read_table(file)
        numbers = record["text_sha256"].to_numpy().astype(np.uint64)
        parts = np.array([SPLITS.index(part) for part in record["part"].to_pylist()], dtype=np.int8)
    except (pyarrow.ArrowException, KeyError, ValueError, OSError) as error:
        raise InputError(f"--split-like {folder}: {FILE} cannot be read ({str(error).splitlines()[0]}).") from None
    if not len(numbers):
        return np.full(len(hashes), -1, dtype=np.int8)
    order = np.argsort(numbers)
    place = np.minimum(np.searchsorted(numbers[order], hashes), len(numbers) - 1)
    return np.where(numbers[order][place] == hashes, parts[order][place], -1).astype(np.int8)
