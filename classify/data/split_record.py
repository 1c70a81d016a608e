"""Which part each text of a divided table went to, so that a table with more rows can be divided the same."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from classify.data.files import whole
from classify.data.names import PARTS
from classify.data.split import plain
from classify.errors import InputError

FILE = "split.parquet"


def write_record(folder: Path, texts: Sequence[str], assignment: npt.NDArray[np.int8]) -> None:
    """Write a row a text, a hash of it and its part; `assignment` holds a part's number, or -1, for each text."""
    import pyarrow
    from pyarrow import parquet

    rows = {text_hash(text): PARTS[part] for text, part in zip(texts, assignment.tolist(), strict=True) if part >= 0}
    table = pyarrow.table({"text_sha256": list(rows), "part": list(rows.values())})
    with whole(folder / FILE) as temporary:
        parquet.write_table(table, temporary)


def parts_of(texts: Sequence[str], folder: str) -> npt.NDArray[np.int8]:
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
        parts = dict(zip(record["text_sha256"].to_pylist(), map(PARTS.index, record["part"].to_pylist()), strict=True))
    except (pyarrow.ArrowException, KeyError, ValueError, OSError) as error:
        raise InputError(f"--split-like {folder}: {FILE} cannot be read ({str(error).splitlines()[0]}).") from None
    return np.array([parts.get(text_hash(text), -1) for text in texts], dtype=np.int8)


def text_hash(text: str) -> str:
    """16 hexadecimal digits that copies of a text share, but for case and spaces."""
    return hashlib.sha256(plain(text).encode("utf-8", "surrogatepass")).hexdigest()[:16]
