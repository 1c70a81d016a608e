"""What a form of table answers, and what reading one gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from classify.data.source import Source

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class ReadOptions:
    """What a person says of a file: its encoding, a workbook's sheet, whether rows that cannot be read are skipped."""

    encoding: str | None = None
    sheet: str | None = None
    skips_bad_rows: bool = False


@dataclass(frozen=True)
class Content:
    """A table as it was read: every column a string column, rows in the order of the file.

    `form` says in words what the file was taken for, and `flag` how to say otherwise. `places` gives, for row numbers,
    where each stands in the file, and `unit` what these places are: lines, rows of a sheet, files.
    """

    arrow: pyarrow.Table
    form: str
    flag: str
    places: Callable[[Sequence[int]], Sequence[int | str]]
    unit: str = "line"


class Format(ABC):
    """A form of table. Reading raises InputError with all faults of the file, each with its place."""

    name: str
    suffixes: tuple[str, ...]

    @abstractmethod
    def recognises(self, start: bytes) -> bool:
        """Whether a file that begins so is of this form, whatever its name says."""

    @abstractmethod
    def read(self, source: Source, options: ReadOptions) -> Content:
        """All rows of a file."""


def as_text(value: Any) -> str:
    """A cell as a person would write it: text as it is, nothing as an empty text, 3.0 as 3.0, lists as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        import json

        return json.dumps(value, ensure_ascii=False)
    return str(value)
