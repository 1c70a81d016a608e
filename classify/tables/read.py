"""Read a table of any format: the first that claims a path reads it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import pyarrow

from classify.errors import InputError, list_some
from classify.findings import note
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
    return _read_several(names, path, flag, options)


def _read_one(path: str, flag: str, options: ReadOptions) -> Table:
    source = Source(path, flag)
    if not folders.is_hub(path) and not Path(path).is_dir():
        source.check(SUFFIXES)
    with source.explain_damage():
        format = next((format for format in FORMATS if format.claims(source)), None)
        if format is None:
            _refuse_folder(source)
        unused = [name for name in options.given if name not in format.takes | options.inherited]
        if unused and flag == "--data":  # beside it, a flag may be meant for --data alone
            name = "no-header" if options.header is False and unused[0] == "header" else unused[0].replace("_", "-")
            raise InputError(f"{path}: --{name} has no effect on such a table; drop it.")
        table = format.read(source, options)
    if not table.columns:
        raise InputError(f"{path}: no column with values.")
    return table


def _read_several(names: Sequence[str], path: str, flag: str, options: ReadOptions) -> Table:
    """Read files as one table, columns matched by name. Raises InputError where one lacks a column of the first."""
    first = _read_one(names[0], flag, options)
    options = replace(options, columns=tuple(first.columns)) if first.has_names else options
    tables = [first, *(_read_one(name, flag, options) for name in names[1:])]
    findings, added = [finding for table in tables for finding in table.findings], dict[str, None]()
    for table in tables[1:]:
        lacked = [name for name in first.columns if not table.has_column(name)]
        if lacked:
            raise InputError(
                f"{path}: {table.path} has no column {lacked[0]!r}, which {first.path} has; it has: "
                f"{list_some(table.columns, show=repr)}. Rename its columns, or put the table with fewer columns first."
            )
        added |= dict.fromkeys(name for name in table.columns if not first.has_column(name))
    if added:
        findings.append(
            note(f"left out, since {first.path} does not have them: columns {list_some(list(added), show=repr)}")
        )
    places: list[str] = []
    for table in tables:
        where = "" if table.unit == "file" else f"{table.path} {table.unit} "
        places += [f"{where}{place}" for place in table.places]
    return replace(
        first.with_arrow(pyarrow.concat_tables([table.arrow.select(first.columns) for table in tables])),
        path=path,
        sha256=hashlib.sha256("".join(table.sha256 for table in tables).encode()).hexdigest(),
        form=f"{len(tables)} files: {first.form}",
        places=places,
        unit="file",
        skipped=sum(table.skipped for table in tables),
        findings=tuple(findings),
        original=None,
    )


def _refuse_folder(source: Source) -> NoReturn:
    entries = sorted(Path(source.path).iterdir())
    suffixes = {entry.suffix for entry in entries if entry.is_file() and entry.suffix in SUFFIXES}
    joined = f" For its files as one table give {source.flag} '{source.path}/*{min(suffixes)}'." if suffixes else ""
    raise InputError(
        f"{source.flag} {source.path}: expected a file, a folder with one subfolder of .txt files per class, or one "
        "with files named train.*, validation.*, test.*. Got a folder with "
        f"{list_some([entry.name for entry in entries]) or 'nothing'} instead.{joined}"
    )


def _is_file(source: Source) -> bool:
    return source.is_file


# Asked in this order: the first that claims a path reads it.
FORMATS = (
    Format(lambda source: folders.is_hub(source.path), folders.read_hub),
    Format(lambda source: folders.holds_classes(Path(source.path)), folders.read_documents, frozenset({"encoding"})),
    Format(excel.claims, excel.read, frozenset({"sheet", "header", "skip_lines"})),
    Format(arrow_file.claims, arrow_file.read),
    Format(json_file.claims, json_file.read, frozenset({"encoding"})),
    Format(_is_file, csv_file.read, frozenset({"encoding", "delimiter", "quote", "header", "skip_lines"})),
)
