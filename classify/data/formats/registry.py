"""The forms there are, and which of them a file is of: by the end of its name, else by how it begins."""

from __future__ import annotations

import re

from classify.data import archives
from classify.data.encoding import decoded_start
from classify.data.formats.base import Format, Layout, ReadOptions
from classify.data.formats.columnar import Arrow, Parquet, SavedDataset
from classify.data.formats.delimited import Delimited
from classify.data.formats.documents import Documents
from classify.data.formats.excel import Excel
from classify.data.formats.fasttext import FastText
from classify.data.formats.hub import Hub
from classify.data.formats.lines import Lines
from classify.data.formats.parts import PartsFolder
from classify.data.formats.records import JSON, JSONLines
from classify.data.source import Source

_BINARY = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f]")

DELIMITED = Delimited()
FORMATS: tuple[Format, ...] = (JSONLines(), JSON(), Parquet(), Arrow(), Excel(), FastText(), DELIMITED)
SUFFIXES = (*(suffix for form in FORMATS for suffix in form.suffixes), *archives.SUFFIXES)

LAYOUTS: tuple[Layout, ...] = (Lines(), PartsFolder(SUFFIXES), SavedDataset(), Documents(), Hub())


def find_layout(path: str, options: ReadOptions) -> Layout | None:
    """The layout of what a person named; None of a file."""
    return next((layout for layout in LAYOUTS if layout.recognises(path, options)), None)


def find_format(source: Source) -> Format:
    """The form that a file begins like, whatever its name says; else the one of its name, else delimited text."""
    start = source.start()
    named = next((form for form in FORMATS if source.suffix in form.suffixes), DELIMITED)
    if named.recognises(start):
        return named
    # Programs export text under the names of workbooks.
    rest = named if named.is_text or _BINARY.search(decoded_start(start)) else DELIMITED
    return next((form for form in FORMATS if form.recognises(start)), rest)
