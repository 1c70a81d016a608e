"""Read a folder with a file, or a folder of documents, for each split: train.csv, test.parquet; train/pos, test/pos."""

from __future__ import annotations

import re
from collections.abc import Collection, Container
from pathlib import Path

from classify.errors import InputError
from classify.tables import archives
from classify.tables.formats.base import Confidence, Format, ReadOptions
from classify.tables.formats.documents import holds_classes
from classify.tables.names import SPLIT_WORDS, SPLITS
from classify.tables.source import Source
from classify.tables.table import Table

# Of files beside the tables that mostly describe these, or from which these were unpacked.
_NO_TABLES = (".txt", ".json", *archives.SUFFIXES)


class SplitsFolder(Format):
    """Files, or folders of `datasets` or of documents, named after splits.

    `table_suffixes` are those of files with tables.
    """

    takes = frozenset({"encoding", "delimiter", "quote", "header", "skip_lines", "sheet"})

    def __init__(self, table_suffixes: Container[str]):
        self._suffixes = table_suffixes

    def sniff(self, source: Source) -> Confidence:
        folder = _folder(source)
        train = folder.is_dir() and self._named(folder, SPLIT_WORDS[0])
        return Confidence.CERTAIN if train else Confidence.NONE

    def splits(self, source: Source) -> dict[str, str]:
        splits: dict[str, str] = {}
        for split, words in zip(SPLITS, SPLIT_WORDS, strict=True):
            names = self._named(_folder(source), words)
            if len(names) > 1:
                raise InputError(
                    f"{source.flag}: {source.path} has several files for one split ({', '.join(names)}); keep one of "
                    "them, or give single files with --data, --eval-data and --test-data."
                )
            if names:
                splits[split] = names[0]
        return splits

    def find_unused(self, source: Source, used: Collection[str]) -> list[str]:
        train = Source(self.splits(source)["train"], "")
        left_out = {*_NO_TABLES} - {train.suffix}
        read = set(map(Path, used))

        def holds_table(entry: Path) -> bool:
            suffix = Source(str(entry), "").suffix
            is_table = entry.is_file() and suffix in self._suffixes and suffix not in left_out
            return is_table or (entry / "state.json").is_file() or holds_classes(entry)

        entries = sorted(_folder(source).iterdir())
        return [
            entry.name
            for entry in entries
            if entry not in read and not entry.name.startswith(".") and holds_table(entry)
        ]

    def read(self, source: Source, options: ReadOptions) -> Table:
        """Raise InputError: it holds several tables."""
        names = ", ".join(self.splits(source).values())
        raise InputError(
            f"{source.flag} {source.path}: expected one table. Got a folder with a file for each split; name one: "
            f"{names}."
        )

    def _named(self, folder: Path, words: Container[str]) -> list[str]:
        entries = [entry for entry in sorted(folder.iterdir()) if _is_named(entry, words)]
        tables = [
            str(entry)
            for entry in entries
            if (entry / "state.json").is_file() or (entry.is_file() and Source(str(entry), "").suffix in self._suffixes)
        ]
        return tables or [str(entry) for entry in entries if holds_classes(entry)]


def _folder(source: Source) -> Path:
    """Return the folder with the tables: the one named, or `data` in a repository of the Hugging Face hub."""
    folder = Path(source.path)
    is_repository = (folder / "README.md").is_file() and (folder / "data").is_dir()
    return folder / "data" if is_repository else folder


def _is_named(entry: Path, words: Container[str]) -> bool:
    """Return whether a name begins or ends with one of some words, as train-00.csv and reviews_train.csv do."""
    parts = list(filter(None, re.split(r"[\W\d_]+", entry.name.lower().partition(".")[0])))
    return bool(parts) and (parts[0] in words or parts[-1] in words)
