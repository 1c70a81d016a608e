"""Read data sets of the Hugging Face hub: hub:owner/name, with a configuration hub:owner/name:configuration.

The prefix is required: a mistyped path must not be looked up on a server.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Collection, Iterator
from typing import Any

from classify.errors import InputError, disk_refusal
from classify.tables.formats.base import Confidence, Format, ReadOptions
from classify.tables.formats.columnar import as_table
from classify.tables.names import SPLITS, parse_split_name
from classify.tables.source import Source
from classify.tables.table import Table

_PREFIX = r"(hub:|hf://(datasets/)?)"
_NAME = re.compile(r"(?P<name>\w[\w.-]*(/[\w.-]+)?)(:(?P<config>[\w.+-]+))?(\[(?P<split>\w+)\])?")


class Hub(Format):
    """A data set by its name, or one of its splits as name[split]."""

    def sniff(self, source: Source) -> Confidence:
        """Look for the prefix."""
        return Confidence.CERTAIN if re.match(_PREFIX, source.path) else Confidence.NONE

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

    fits = _NAME.fullmatch(re.sub(_PREFIX, "", path, count=1))
    if fits is None:
        raise InputError(
            f"{flag} {path}: expected the name of a data set on the Hugging Face hub, as hub:owner/name, with a "
            "configuration hub:owner/name:configuration."
        )
    try:
        with _quiet():
            return dict(datasets.load_dataset(fits["name"], fits["config"]))
    except (OSError, ValueError, RuntimeError) as error:
        if disk_refusal(error) is not None:
            raise
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{flag} {path}: not available on the Hugging Face hub: {reason}") from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Disable the warnings and progress bars of `datasets` in this block."""
    import datasets

    verbosity, has_bars = datasets.logging.get_verbosity(), datasets.are_progress_bars_disabled() is False
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(verbosity)
        if has_bars:
            datasets.enable_progress_bars()
