"""Read a table of any format: the first that claims a path reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from classify.errors import InputError, list_some
from classify.tables import arrow_file, csv_file, excel, folders, json_file
from classify.tables.source import ReadOptions, Source, list_files
from classify.tables.table import Table

SUFFIXES = (*json_file.SUFFIXES, *arrow_file.SUFFIXES, *excel.SUFFIXES, *csv_file.SUFFIXES)


@dataclass(frozen=True)
class Format:
    """A kind of table. `takes` are the options that it reads by."""

    claims: Callable[[Source], bool]
    read: Callable[[Source, ReadOptions], Table]
    takes: frozenset[str] = frozenset()


def read_table(path: str, flag: str = "--data", options: ReadOptions = ReadOptions()) -> Table:  # noqa: B008
    """Read the table that a path names: a file, several, a folder, a data set of the hub.

    Raises InputError with all faults, and QuestionError where the file leaves open how it is to be read.
    """
    names = list_files(path)
    if names == [path]:
        return _read_one(path, flag, options)
    return folders.read_several(names, path, flag, options, _read_one)


def _read_one(path: str, flag: str, options: ReadOptions) -> Table:
    source = Source(path, flag)
    if not folders.is_hub(path) and not Path(path).is_dir():
        source.check(SUFFIXES)
    with source.explain_damage():
        format = next((format for format in FORMATS if format.claims(source)), None)
        if format is None:
            _refuse_folder(source)
        unused = [name for name in options.given if name not in format.takes]
        if unused:
            name = "no-header" if options.header is False and unused[0] == "header" else unused[0].replace("_", "-")
            raise InputError(f"{path}: --{name} has no effect on such a table; drop it.")
        table = format.read(source, options)
    if not table.columns:
        raise InputError(f"{path}: no column with values.")
    return table


def _refuse_folder(source: Source) -> NoReturn:
    entries = sorted(Path(source.path).iterdir())
    suffixes = {entry.suffix for entry in entries if entry.is_file() and entry.suffix in SUFFIXES}
    joined = f" For its files as one table give {source.flag} '{source.path}/*{min(suffixes)}'." if suffixes else ""
    raise InputError(
        f"{source.flag} {source.path}: expected a file, a folder with one subfolder of .txt files per class, or one "
        "with files named train.*, validation.*, test.*. Got a folder with "
        f"{list_some([entry.name for entry in entries]) or 'nothing'} instead.{joined}"
    )


def _is_text(source: Source) -> bool:
    """Whether a file may be delimited text. Raises InputError for another kind."""
    start = source.head[:4096] if source.is_file else b""
    if b"\0\0" in start and not start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{source.path}: not a table this program reads; expected CSV, JSON, Parquet or Excel.")
    return source.is_file


# Asked in this order: the first that claims a path reads it.
FORMATS = (
    Format(lambda source: folders.is_hub(source.path), folders.read_hub),
    Format(lambda source: folders.holds_classes(Path(source.path)), folders.read_documents, frozenset({"encoding"})),
    Format(excel.claims, excel.read, frozenset({"sheet", "header", "skip_lines"})),
    Format(arrow_file.claims, arrow_file.read),
    Format(json_file.claims, json_file.read, frozenset({"encoding"})),
    Format(_is_text, csv_file.read, frozenset({"encoding", "delimiter", "quote", "header", "skip_lines"})),
)
