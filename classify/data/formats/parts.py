"""A folder with a file for each part of a data set: train.csv, validation.jsonl, test.parquet."""

from __future__ import annotations

import re
from collections.abc import Container
from pathlib import Path

from classify.data.formats.base import Content, Layout, ReadOptions
from classify.data.names import PART_NAMES, PARTS
from classify.data.source import Source
from classify.errors import InputError


class PartsFolder(Layout):
    """Files, or folders of `datasets`, that are named after parts. `suffixes` are those of files with tables."""

    def __init__(self, suffixes: Container[str]):
        self._suffixes = suffixes

    def recognises(self, path: str, options: ReadOptions) -> bool:
        """Where one of them is for training."""
        return Path(path).is_dir() and bool(self._named(Path(path), PART_NAMES[0]))

    def parts(self, path: str, flag: str) -> dict[str, str]:
        """The file of each part. Raises InputError where there are several for one."""
        parts: dict[str, str] = {}
        for part, words in zip(PARTS, PART_NAMES, strict=True):
            names = self._named(Path(path), words)
            if len(names) > 1:
                raise InputError(f"{flag}: {path} has several files to {_USES[part]} ({', '.join(names)}); name one.")
            if names:
                parts[part] = names[0]
        return parts

    def read(self, path: str, flag: str, options: ReadOptions) -> tuple[Content, str]:
        """Never: it is several tables."""
        names = ", ".join(self.parts(path, flag).values())
        raise InputError(
            f"{flag} {path}: expected one table. Got a folder with a file for each part; name one: {names}."
        )

    def _named(self, folder: Path, words: Container[str]) -> list[str]:
        """What is named after a part."""
        entries = [entry for entry in sorted(folder.iterdir()) if re.split(r"[^a-z]", entry.name.lower())[0] in words]
        return [
            str(entry)
            for entry in entries
            if (entry / "state.json").is_file() or (entry.is_file() and Source(str(entry), "").suffix in self._suffixes)
        ]


_USES = {"train": "train on", "eval": "evaluate", "test": "test"}
