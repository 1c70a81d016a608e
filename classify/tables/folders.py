"""Tables of several files: splits in a folder, a folder per class, lists and patterns, data sets of the hub."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow

from classify.errors import InputError, disk_refusal
from classify.tables.arrow_file import from_arrow
from classify.tables.rules import SPLITS, find_split
from classify.tables.source import ReadOptions, Source
from classify.tables.table import Table, to_arrow
from classify.tables.text import find_encoding

_HUB = "hub:"
_HUB_NAME = re.compile(r"(?P<name>\w[\w.-]*(/[\w.-]+)?)(:(?P<config>[\w.+-]+))?(\[(?P<split>\w+)\])?")
# Folders of documents without a label, as in the movie reviews of Maas et al., 2011.
_UNLABELLED = ("unsup", "unlabeled", "unlabelled")


def find_splits(path: str, flag: str, suffixes: Sequence[str]) -> dict[str, str]:
    """The path of each split, by "train", "eval", "test"; {} where a path is one table.

    Of a folder: files named after splits, several of one split joined, or folders of documents. Of the hub: its splits.
    Raises InputError for a data set without a training split.
    """
    if is_hub(path):
        return _hub_splits(path, flag)
    tables: dict[str, list[str]] = {}
    documents: dict[str, list[str]] = {}
    for entry in sorted(Path(path).iterdir()) if Path(path).is_dir() else ():
        number = find_split(entry.name.partition(".")[0])
        is_table = entry.is_file() and Source(str(entry)).suffix in suffixes
        if number is not None and (is_table or holds_classes(entry)):
            (tables if is_table else documents).setdefault(SPLITS[number], []).append(str(entry))
    found = tables if "train" in tables else documents
    return {split: ",".join(files) for split, files in found.items()} if "train" in found else {}


def holds_classes(folder: Path) -> bool:
    """Whether a folder has at least two folders that hold text files."""
    return len({file.parent for file in _documents(folder)}) > 1


def _documents(folder: Path) -> list[Path]:
    """The texts in the folders of a folder: .txt files, or those whose name is a number, as in 20 Newsgroups."""
    classes = [entry for entry in sorted(folder.iterdir()) if entry.is_dir()] if folder.is_dir() else []
    classes = [entry for entry in classes if entry.name[0] != "." and entry.name.lower() not in _UNLABELLED]
    files = (file for entry in classes for file in sorted(entry.glob("[!.]*")) if file.is_file())
    return [file for file in files if file.suffix == ".txt" or file.name.isdecimal()]


def read_documents(source: Source, options: ReadOptions) -> Table:
    """Read a folder with a folder of texts for each class: columns text, label and file."""
    folder = Path(source.path)
    files = _documents(folder)
    contents = [file.read_bytes() for file in files]
    encoding = find_encoding(b"\n".join(contents), options, source.path)
    texts = [encoding.decode(content, str(file)) for file, content in zip(files, contents, strict=True)]
    labels, names = [file.parent.name for file in files], [str(file.relative_to(folder)) for file in files]
    columns = {"text": to_arrow(texts), "label": to_arrow(labels), "file": to_arrow(names)}
    digest = hashlib.sha256(b"".join(hashlib.sha256(content).digest() for content in contents)).hexdigest()
    form = f"a folder for each of {len(set(labels))} classes, {encoding.shown}"
    flag = "" if encoding.certain else "--encoding"
    table = Table(source.path, digest, pyarrow.table(columns), form, names, "file", flag)
    others = sum(file.is_file() and file.name[0] != "." for file in folder.rglob("*")) - len(files)
    if others:
        table = table.add_note(f"{others} other files in it are not read, such as those not named *.txt")
    return table


def is_hub(path: str) -> bool:
    return path.startswith(_HUB)


def _hub_splits(path: str, flag: str) -> dict[str, str]:
    if path.endswith("]"):
        return {"train": path}
    names = list(_load_hub(path, flag))
    parts = {number: name for name in reversed(names) if (number := find_split(name)) is not None}
    parts = {0: names[0]} if len(names) == 1 else parts
    if 0 not in parts:
        raise InputError(
            f"{flag} {path}: expected a split called train. Got {', '.join(names)} instead; choose one, e.g. "
            f"{flag} {path}[{names[0]}]."
        )
    return {SPLITS[number]: f"{path}[{name}]" for number, name in parts.items()}


def read_hub(source: Source, options: ReadOptions) -> Table:
    """Read one split of a data set of the hub, through `datasets`."""
    name, _, split = source.path.removesuffix("]").partition("[")
    splits = _load_hub(name, source.flag)
    split = split or next(iter(splits))
    if split not in splits:
        raise InputError(f"{source.flag} {source.path}: no such split; it has: {', '.join(splits)}.")
    rows = splits[split]
    typed = rows.with_format("arrow")[:].replace_schema_metadata(rows.features.arrow_schema.metadata)
    digest = hashlib.sha256(f"{source.path}\0{rows._fingerprint}\0{len(rows)}".encode()).hexdigest()
    return from_arrow(typed, source.path, digest, "a data set of the Hugging Face hub")


@functools.cache
def _load_hub(path: str, flag: str) -> dict[str, Any]:
    """Load the splits of a data set, from the cache of `datasets` or the hub. Raises InputError."""
    import datasets  # a second, which other tables need not wait for

    fits = _HUB_NAME.fullmatch(path.removeprefix(_HUB))
    if fits is None:
        raise InputError(
            f"{flag} {path}: expected the name of a data set on the Hugging Face hub, as hub:owner/name, with a "
            "configuration hub:owner/name:configuration."
        )
    try:
        datasets.disable_progress_bars()
        datasets.logging.set_verbosity_error()
        return dict(datasets.load_dataset(fits["name"], fits["config"]))
    except (OSError, ValueError, RuntimeError) as error:
        if disk_refusal(error) is not None:
            raise
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{flag} {path}: not available on the Hugging Face hub: {reason}") from None
