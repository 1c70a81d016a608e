"""Read data sets of the Hugging Face hub: owner/name, with a configuration owner/name:configuration."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from classify.data.formats.base import Confidence, Format, ReadOptions
from classify.data.formats.columnar import as_table
from classify.data.names import SPLITS, parse_split_name
from classify.data.source import Source
from classify.data.table import Table
from classify.errors import InputError

_NAME = re.compile(r"(?P<name>\w[\w.-]*(/[\w.-]+)?)(:(?P<config>[\w.+-]+))?(\[(?P<split>\w+)\])?")


class Hub(Format):
    """A data set by its name, or one of its splits as name[split]."""

    def sniff(self, source: Source) -> Confidence:
        """Look for such a name, where no file or folder has it."""
        fits = _NAME.fullmatch(source.path)
        if fits is None or Path(source.path).exists():
            return Confidence.NONE
        name = Path(fits["name"])
        could_be = not name.suffix and (len(name.parts) == 1 or not name.parent.exists())
        return Confidence.CERTAIN if could_be else Confidence.NONE

    def splits(self, source: Source) -> dict[str, str]:
        """Return its splits by the split that each is: {"train": "imdb[train]", ...}. Raises InputError."""
        path, flag = source.path, source.flag
        if path.endswith("]"):
            return {"train": path}
        splits = list(_load(path, flag))
        parts = {part: split for split in reversed(splits) if (part := parse_split_name(split)) is not None}
        if len(splits) == 1:
            parts = {0: splits[0]}
        if 0 not in parts:
            raise InputError(
                f"{flag} {path}: expected a split called train. Got {', '.join(splits)} instead; choose one, e.g. "
                f"{flag} {path}[{splits[0]}]."
            )
        return {SPLITS[part]: f"{path}[{split}]" for part, split in parts.items()}

    def find_unused(self, source: Source, used: Collection[str]) -> list[str]:
        if source.path.endswith("]"):
            return []
        named = (f"{source.path}[{split}]" for split in _load(source.path, source.flag))
        return [name for name in named if name not in used]

    def read(self, source: Source, options: ReadOptions) -> Table:
        import pyarrow

        path, flag = source.path, source.flag
        name, _, split = path.removesuffix("]").partition("[")
        splits = _load(name, flag)
        if not split and len(splits) == 1:
            split = next(iter(splits))
        if split not in splits:
            raise InputError(
                f"{flag} {path}: expected one of its splits, as {name}[{next(iter(splits))}]; "
                f"it has: {', '.join(splits)}."
            )
        rows = splits[split]
        digest = hashlib.sha256(f"{path}\0{rows._fingerprint}\0{len(rows)}".encode()).hexdigest()
        try:
            return as_table(path, digest, rows, "a data set of the Hugging Face hub")
        except (pyarrow.ArrowException, ValueError, TypeError) as error:
            raise InputError(f"{flag} {path}: cannot be read ({str(error).splitlines()[0]}).") from None


def _load(path: str, flag: str) -> dict[str, Any]:
    """Load the splits of a data set, from the cache of `datasets` or the hub. Raises InputError."""
    import datasets

    fits = _NAME.fullmatch(path)
    assert fits is not None
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    try:
        loaded = datasets.load_dataset(fits["name"], fits["config"])
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{flag} {path}: no such file, and not available on the Hugging Face hub: {reason}") from None
    return dict(loaded)
