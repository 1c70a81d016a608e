"""Read a folder with a folder for each class, and a text file for each document."""

from __future__ import annotations

import hashlib
import io
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from classify.data.encoding import detect_encoding
from classify.data.formats.base import Confidence, Format, ReadOptions
from classify.data.source import Source
from classify.data.table import Table
from classify.errors import InputError

# Folders of documents without a label, as in the movie reviews of Maas et al., 2011.
_UNLABELLED = ("unsup", "unlabeled", "unlabelled")


class _Documents(Source):
    """All documents of a folder, joined, so that their encoding is detected on all of them together."""

    @cached_property
    def files(self) -> list[Path]:
        """Return the documents, by class and by name."""
        return sorted(self.file.glob("*/*.txt"))

    def open(self) -> BinaryIO:
        """Open their bytes, joined by line feeds."""
        return io.BytesIO(b"\n".join(file.read_bytes() for file in self.files))


def holds_classes(folder: Path) -> bool:
    """Return whether a folder has at least two folders that hold text files."""
    below = [entry for entry in folder.iterdir() if entry.is_dir()] if folder.is_dir() else []
    return sum(any(entry.glob("*.txt")) for entry in below) > 1


class Documents(Format):
    """A row per document: its text, its class (the folder's name) and its file."""

    def sniff(self, source: Source, options: ReadOptions) -> Confidence:
        """Look for at least two folders that hold text files."""
        return Confidence.CERTAIN if holds_classes(Path(source.path)) else Confidence.NONE

    def read(self, source: Source, options: ReadOptions) -> Table:
        """Read all documents. Raises InputError where one is not text."""
        import pyarrow

        documents = _Documents(source.path, source.flag)
        encoding = detect_encoding(documents, options.encoding)
        names = [str(file.relative_to(documents.file)) for file in documents.files]
        digest = hashlib.sha256()
        texts: list[str] = []
        for file, name in zip(documents.files, names, strict=True):
            data = file.read_bytes()
            digest.update(name.encode() + b"\0" + hashlib.sha256(data).digest())
            try:
                texts.append(data.decode(encoding.name, encoding.errors).strip("\ufeff"))
            except UnicodeDecodeError:
                raise InputError(f"{file}: expected {encoding.title} text, as in the other documents.") from None
        labels = ["" if (name := file.parent.name).lower() in _UNLABELLED else name for file in documents.files]
        others = [file for file in sorted(documents.file.glob("*/*")) if file.is_file() and file.suffix != ".txt"]
        ignored = f"{len(others)} files that are not .txt are not read, e.g. {others[0]}" if others else ""
        arrow = pyarrow.table({"text": texts, "label": labels, "file": names})
        form = f"a folder for each of {len({*labels} - {''})} classes, a file for each text, {encoding.words}"
        return Table(
            source.path,
            digest.hexdigest(),
            arrow,
            form,
            lambda rows: [names[row] for row in rows],
            "file",
            flag=encoding.flag,
            notes=(ignored,) if ignored else (),
        )
