"""Read the rows of standard input as they come, so that predictions do not wait for its end."""

from __future__ import annotations

import codecs
import csv
import itertools
import json
import os
import re
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow

from classify.errors import InputError
from classify.modeling.result_folder import trained_texts
from classify.tables.json_file import from_records
from classify.tables.roles import TextColumns, find_text_columns
from classify.tables.source import STANDARD_INPUT, ReadOptions
from classify.tables.table import Table, to_arrow

# Lines that are predicted together, if they are there.
_LINES = 256
# Bytes that are read at once: a pipe on Linux holds no more.
_BYTES = 1 << 16
_DELIMITERS = (",", "\t", ";", "|")
# Between the columns of a table that has one: texts hold commas.
_UNIT_SEPARATOR = "\x1f"


def read_lines(
    settings: dict[str, Any], text_column: str | None, pair: str | None, options: ReadOptions
) -> Iterator[tuple[Table, TextColumns]]:
    """Yield the rows of standard input as they come, with their text columns.

    A first line with the names of the text columns is a header of CSV, an object begins JSON Lines; else each line is a
    text. Raises InputError for a line that does not fit.
    """
    lines = _Lines(options.encoding or "utf-8-sig")
    first = next(lines, None)
    if first is None:
        return
    wanted = trained_texts(settings)
    required = set(text_column.split(",") if text_column else wanted.named)
    delimiters = _DELIMITERS if options.delimiter is None else (options.delimiter,)
    headers = {delimiter: next(csv.reader([first], delimiter=delimiter)) for delimiter in delimiters}
    delimiter = next((sign for sign, names in headers.items() if required <= set(names)), None)
    names, note, number = [], None, 1
    if delimiter is not None:
        names, number = headers[delimiter], 2
        records: Iterator[Any] = csv.reader(lines, delimiter=delimiter if len(names) > 1 else _UNIT_SEPARATOR)
    elif first.lstrip().startswith("{"):
        records = map(_parse, itertools.chain([first], lines))
    elif re.fullmatch(r"\s*\[\s*(\{.*)?", first, re.DOTALL):
        raise InputError(f"{STANDARD_INPUT}: expected an object of JSON per line. Got a list; give a file with --data.")
    else:
        records, names = ([line.rstrip("\r\n")] for line in itertools.chain([first], lines)), [wanted.fields[0]]
        note = f"the first line does not name the column {names[0]!r}, so each line is a text"
    while block := lines.take(records):
        places = np.arange(number, number + len(block))
        number += len(block)
        if names:
            for place, record in zip(places, block, strict=True):
                if len(record) != len(names):
                    raise InputError(f"{STANDARD_INPUT} row {place}: expected {len(names)} fields. Got {len(record)}.")
            arrow = pyarrow.table(dict(zip(names, map(to_arrow, zip(*block, strict=True)), strict=True)))
            table = Table(STANDARD_INPUT, "", arrow, "standard input", places, "row")
        else:
            table = from_records(block, STANDARD_INPUT, "", "JSON Lines", places, "line")
        if note is not None:
            table, note = table.add_note(note), None
        texts = find_text_columns(table, wanted, text_column, pair)
        yield texts.derive(table), texts


def _parse(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise InputError(f"{STANDARD_INPUT}: expected a JSON object per line. Got {line[:60]!r} instead.")
    return record


class _Lines:
    """The lines of standard input. All that have come are read at once, so that they can be predicted together."""

    def __init__(self, encoding: str):
        self._decode = codecs.getincrementaldecoder(encoding)("replace").decode
        self._waiting, self._rest = deque[str](), ""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while not self._waiting:
            data = os.read(sys.stdin.fileno(), _BYTES)  # waits for the first byte, not for all of them
            *lines, self._rest = (self._rest + self._decode(data, not data)).split("\n")
            self._waiting.extend(f"{line}\n" for line in lines)
            if not data:
                if not self._rest:
                    raise StopIteration
                self._waiting.append(self._rest)
                self._rest = ""
        return self._waiting.popleft()

    def take(self, records: Iterator[Any]) -> list[Any]:
        """The next records: at least one, then those whose lines have come; [] at the end."""
        block = list(itertools.islice(records, 1))
        while block and self._waiting and len(block) < _LINES:
            block += itertools.islice(records, 1)
        return block
