"""Which part each text of a divided table went to, so that a table with more rows can be divided the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from classify.data.files import atomic_path
from classify.data.names import PARTS
from classify.data.text_hashes import TextHashes
from classify.errors import InputError

FILE = "split.parquet"


def write_record(folder: Path, copies: TextHashes, assignment: npt.NDArray[np.int8]) -> None:
    """Write a row a text: its number in `copies`, and its part; `assignment` holds a part's number, or -1, for each."""
    import pyarrow
    from pyarrow import parquet

    numbers, first = np.unique(copies[assignment >= 0], return_index=True)
    parts = pyarrow.DictionaryArray.from_arrays(assignment[assignment >= 0][first], list(PARTS))
    with atomic_path(folder / FILE) as temporary:
        parquet.write_table(pyarrow.table({"text_sha256": numbers, "part": parts}), temporary)


def parts_of(copies: TextHashes, folder: str) -> npt.NDArray[np.int8]:
    """(texts,) the part that an earlier run had each text in, as an index into `PARTS`; -1 of texts it did not have.

    Raises InputError where the folder holds no record.
    """
    import pyarrow
    from pyarrow import parquet

    file = Path(folder) / FILE
    if not file.is_file():
        raise InputError(
            f"--split-like {folder}: expected the output folder of a run that divided its table ({FILE} in it). "
            f"Got {'a folder without it' if Path(folder).is_dir() else 'no folder'} instead."
        )
    try:
        record = parquet.read_table(file)
        numbers = record["text_sha256"].to_numpy().astype(np.uint64)
        parts = np.array([PARTS.index(part) for part in record["part"].to_pylist()], dtype=np.int8)
    except (pyarrow.ArrowException, KeyError, ValueError, OSError) as error:
        raise InputError(f"--split-like {folder}: {FILE} cannot be read ({str(error).splitlines()[0]}).") from None
    if not len(numbers):
        return np.full(len(copies), -1, dtype=np.int8)
    order = np.argsort(numbers)
    place = np.minimum(np.searchsorted(numbers[order], copies), len(numbers) - 1)
    return np.where(numbers[order][place] == copies, parts[order][place], -1).astype(np.int8)
