"""Tables that the memory should not hold: their rows lie in an Arrow file of the cache, and are mapped."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from classify.data.cache import cached

if TYPE_CHECKING:
    import pyarrow

# Bytes of a table from which on it is one of these.
LARGE = 64 << 20
_FORMAT = 2
_FILE = "rows.arrow"


def stored(key: str, batches: Callable[[], pyarrow.RecordBatchReader]) -> pyarrow.Table:
    """The rows of some batches, memory-mapped; `key` names what they are made of. In memory where there is no cache."""
    import pyarrow

    def write(folder: Path) -> None:
        reader = batches()
        with pyarrow.ipc.new_file(str(folder / _FILE), reader.schema) as file:
            for batch in reader:
                file.write_batch(batch)

    def read(folder: Path) -> pyarrow.Table | None:
        try:
            with pyarrow.memory_map(str(folder / _FILE)) as file:
                return pyarrow.ipc.open_file(file).read_all()
        except (pyarrow.ArrowException, OSError):
            return None

    name = hashlib.sha256(f"rows\0{_FORMAT}\0{key}".encode()).hexdigest()[:32]
    table = cached(name, write, read)
    return batches().read_all() if table is None else table
