"""Tables of several files: splits in a folder, a folder per class, lists and patterns, data sets of the hub."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from classify.errors import InputError, disk_refusal, list_some
from classify.files import split_paths
from classify.findings import note
from classify.tables.arrow_file import from_arrow
from classify.tables.options import ReadOptions
from classify.tables.rules import SPLITS, find_split
from classify.tables.source import Source
from classify.tables.table import Table, to_arrow
from classify.tables.text import find_encoding

_HUB = "hub:"
_HUB_NAME = re.compile(r"(?P<name>\w[\w.-]*(/[\w.-]+)?)(:(?P<config>[\w.+-]+))?(\[(?P<split>\w+)\])?")
# Folders of documents without a label, as in the movie reviews of Maas et al., 2011.
_UNLABELLED = ("unsup", "unlabeled", "unlabelled")

Reader = Callable[[str, str, ReadOptions], Table]


def list_files(paths: str) -> list[str]:
    """The files of a path, of a list with commas, or that match a pattern; the path itself where it is one."""
    found = [name for part in split_paths(paths) for name in _match(part) or [part]]
    return found or [paths]


def _match(pattern: str) -> list[str]:
    """The files that match a pattern, by name, without hidden ones and those of no content, such as _SUCCESS."""
    if not glob.has_magic(pattern) or Path(pattern).exists():
        return []
    files = sorted(Path(name) for name in glob.glob(pattern, recursive=True))
    return [str(file) for file in files if file.is_file() and file.name[0] not in "._~" and file.stat().st_size]


def read_several(names: Sequence[str], path: str, flag: str, options: ReadOptions, read: Reader) -> Table:
    """Read files as one table, columns matched by name. Raises InputError where one lacks a column of the first."""
    tables: list[Table] = []
    for name in names:
        table = read(name, flag, options)
        if not tables and table.has_names:
            options = replace(options, columns=tuple(table.columns))
        tables.append(table)
    first, findings = tables[0], [finding for table in tables for finding in table.findings]
    added: dict[str, None] = {}
    for table in tables[1:]:
        lacked = [name for name in first.columns if not table.has_column(name)]
        if lacked:
            raise InputError(
                f"{path}: {table.path} has no column {lacked[0]!r}, which {first.path} has; it has: "
                f"{list_some(table.columns, show=repr)}. Rename its columns, or put the table with fewer columns first."
            )
        added |= dict.fromkeys(name for name in table.columns if not first.has_column(name))
    if added:
        findings.append(
            note(f"left out, since {first.path} does not have them: columns {list_some(list(added), show=repr)}")
        )
    arrow = pyarrow.concat_tables([table.arrow.select(first.columns) for table in tables])
    places = [place for table in tables for place in table.places]
    return replace(
        first,
        path=path,
        sha256=hashlib.sha256("".join(table.sha256 for table in tables).encode()).hexdigest(),
        arrow=arrow,
        form=f"{len(tables)} files: {first.form}",
        places=np.array(places, dtype=np.int64) if first.unit != "file" else places,
        skipped=sum(table.skipped for table in tables),
        findings=tuple(findings),
        files=tuple((table.path, len(table)) for table in tables),
        original=None,
        _hashes={},
        _encoded={},
    )


def find_splits(path: str, flag: str, suffixes: Sequence[str]) -> dict[str, str]:
    """The path of each split, by "train", "eval", "test"; {} where a path is one table.

    Of a folder: files named after splits, several of one split joined, or folders of documents. Of the hub: its splits.
    Raises InputError for a data set without a training split.
    """
    if path.startswith(_HUB):
        return _hub_splits(path, flag)
    folder = Path(path)
    if (folder / "README.md").is_file() and (folder / "data").is_dir():  # a repository of the hub
        folder /= "data"
    if not folder.is_dir():
        return {}
    tables: dict[str, list[str]] = {}
    documents: dict[str, list[str]] = {}
    for entry in sorted(folder.iterdir()):
        number = find_split(entry.name.partition(".")[0])
        is_table = entry.is_file() and Source(str(entry)).suffix in suffixes
        if number is not None and (is_table or holds_classes(entry)):
            (tables if is_table else documents).setdefault(SPLITS[number], []).append(str(entry))
    found = tables if "train" in tables else documents
    return {split: ",".join(files) for split, files in found.items()} if "train" in found else {}


def holds_classes(folder: Path) -> bool:
    """Whether a folder has at least two folders that hold text files."""
    entries = folder.iterdir() if folder.is_dir() else ()
    below = [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    return sum(any(map(_is_document, entry.glob("[!.]*"))) for entry in below) > 1


def _is_document(file: Path) -> bool:
    """Whether a file is a text: a .txt file, or one whose name is a number, as in 20 Newsgroups."""
    return file.is_file() and (file.suffix == ".txt" or file.name.isdecimal())


def read_documents(source: Source, options: ReadOptions) -> Table:
    """Read a folder with a folder of texts for each class: columns text, label and file."""
    folder = Path(source.path)
    classes = [entry for entry in sorted(folder.iterdir()) if entry.is_dir() and entry.name[0] != "."]
    classes = [entry for entry in classes if entry.name.lower() not in _UNLABELLED]
    files = [
        file for entry in classes for file in sorted(entry.iterdir()) if _is_document(file) and file.name[0] != "."
    ]
    contents = [file.read_bytes() for file in files]
    encoding = find_encoding(b"\n".join(contents), options.encoding, source.path)
    texts = []
    for file, content in zip(files, contents, strict=True):
        try:
            texts.append(content.decode(encoding.name).strip("\ufeff"))
        except UnicodeError:
            raise InputError(f"{file}: not {encoding.shown}, as the other documents are; save it so.") from None
    names = [str(file.relative_to(folder)) for file in files]
    digest = hashlib.sha256(b"".join(hashlib.sha256(content).digest() for content in contents))
    columns = {"text": texts, "label": [file.parent.name for file in files], "file": names}
    form = f"a folder for each of {len(set(columns['label']))} classes, {encoding.shown}"
    table = Table(
        source.path,
        digest.hexdigest(),
        pyarrow.table({name: to_arrow(values) for name, values in columns.items()}),
        form,
        names,
        "file",
        flag="" if encoding.certain else "--encoding",
    )
    others = sum(1 for file in folder.rglob("*") if file.is_file() and file.name[0] != ".") - len(files)
    return (
        table.add_note(f"{others} other files in it are not read, such as those not named *.txt") if others else table
    )


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
        with _quiet(datasets):
            return dict(datasets.load_dataset(fits["name"], fits["config"]))
    except (OSError, ValueError, RuntimeError) as error:
        if disk_refusal(error) is not None:
            raise
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{flag} {path}: not available on the Hugging Face hub: {reason}") from None


@contextlib.contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Without the warnings and progress bars of `datasets` in this block."""
    verbosity, has_bars = datasets.logging.get_verbosity(), not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(verbosity)
        if has_bars:
            datasets.enable_progress_bars()
