"""Tables as most tools export them, at ordinary size: larger than the sample by which a form is chosen."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from classify.tables.formats.registry import read_table
from tests.support.tiny import table_rows


def sentences(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Return texts of about 60 letters, some with commas, semicolons and quotes, each with one of three classes."""
    draw = random.Random(seed)
    endings = ("", ", please; now", ' and "soon"', ", thanks")
    return [(f"{text} {number}{draw.choice(endings)}", label) for number, (text, label) in enumerate(table_rows(count))]


def quoted(*cells: str) -> list[str]:
    return [f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in cells]


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
def test_every_field_in_quotes(tmp_path: Path, delimiter: str) -> None:
    """600 KB, so that the sample ends in one of the fields."""
    path, rows = tmp_path / "my.csv", sentences(9_000)
    path.write_text("".join(delimiter.join(quoted(*row)) + "\n" for row in [("text", "label"), *rows]))
    assert path.stat().st_size > 500_000
    table = read_table(str(path))
    assert table.columns == ["text", "label"]
    assert list(zip(table.column("text"), table.column("label"), strict=True)) == rows


@pytest.mark.parametrize("text_first", [True, False])
def test_english_with_a_few_other_bytes(tmp_path: Path, text_first: bool) -> None:
    """As news about finance: thousands of English rows, among them names that another program has already garbled."""
    rows = [(text.replace('"', ""), label) for text, label in sentences(4_800)]
    odd = [
        "Componenta holds D+\u00c2kt+_m+_l++k",
        "Sales of M\u00e4kel\u00e4 rose to \u00d71.5",
        "No change at 5 \u00b4",
    ]
    rows[100:100] = [(text, "neutral") for text in odd]
    path = tmp_path / "all-data.csv"
    lines = [",".join(quoted(*(row if text_first else row[::-1]))) for row in rows]
    path.write_bytes("\r".join([*lines, ""]).encode("latin-1"))
    table = read_table(str(path))
    assert table.reading["encoding"] == "cp1252"
    assert len(table) == len(rows)
    assert table.column(table.columns[1 - text_first])[100:103] == odd
