"""Interface of table formats, and the options of reading."""

from __future__ import annotations

import enum
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from classify.errors import InputError
from classify.tables.encoding import decode_start
from classify.tables.label_lists import parse_separator
from classify.tables.source import Source
from classify.tables.table import Table

# Control characters that texts do not hold.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f]")


@dataclass(frozen=True)
class ReadOptions:
    """Options of reading a table.

    All but `columns` come from flags, None where the file decides; `labels` is the file with the label of each line,
    and a `quote` of "" stands for none. `legacy` is the encoding to try first where a file is not Unicode.
    `columns` are those of a related table: a file without them in its first row, and as wide, has these columns and no
    header.
    """

    encoding: str | None = None
    sheet: str | None = None
    skips_bad_rows: bool = False
    columns: tuple[str, ...] = ()
    labels: str | None = None
    delimiter: str | None = None
    quote: str | None = None
    header: bool | None = None
    skip_lines: int | None = None
    legacy: str | None = None

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Return the options that settings, named as flags are, give. Raises InputError where two contradict."""
        if settings.get("header") and settings.get("no_header"):
            raise InputError("--header and --no-header contradict each other; give one of them.")
        options = cls(
            settings.get("encoding"),
            settings.get("sheet"),
            settings.get("on_bad_rows") == "skip",
            delimiter=parse_separator(settings.get("delimiter")),
            quote="" if settings.get("quote") == "none" else settings.get("quote"),
            header=True if settings.get("header") else False if settings.get("no_header") else None,
            skip_lines=settings.get("skip_lines"),
        )
        for name, least in (("delimiter", 1), ("quote", 0)):
            value = getattr(options, name)
            if value is not None and not (least <= len(value) <= 1 and value.isascii() and not value.isalnum()):
                raise InputError(f"--{name} {value}: expected one sign of ASCII, or {_ALSO[name]}.")
        if options.delimiter is not None and options.delimiter == options.quote:
            raise InputError(f"--delimiter and --quote are both {options.quote}; give different ones.")
        return options

    def fill(self, values: Mapping[str, Any]) -> Self:
        """Return the options with `values` where they are None; an encoding applies to files that are not Unicode."""
        named = {"legacy" if name == "encoding" else name: value for name, value in values.items()}
        return replace(self, **{name: value for name, value in named.items() if getattr(self, name) is None})

    @property
    def given(self) -> dict[str, Any]:
        """Return what a later table of the same kind is read by, too."""
        values = {name: getattr(self, name) for name in REMEMBERED}
        return {name: value for name, value in values.items() if value is not None}


# The options that `Table.reading` may hold.
REMEMBERED = ("encoding", "sheet", "delimiter", "quote", "header", "skip_lines")
_ALSO = {"delimiter": "tab, or newline for one text per line", "quote": "none"}


class Confidence(enum.IntEnum):
    """Confidence of a format that it can read a path; the highest one reads it, ties go to the first registered.

    CERTAIN means that no other format could read the path; `Hub` is certain of any path that has the form of a data
    set's name.
    """

    NONE = 0
    FALLBACK = 1
    NAME = 2
    CONTENT = 3
    NAME_AND_CONTENT = 4
    CERTAIN = 5


class Format(ABC):
    """A form of table: a kind of file, a folder, a data set elsewhere."""

    # Suffixes of file names, of a kind of file.
    suffixes: tuple[str, ...] = ()
    # The options that it reads by.
    takes: frozenset[str] = frozenset()

    @abstractmethod
    def sniff(self, source: Source) -> Confidence:
        """Return how sure it is that the path is of this form."""

    @abstractmethod
    def read(self, source: Source, options: ReadOptions) -> Table:
        """Read all rows. Raises InputError with all faults, each with its place."""

    def splits(self, source: Source) -> dict[str, str]:
        """Return the path of each split (train, eval, test) where a path holds several tables; {} for one table."""
        return {}

    def find_unused(self, source: Source, used: Collection[str]) -> list[str]:
        """Return the names of the tables of a path with several whose paths are not `used`."""
        return []


class FileFormat(Format):
    """A kind of file, recognized by how its bytes begin or by its name."""

    is_text = True

    @abstractmethod
    def matches(self, start: bytes) -> bool:
        """Return whether a file that begins with these bytes is of this form, under any name."""

    def sniff(self, source: Source) -> Confidence:
        """Compare the first bytes and the name; programs export text under the names of workbooks."""
        if not source.is_file:
            return Confidence.NONE
        named = source.suffix in self.suffixes
        if self.matches(source.head):
            return Confidence.NAME_AND_CONTENT if named else Confidence.CONTENT
        holds_text = not _CONTROL.search(decode_start(source.head))
        return Confidence.NAME if named and (self.is_text or not holds_text) else Confidence.NONE


def deduplicate_names(names: Sequence[str]) -> tuple[list[str], str]:
    """Number repeated column names as pandas does (text, text.1); also return a remark on these, or ""."""
    originals, counts = set(names), Counter[str]()
    unique: dict[str, str] = {}
    for name in names:
        new = name
        while new in unique or (new != name and new in originals):
            counts[name] += 1
            new = f"{name}.{counts[name]}"
        unique[new] = name
    renamed = ", ".join(f"{name!r} to {new!r}" for new, name in unique.items() if new != name)
    return list(unique), f"; repeated columns renamed: {renamed}" if renamed else ""


def default_names(width: int, options: ReadOptions) -> list[str]:
    """Name columns without a header: as in the related table, or by number."""
    names = list(options.columns)
    return names if len(names) == width else [f"column_{number}" for number in range(1, width + 1)]


def as_text(value: Any) -> str:
    """Write a cell as text: text and UTF-8 bytes as they are, None and NaN as "", 3.0 as 3.0, lists as JSON.

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
