"""A person's table as one Arrow table of strings, whatever form it came in; faults name their place in the file.

All columns stay text, as in the file, so that predictions.csv can repeat them; what is read goes on as
`datasets.Dataset` without a copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from classify.data.formats.base import Content, ReadOptions
from classify.data.formats.registry import SUFFIXES, find_format
from classify.data.source import find_source

if TYPE_CHECKING:
    import datasets
    import pyarrow

_SHOWN = 3


@dataclass(frozen=True)
class Table:
    """A file and its rows: every column a string column, rows in the order of the file."""

    path: str
    sha256: str
    content: Content

    @property
    def arrow(self) -> pyarrow.Table:
        """The rows."""
        return self.content.arrow

    @property
    def columns(self) -> list[str]:
        """Column names in the order of the file."""
        return list(self.arrow.column_names)

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def column(self, name: str) -> list[str]:
        """All values of a column, in the order of the file."""
        values: list[str] = self.arrow.column(name).to_pylist()
        return values

    def as_dataset(self) -> datasets.Dataset:
        """The same Arrow table as `datasets.Dataset`; nothing is copied."""
        import datasets

        return datasets.Dataset(datasets.table.InMemoryTable(self.arrow))

    def where(self, rows: Iterable[int]) -> str:
        """`my.csv line 7` or `my.csv lines 7, 9, 12 and 4 more`, for messages."""
        wanted = list(rows)
        shown = ", ".join(map(str, self.content.places(wanted[:_SHOWN])))
        more = f" and {len(wanted) - _SHOWN} more" if len(wanted) > _SHOWN else ""
        return f"{self.path} {self.content.unit}{'s' if len(wanted) > 1 else ''} {shown}{more}"


def read_table(path: str, flag: str = "--data", options: ReadOptions | None = None) -> Table:
    """Read a table. Raises InputError with all faults of the file."""
    source = find_source(path, flag, SUFFIXES)
    content = find_format(source).read(source, options or ReadOptions())
    return Table(path, source.sha256, content)
