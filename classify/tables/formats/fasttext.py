"""Read fastText files: one text per line after its labels, each written as __label__NAME."""

from __future__ import annotations

import re

from classify.errors import InputError
from classify.tables.encoding import decode_start, detect_encoding
from classify.tables.formats.base import FileFormat, ReadOptions
from classify.tables.source import Source
from classify.tables.table import Table

_PREFIX = "__label__"
# Labels at the beginning of a line (https://fasttext.cc/docs/en/supervised-tutorial.html).
_LABELS = re.compile(rf"(?:{_PREFIX}\S+(?:\s+|$))*")


class FastText(FileFormat):
    """One text per line; several labels of a line are joined by a bar."""

    suffixes = (".ft",)
    takes = frozenset({"encoding"})

    def matches(self, start: bytes) -> bool:
        """Return whether the first line begins with a label."""
        return decode_start(start).lstrip().startswith(_PREFIX)

    def read(self, source: Source, options: ReadOptions) -> Table:
        import pyarrow

        encoding = detect_encoding(source, options.encoding, options.legacy)
        numbers: list[int] = []
        texts: list[str] = []
        labels: list[str] = []
        with encoding.text(source) as stream:
            for number, line in enumerate(stream, start=1):
                line = line.strip("\ufeff \t\r\n")
                prefix = _LABELS.match(line)
                assert prefix is not None
                if line:
                    numbers.append(number)
                    texts.append(line[prefix.end() :])
                    labels.append("|".join(filter(None, (label.strip(" \t,;|") for label in prefix[0].split(_PREFIX)))))
        missing = [number for number, label in zip(numbers, labels, strict=True) if not label]
        if missing:
            raise InputError(
                f"{source.path} line {missing[0]}: expected {_PREFIX}NAME before the text, as in line {numbers[0]}. "
                f"Got none in {len(missing)} of {len(numbers)} lines instead."
            )
        arrow = pyarrow.table({"text": pyarrow.array(texts, pyarrow.string()), "label": labels})
        form = f"fastText, {_PREFIX}NAME before each text, {encoding.description}"
        return Table(
            source.path, source.sha256, arrow, form, lambda rows: [numbers[row] for row in rows], flag=encoding.flag
        )
