"""Memory-map the rows of large tables from an Arrow file in the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from classify.tables.cache import load_or_write

if TYPE_CHECKING:
    import pyarrow

# Tables of more bytes are large.
LARGE = 64 << 20
_FORMAT = 2
_FILE = "rows.arrow"


def map_from_cache(key: str, batches: Callable[[], pyarrow.RecordBatchReader]) -> pyarrow.Table:
    """Return the rows memory-mapped from the cache entry `key`, written from `batches`; in memory without a cache."""
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
    table = load_or_write(name, write, read)
    return batches().read_all() if table is None else table
