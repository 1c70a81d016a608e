"""What a form of table answers, and what reading one gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from classify.data.source import Source

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class ReadOptions:
    """What is known of a file before it is read.

    A person says its encoding, a workbook's sheet, whether rows that cannot be read are skipped, which file holds the
    label of each of its lines (`labels`), and whether its first row is data (`no_header`). `columns` are those of
    the table that it goes with: a file whose first row is none of them, and as wide, has them without a header.
    """

    encoding: str | None = None
    sheet: str | None = None
    skips_bad_rows: bool = False
    columns: tuple[str, ...] = ()
    labels: str | None = None
    no_header: bool = False


@dataclass(frozen=True)
class Content:
    """A table as it was read: every column a string column, rows in the order of the file.

    `form` says in words what the file was taken for, and `flag` how to say otherwise. `places` gives, for row numbers,
    where each stands in the file, and `unit` what these places are: lines, rows of a sheet, files. `skipped` rows could
    not be read. `notes` say what may have been read wrong.
    """

    arrow: pyarrow.Table
    form: str
    flag: str
    places: Callable[[Sequence[int]], Sequence[int | str]]
    unit: str = "line"
    has_names: bool = True
    skipped: int = 0
    notes: tuple[str, ...] = ()

    def named(self, names: Sequence[str]) -> Content:
        """The same rows under other names of the columns."""
        return replace(self, arrow=self.arrow.rename_columns(list(names)))


class Format(ABC):
    """A form of table. Reading raises InputError with all faults of the file, each with its place."""

    name: str
    suffixes: tuple[str, ...]
    is_text = True

    @abstractmethod
    def recognises(self, start: bytes) -> bool:
        """Whether a file that begins so is of this form, whatever its name says."""

    @abstractmethod
    def read(self, source: Source, options: ReadOptions) -> Content:
        """All rows of a file."""


class Layout(ABC):
    """A form of table that is not one file: a folder, two files, a data set that lies elsewhere.

    Reading raises InputError with all faults.
    """

    @abstractmethod
    def recognises(self, path: str, options: ReadOptions) -> bool:
        """Whether what a person named is of this form."""

    def parts(self, path: str, flag: str) -> dict[str, str]:
        """What to name for each part of a data set that is laid out so (train, eval, test); {} of one table."""
        return {}

    @abstractmethod
    def read(self, path: str, flag: str, options: ReadOptions) -> tuple[Content, str]:
        """All rows, and a SHA-256 of what they were read from."""


def unique_names(names: Sequence[str]) -> tuple[list[str], str]:
    """Names of columns, those that come again numbered as pandas does (text, text.1); and a remark on these, or ""."""
    given, counts = set(names), Counter[str]()
    unique: dict[str, str] = {}
    for name in names:
        new = name
        while new in unique or (new != name and new in given):
            counts[name] += 1
            new = f"{name}.{counts[name]}"
        unique[new] = name
    again = ", ".join(f"{name!r} is called {new!r}" for new, name in unique.items() if new != name)
    return list(unique), f"; of columns with the same name {again}" if again else ""


def as_text(value: Any) -> str:
    """Write a cell as text: text and UTF-8 bytes as they are, nothing and NaN as "", 3.0 as 3.0, lists as JSON.

    Raises UnicodeDecodeError for other bytes.
    """
    if value is None or value != value:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list | tuple | dict):
        import json

        return json.dumps(value, ensure_ascii=False, default=as_text)
    return str(value)
