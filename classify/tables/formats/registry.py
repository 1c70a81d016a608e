"""Read a table with the format that recognizes its path with the highest confidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from classify.errors import InputError, list_some
from classify.tables import archives
from classify.tables.formats.base import Format, ReadOptions
from classify.tables.formats.columnar import Arrow, Parquet, SavedDataset
from classify.tables.formats.delimited import Delimited
from classify.tables.formats.documents import Documents
from classify.tables.formats.excel import Excel
from classify.tables.formats.fasttext import FastText
from classify.tables.formats.hub import Hub
from classify.tables.formats.lines import Lines
from classify.tables.formats.pattern import Pattern
from classify.tables.formats.records import JSON, JSONLines
from classify.tables.formats.splits_folder import SplitsFolder
from classify.tables.source import Source, check_file
from classify.tables.table import Table

# The options that some formats take, and why others do not.
_WITHOUT_EFFECT = {
    "encoding": "only text files have an encoding to choose",
    "sheet": "only workbooks have sheets",
    "delimiter": "only text files have a delimiter",
    "quote": "only text files have quotes",
    "header": "only text files with a delimiter, and workbooks, have a header",
    "skip_lines": "only text files and workbooks have lines above their table",
}


def read_table(path: str, flag: str = "--data", options: ReadOptions | None = None) -> Table:
    """Read a table. Raises InputError, with all faults, where the path names none or it cannot be read."""
    options = options or ReadOptions()
    source, format = find_format(path, flag, options)
    table = format.read(source, options)
    table = replace(table, takes=table.takes | format.takes)
    if source.member:
        table = replace(table, form=f"{source.member} in {Path(path).name}: {table.form}")
    return table


def refuse_unused(options: ReadOptions, tables: Sequence[Table]) -> None:
    """Raise InputError for an option that none of the tables was read by."""
    for name, why in _WITHOUT_EFFECT.items():
        if getattr(options, name) is not None and not any(name in table.takes for table in tables):
            flag = "no-header" if options.header is False and name == "header" else name.replace("_", "-")
            raise InputError(f"{tables[0].path}: --{flag} has no effect, because {why}; drop it.")


def find_format(path: str, flag: str, options: ReadOptions) -> tuple[Source, Format]:
    """Return the source that a path names and the format to read it. Raises InputError where none fits."""
    source = Source(path, flag)
    if source.is_file:
        source = check_file(source, SUFFIXES)
    if options.labels is not None:
        return source, LINES
    confidence, format = max(((format.sniff(source), format) for format in FORMATS), key=lambda pair: pair[0])
    if confidence:
        return source, format
    if Path(path).is_dir():
        names = sorted(entry.name for entry in Path(path).iterdir())
        shown = list_some(names) or "nothing"
        raise InputError(
            f"{flag} {path}: expected a file, a folder with one subfolder of .txt files per class, or one with "
            f"files named train.*, validation.*, test.*. Got a folder with {shown} instead."
            f"{_suggest_pattern(path, flag)}"
        )
    return check_file(source, SUFFIXES), format  # which raises: there is no such file


def _suggest_pattern(path: str, flag: str) -> str:
    """Return the pattern that names all tables of a folder or of those in it, where there are several of one form."""
    for pattern in ("*", "*/*"):
        counts = Counter(entry.suffix for entry in Path(path).glob(pattern) if entry.suffix in SUFFIXES)
        suffix, count = max(counts.items(), key=lambda item: item[1], default=("", 0))
        if count > 1:
            return f" For its {count} files as one table give {flag} '{path}/{pattern}{suffix}'."
    return ""


_FILES: tuple[Format, ...] = (JSON(), JSONLines(), Parquet(), Arrow(), Excel(), FastText(), Delimited())
SUFFIXES = (*(suffix for format in _FILES for suffix in format.suffixes), *archives.SUFFIXES)
LINES = Lines()
FORMATS: tuple[Format, ...] = (Pattern(read_table), SplitsFolder(SUFFIXES), SavedDataset(), Documents(), Hub(), *_FILES)
