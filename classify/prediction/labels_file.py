"""labels.csv: the answers of a person who labels texts, on the disk at once."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from classify.errors import InputError
from classify.files import atomic_path
from classify.prediction.suggest import UNCERTAIN
from classify.tables.table import text_hashes


class Answer(NamedTuple):
    """The label of a text, or several joined by |. `chosen` says why it was asked about."""

    label: str
    note: str = ""
    chosen: str = UNCERTAIN


class LabelsFile:
    """labels.csv: a line for each answer, on the disk before the next question; edits of others are kept.

    Its lines belong to texts by what they say, so rows may be sorted, deleted or added. The last line of a text counts.
    """

    def __init__(self, path: Path, columns: Sequence[str]):
        self.path, self.columns = path, (*columns, "label", "note", "chosen")
        self._texts = len(columns)
        self._seen: tuple[int, int] | None = None
        self.answers: dict[int, Answer] = {}
        self.refresh()

    def refresh(self) -> bool:
        """Read the file if it is not as this program left it; tell whether it was read.

        Raises InputError where it has other columns.
        """
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        content = self.path.read_text(encoding="utf-8-sig") if stamp is not None else ""
        reader = csv.DictReader(io.StringIO(content, newline=""))
        missing = [
            name for name in self.columns[: self._texts + 1] if content and name not in (reader.fieldnames or ())
        ]
        if missing:
            raise InputError(
                f"{self.path}: expected a CSV file, with commas, of the columns {', '.join(self.columns)}. It has no "
                f"column {missing[0]!r}; give another --out."
            )
        answers = {}
        for line in reader:
            label, note, chosen = (line.get(name) or "" for name in self.columns[self._texts :])
            answers[key_of([line[name] or "" for name in self.columns[: self._texts]])] = Answer(label, note, chosen)
        self.answers = {key: answer for key, answer in answers.items() if answer.label.strip()}
        self._seen = stamp
        return True

    def append(self, texts: Sequence[str], answer: Answer) -> None:
        self.refresh()
        is_new = self._seen is None or not self._seen[1]
        with self.path.open("a+", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if is_new:
                writer.writerow(self.columns)
            elif not self._ends_in_newline():
                file.write("\n")
            writer.writerow([*texts, answer.label, answer.note, answer.chosen])
            file.flush()
            os.fsync(file.fileno())
        self.answers[key_of(texts)] = answer
        self._seen = self._stamp()

    def remove(self, texts: Sequence[str]) -> None:
        """Remove the lines of a text; the others stay as they are."""
        self.refresh()
        key, content = key_of(texts), self.path.read_text(encoding="utf-8-sig")
        header, *lines = csv.reader(io.StringIO(content, newline=""))
        places = [header.index(name) for name in self.columns[: self._texts]]
        with atomic_path(self.path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(header)
            writer.writerows(line for line in lines if key_of([line[place] for place in places]) != key)
        self.answers.pop(key, None)
        self._seen = self._stamp()

    def _stamp(self) -> tuple[int, int] | None:
        """When the file was changed, and its size; None where there is none."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_size

    def _ends_in_newline(self) -> bool:
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() == b"\n"


def key_of(texts: Sequence[str]) -> int:
    """What a line is known by: a hash of its texts."""
    return int(text_hashes(["\0".join(texts)])[0])
