"""A folder with a folder for each class, and a text file for each document."""

from __future__ import annotations

import hashlib
import io
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from classify.data.encoding import detect_encoding
from classify.data.formats.base import Content, Layout, ReadOptions
from classify.data.source import Source
from classify.errors import InputError


class _Documents(Source):
    """All documents of a folder, one behind the other, so that their encoding is found on all of them together."""

    @cached_property
    def files(self) -> list[Path]:
        """The documents, by class and by name."""
        return sorted(self.file.glob("*/*.txt"))

    def open(self) -> BinaryIO:
        """Their bytes, a line feed between two."""
        return io.BytesIO(b"\n".join(file.read_bytes() for file in self.files))


class Documents(Layout):
    """A row a document: its text, its class (the folder's name) and its file."""

    def recognises(self, path: str, options: ReadOptions) -> bool:
        """Where at least two folders in it hold text files."""
        folder = Path(path)
        below = [entry for entry in folder.iterdir() if entry.is_dir()] if folder.is_dir() else []
        return sum(any(entry.glob("*.txt")) for entry in below) > 1

    def read(self, path: str, flag: str, options: ReadOptions) -> tuple[Content, str]:
        """All documents. Raises InputError where one is not text."""
        import pyarrow

        source = _Documents(path, flag)
        encoding = detect_encoding(source, options.encoding)
        names = [str(file.relative_to(source.file)) for file in source.files]
        digest = hashlib.sha256()
        texts: list[str] = []
        for file, name in zip(source.files, names, strict=True):
            data = file.read_bytes()
            digest.update(name.encode() + b"\0" + hashlib.sha256(data).digest())
            try:
                texts.append(data.decode(encoding.name, encoding.errors).strip("\ufeff"))
            except UnicodeDecodeError:
                raise InputError(f"{file}: expected {encoding.title} text, as in the other documents.") from None
        labels = [file.parent.name for file in source.files]
        arrow = pyarrow.table({"text": texts, "label": labels, "file": names})
        form = f"a folder for each of {len(set(labels))} classes, a file for each text, {encoding.words}"
        return Content(
            arrow, form, encoding.flag, lambda rows: [names[row] for row in rows], "file"
        ), digest.hexdigest()
