"""labels.csv: the answers of a person who labels texts, on the disk at once."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from classify.errors import InputError
from classify.files import atomic_path
from classify.prediction.suggest import UNCERTAIN
from classify.tables.csv_file import LONGEST_CELL
from classify.tables.table import text_hashes

# The columns beside the texts'.
LABEL = "label"
COLUMNS = (LABEL, "note", "chosen")


class Answer(NamedTuple):
    """The label of a text, or several joined by |. `chosen` says why it was asked about."""

    label: str
    note: str = ""
    chosen: str = UNCERTAIN


class LabelsFile:
    """labels.csv: a line for each answer, on the disk before the next question; edits of others are kept.

    A line belongs to a text by what it says, so lines may be sorted, deleted, changed or added, and there may be
    further columns. The last line of a text counts. `texts` are the names of the texts' columns.
    """

    def __init__(self, path: Path, texts: Sequence[str]):
        if same := [name for name in texts if name in COLUMNS]:
            raise InputError(f"column {same[0]!r} holds texts, and {path} has a column of that name; rename yours.")
        self.path, self.texts = path, tuple(texts)
        self._header = [*texts, *COLUMNS]
        self._seen: tuple[int, int] | None = None
        self.answers: dict[int, Answer] = {}
        self.refresh()

    def refresh(self) -> bool:
        """Read the file if it is not as this program left it; tell whether it was read.

        Raises InputError where it cannot be read, or has other columns.
        """
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        header, lines = self._read() if stamp is not None and stamp[1] else ([*self.texts, *COLUMNS], [])
        if missing := [name for name in (*self.texts, *COLUMNS) if name not in header]:
            raise InputError(
                f"{self.path}: expected a CSV file, with commas, of the columns {', '.join(self._header)}. It has no "
                f"column {missing[0]!r}; give another --out."
            )
        found = {self._key(line): Answer(*(line[name] for name in COLUMNS)) for line in lines}
        self.answers = {key: answer for key, answer in found.items() if answer.label.strip()}
        self._header, self._seen = header, stamp
        return True

    def append(self, texts: Sequence[str], answer: Answer) -> None:
        """Write a line, to its end or not at all. Raises OSError, e.g. for a full disk."""
        self.refresh()
        line = dict(zip((*self.texts, *COLUMNS), (*texts, *answer), strict=True))
        content = self._format([line])
        if self._seen is None or not self._seen[1]:
            content = self._format([dict(zip(self._header, self._header, strict=True)), line])
        with self.path.open("a+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(-1, os.SEEK_END)
                content = content if file.read(1) == b"\n" else b"\n" + content
            try:
                if file.write(content) < len(content):
                    raise OSError(f"{self.path}: the disk took a part of a line")
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)
                raise
        self.answers[key_of(texts)] = answer
        self._seen = self._stamp()

    def remove(self, texts: Sequence[str]) -> None:
        """Remove the lines of a text; the others stay."""
        self.refresh()
        key, lines = key_of(texts), list[dict[str, str]]()
        if self._seen is not None and self._seen[1]:
            _, lines = self._read()
        kept = [dict(zip(self._header, self._header, strict=True)), *(line for line in lines if self._key(line) != key)]
        with atomic_path(self.path.resolve()) as temporary:
            temporary.write_bytes(self._format(kept))
        self.answers.pop(key, None)
        self._seen = self._stamp()

    def _read(self) -> tuple[list[str], list[dict[str, str]]]:
        """The header and the lines, by column, of a file that is not empty."""
        csv.field_size_limit(LONGEST_CELL)
        try:
            content = self.path.read_text(encoding="utf-8-sig")
            header, *rows = (row for row in csv.reader(io.StringIO(content, newline="")) if row)
        except (OSError, ValueError, csv.Error) as error:
            raise InputError(f"{self.path}: expected a CSV file in UTF-8 ({error}); give another --out.") from None
        return header, [dict(zip(header, [*row, *[""] * len(header)], strict=False)) for row in rows]

    def _format(self, lines: Iterable[Mapping[str, str]]) -> bytes:
        text = io.StringIO(newline="")
        # All cells are quoted: csv leaves a lone carriage return bare, which ends a line for whoever reads it.
        writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerows([line.get(name, "") for name in self._header] for line in lines)
        return text.getvalue().encode()

    def _key(self, line: Mapping[str, str]) -> int:
        return key_of([line[name] for name in self.texts])

    def _stamp(self) -> tuple[int, int] | None:
        """When the file was changed, and its size; None where there is none."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_size


def key_of(texts: Sequence[str]) -> int:
    """What a line is known by: a hash of its texts."""
    return int(text_hashes(["\0".join(texts)])[0])
