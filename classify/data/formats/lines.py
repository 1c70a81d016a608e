"""A file of texts, a line each, and a file with the label of each line."""

from __future__ import annotations

from classify.data.encoding import detect_encoding
from classify.data.formats.base import Content, ReadOptions
from classify.data.source import Source
from classify.errors import InputError


def label_flag(flag: str) -> str:
    """The flag of the labels that go with a file of texts: --labels, --eval-labels, --test-labels."""
    return "--labels" if flag == "--data" else flag.replace("-data", "-labels")


def read_lines(texts: Source, labels: Source, options: ReadOptions) -> Content:
    """A row a line. Raises InputError where one file has more lines than the other."""
    import pyarrow

    encoding = detect_encoding(texts, options.encoding)
    columns = {"text": _lines(texts, options.encoding), "label": _lines(labels, options.encoding)}
    counts = {name: len(values) for name, values in columns.items()}
    if counts["text"] != counts["label"]:
        raise InputError(
            f"{labels.flag} {labels.path}: expected a label for each of the {counts['text']} lines of {texts.path}. "
            f"Got {counts['label']} lines instead."
        )
    arrow = pyarrow.table({name: pyarrow.array(values, pyarrow.string()) for name, values in columns.items()})
    form = f"a text a line, labels from {labels.path}, {encoding.words}"
    return Content(arrow, form, encoding.flag, lambda rows: [row + 1 for row in rows])


def _lines(source: Source, encoding: str | None) -> list[str]:
    """Lines that end in LF, CRLF or CR; other breaks are part of a text."""
    with detect_encoding(source, encoding).text(source) as stream:
        text = stream.read().removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return text.removesuffix("\n").split("\n")
