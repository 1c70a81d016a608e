"""Read a file with one text per line, and a file with the label of each line."""

from __future__ import annotations

import hashlib
import re

from classify.errors import EXCERPT, InputError
from classify.tables.encoding import Encoding, detect_encoding
from classify.tables.formats.base import Confidence, Format, ReadOptions
from classify.tables.names import LABEL_NAMES, TEXT_NAMES
from classify.tables.source import Source, check_file
from classify.tables.table import Table

_SUFFIXES = (".txt",)
_DELIMITERS = r"[,;\t|]"


class Lines(Format):
    """Two files beside each other, one of them named with --labels."""

    takes = frozenset({"encoding", "header"})

    def sniff(self, source: Source) -> Confidence:
        """Return NONE: --labels alone selects it."""
        return Confidence.NONE

    def read(self, source: Source, options: ReadOptions) -> Table:
        import pyarrow

        assert options.labels is not None
        label_flag = "--labels" if source.flag == "--data" else source.flag.replace("-data", "-labels")
        texts, labels = check_file(source, _SUFFIXES), check_file(Source(options.labels, label_flag), _SUFFIXES)
        encodings = {file.path: detect_encoding(file, options.encoding, options.legacy) for file in (texts, labels)}
        encoding, label_encoding = encodings[texts.path], encodings[labels.path]
        columns = {"text": _lines(texts, encoding), "label": _lines(labels, label_encoding)}
        _check_lines(columns["text"], texts, "text", label_flag)
        _check_lines(columns["label"], labels, "label", label_flag)
        counts = {name: len(values) for name, values in columns.items()}
        if counts["text"] != counts["label"]:
            raise InputError(
                f"{label_flag} {labels.path}: expected a label for each of the {counts['text']} lines of {texts.path}. "
                f"Got {counts['label']} lines instead."
            )
        arrow = pyarrow.table({name: pyarrow.array(values, pyarrow.string()) for name, values in columns.items()})
        first = {name: values[0].strip().lower() for name, values in columns.items()}
        header = first["text"] in TEXT_NAMES and first["label"] in LABEL_NAMES
        header = options.header if options.header is not None else header
        arrow = arrow.slice(int(header))
        # That of labels in ASCII, or in valid UTF-8, is no guess.
        is_other = bool(label_encoding.name != encoding.name or label_encoding.damaged)
        differs = bool(label_encoding.flag) and is_other
        read_as = f" in {label_encoding.description}" if differs else ""
        form = f"one text per line, labels from {labels.path}{read_as}, {encoding.description}"
        form += ", with a header" if header else ""
        digest = hashlib.sha256(f"{texts.sha256}{labels.sha256}".encode()).hexdigest()
        return Table(
            source.path,
            digest,
            arrow,
            form,
            lambda rows: [row + 1 + header for row in rows],
            flag=encoding.flag or label_encoding.flag,
        )


def _check_lines(lines: list[str], source: Source, what: str, label_flag: str) -> None:
    """Raise InputError where the first line names columns of a table."""
    names = {name.strip(" \"'").lower() for name in re.split(_DELIMITERS, lines[0])}
    below = len(lines) > 1 and re.search(_DELIMITERS, lines[1])
    if below and not names.isdisjoint(TEXT_NAMES) and not names.isdisjoint(LABEL_NAMES):
        raise InputError(
            f"{source.flag} {source.path}: expected one {what} per line beside {label_flag}. Got a table with several "
            f"columns instead, e.g. {lines[0][:EXCERPT]!r}; give it as --data without {label_flag}."
        )


def _lines(source: Source, encoding: Encoding) -> list[str]:
    """Split a file at LF, CRLF and CR; other breaks are part of the text."""
    with encoding.text(source) as stream:
        text = stream.read().removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return text.removesuffix("\n").split("\n")
