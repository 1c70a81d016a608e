"""Read a folder with a folder for each class, and a text file for each document."""

from __future__ import annotations

import hashlib
import io
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from classify.errors import InputError, list_some
from classify.findings import Finding, note
from classify.tables.encoding import detect_encoding
from classify.tables.formats.base import Confidence, Format, ReadOptions
from classify.tables.source import Source
from classify.tables.table import Table

# Folders of documents without a label, as in the movie reviews of Maas et al., 2011.
_UNLABELLED = ("unsup", "unlabeled", "unlabelled")


class _Documents(Source):
    """All documents of a folder, joined, so that their encoding is detected on all of them together."""

    @cached_property
    def files(self) -> list[Path]:
        """Return the documents, by class and by name."""
        found = filter(_is_document, sorted(self.file.glob("*/*")))
        return [file for file in found if self._is_shown(file) and file.parent.name.lower() not in _UNLABELLED]

    def _is_shown(self, file: Path) -> bool:
        return not any(name.startswith(".") for name in file.parts[len(self.file.parts) :])

    def require_one_encoding(self) -> None:
        """Raise InputError where most non-ASCII documents are UTF-8, and some are not."""
        contents = {file: data for file in self.files if not (data := file.read_bytes()).isascii()}
        wrong = [file for file, data in contents.items() if "\ufffd" in data.decode("utf-8-sig", errors="replace")]
        if 0 < len(wrong) < len(contents) / 2:
            shown = list_some(wrong)
            raise InputError(
                f"{self.path}: {len(contents) - len(wrong)} non-ASCII files are UTF-8, and {len(wrong)} are not "
                f"({shown}); save these as UTF-8, too."
            )

    def findings(self) -> tuple[Finding, ...]:
        """Count the files that are not read."""
        every = [file for file in sorted(self.file.glob("*/*")) if file.is_file() and self._is_shown(file)]
        outside = (file for file in sorted(self.file.glob("*.txt")) if file.is_file() and self._is_shown(file))
        deeper = (file for file in sorted(self.file.glob("*/*/**/*.txt")) if file.is_file() and self._is_shown(file))
        left_out = {
            "outside the folders of classes": list(outside),
            "in deeper folders": list(deeper),
            "without a label": [file for file in every if file.parent.name.lower() in _UNLABELLED],
            "not .txt": [file for file in every if not _is_document(file)],
        }
        return tuple(
            note(f"files {why} are not read: {len(files)}, e.g. {files[0]}", self.path)
            for why, files in left_out.items()
            if files
        )

    @cached_property
    def _joined(self) -> bytes:
        return b"\n".join(file.read_bytes() for file in self.files)

    def open(self) -> BinaryIO:
        return io.BytesIO(self._joined)


def holds_classes(folder: Path) -> bool:
    """Return whether a folder has at least two folders that hold text files."""
    entries = folder.iterdir() if folder.is_dir() else ()
    below = [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    return sum(any(map(_is_document, entry.glob("[!.]*"))) for entry in below) > 1


def _is_document(file: Path) -> bool:
    """Return whether a file is a text: a .txt file, or one whose name is a number, as in 20 Newsgroups."""
    return file.is_file() and (file.suffix == ".txt" or file.name.isdecimal())


class Documents(Format):
    """A row per document: its text, its class (the folder's name) and its file."""

    takes = frozenset({"encoding"})

    def sniff(self, source: Source) -> Confidence:
        """Look for at least two folders that hold text files."""
        return Confidence.CERTAIN if holds_classes(Path(source.path)) else Confidence.NONE

    def read(self, source: Source, options: ReadOptions) -> Table:
        import pyarrow

        documents = _Documents(source.path, source.flag)
        try:
            encoding = detect_encoding(documents, options.encoding, options.legacy)
        except InputError:
            documents.require_one_encoding()
            raise
        names = [str(file.relative_to(documents.file)) for file in documents.files]
        digest = hashlib.sha256()
        texts: list[str] = []
        for file, name in zip(documents.files, names, strict=True):
            data = file.read_bytes()
            digest.update(name.encode() + b"\0" + hashlib.sha256(data).digest())
            try:
                texts.append(data.decode(encoding.name, encoding.errors).strip("\ufeff"))
            except UnicodeDecodeError:
                raise InputError(f"{file}: expected {encoding.name} text, as in the other documents.") from None
        labels = [file.parent.name for file in documents.files]
        arrow = pyarrow.table({"text": texts, "label": labels, "file": names})
        form = f"a folder for each of {len(set(labels))} classes, a file for each text, {encoding.description}"
        return Table(
            source.path,
            digest.hexdigest(),
            arrow,
            form,
            lambda rows: [names[row] for row in rows],
            "file",
            flag=encoding.flag,
            findings=documents.findings(),
        )
