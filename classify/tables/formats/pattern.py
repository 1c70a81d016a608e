"""Read several files, listed with commas or matching a pattern such as part-*.csv, joined by column name."""

from __future__ import annotations

import bisect
import glob
import hashlib
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from classify.config.fields import split_paths
from classify.errors import InputError, list_some
from classify.findings import note
from classify.tables.formats.base import Confidence, Format, ReadOptions
from classify.tables.names import PREDICTED, normalize_name
from classify.tables.source import Source
from classify.tables.table import Table

# The excerpt in a table's form that shows how its encoding was read.
_EXCERPT = re.compile(r" \(e\.g\. .*?”\)")
Reader = Callable[[str, str, ReadOptions], Table]


class Pattern(Format):
    """Files as they are listed, those of a pattern in the order of their names; `read_table` reads each."""

    def __init__(self, read_table: Reader):
        self._read_table = read_table

    def sniff(self, source: Source) -> Confidence:
        return Confidence.CERTAIN if _expand(source.path) else Confidence.NONE

    def read(self, source: Source, options: ReadOptions) -> Table:
        import pyarrow

        names = _expand(source.path)
        first = self._read_table(names[0], source.flag, options)
        if first.has_names:
            options = replace(options, columns=tuple(first.columns))
        tables = [first, *(self._read_table(name, source.flag, options) for name in names[1:])]
        findings, more = [finding for table in tables for finding in table.findings], set[str]()
        for further in tables[1:]:
            lacked, added = set(first.columns) - set(further.columns), set(further.columns) - set(first.columns)
            # What a further table lacks may be the text or the label.
            if lacked or (added and not (first.has_names and further.has_names)):
                only = list_some(sorted(lacked | added), show=repr)
                way = "rename the columns so that they match, or put the table with fewer columns first"
                predicted = [name for name in added if normalize_name(name).startswith(PREDICTED)]
                if len(lacked) == 1 and predicted:
                    way = f"rename the corrected {predicted[0]!r} of {further.path} to {lacked.pop()!r}"
                raise InputError(
                    f"{source.path}: {first.path} and {further.path} have different columns ({only} in only one of "
                    f"them); {way}."
                )
            more |= added
        if more:
            unknown = ", ".join(map(repr, sorted(more)))
            findings.append(note(f"left out, since {first.path} does not have them: columns {unknown}"))
        arrow = pyarrow.concat_tables([table.arrow.select(first.columns) for table in tables])
        digest = hashlib.sha256("".join(table.sha256 for table in tables).encode()).hexdigest()
        # The first file of each form; excerpts, which show an encoding, always differ.
        forms = {_EXCERPT.sub("", table.form): f"{table.path} {table.form}" for table in reversed(tables)}
        listed = list(reversed(forms.values()))
        form = first.form if len(forms) == 1 else list_some(listed)
        return Table(
            source.path,
            digest,
            arrow,
            f"{len(tables)} files: {form}",
            _join_places(tables),
            "",
            flag=next((table.flag for table in tables if table.flag), ""),
            has_names=first.has_names,
            takes=frozenset().union(*(table.takes for table in tables)),
            reading=first.reading,
            skipped=sum(table.skipped for table in tables),
            findings=tuple(findings),
            files=tuple((table.path, len(table)) for table in tables),
        )


def list_files(paths: str) -> list[str]:
    """Return the files of a path, of a list of them, or that match a pattern."""
    return _expand(paths) or [paths]


def _expand(paths: str) -> list[str]:
    """Return the files that are listed or match a pattern; [] for one path."""
    parts = split_paths(paths)
    if len(parts) == 1:
        return _match(paths)
    return [name for part in parts for name in _match(part) or [part]]


def _match(pattern: str) -> list[str]:
    if not glob.has_magic(pattern) or Path(pattern).exists():
        return []
    names = (name for name in glob.glob(pattern, recursive=True) if Path(name).is_file())
    return sorted(name for name in names if not Path(name).name.startswith("~$"))  # locks of open workbooks


def _join_places(tables: Sequence[Table]) -> Callable[[Sequence[int]], list[str]]:
    """Return the `places` of joined tables, which look through each file once."""
    ends = list(itertools.accumulate(map(len, tables)))

    def places(rows: Sequence[int]) -> list[str]:
        file_numbers = [bisect.bisect_right(ends, row) for row in rows]
        words: dict[int, str] = {}
        for number in set(file_numbers):
            file_rows = [row for row, file_number in zip(rows, file_numbers, strict=True) if file_number == number]
            begin = ends[number] - len(tables[number])
            names = tables[number].describe_row_groups([[row - begin] for row in file_rows])
            words |= dict(zip(file_rows, names, strict=True))
        return [words[row] for row in rows]

    return places
