"""Tables as most tools export them, at ordinary size: larger than the sample by which a dialect is chosen."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import openpyxl
import pytest

from classify.tables.csv_file import find_dialect
from classify.tables.options import ReadOptions
from classify.tables.read import read_table
from classify.tables.source import HEAD_BYTES
from tests.support.tiny import table_rows

ROWS = 22_000


def sentences(count: int = ROWS, seed: int = 0) -> list[tuple[str, str]]:
    """Texts of about 60 letters, some with commas, semicolons and quotes, each with one of three classes."""
    draw = random.Random(seed)
    endings = ("", ", please; now", ' and "soon"', ", thanks", "\tnow | later")
    return [(f"{text} {number}{draw.choice(endings)}", label) for number, (text, label) in enumerate(table_rows(count))]


def quoted(*cells: str, escape: str = '"') -> list[str]:
    return ['"' + cell.replace('"', escape + '"') + '"' for cell in cells]


def check(path: Path, rows: list[tuple[str, str]]) -> None:
    table = read_table(str(path))
    assert table.columns == ["text", "label"]
    assert list(zip(table.column("text"), table.column("label"), strict=True)) == rows


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
def test_every_field_in_quotes(tmp_path: Path, delimiter: str) -> None:
    path, rows = tmp_path / "my.csv", sentences()
    path.write_text("".join(delimiter.join(quoted(*row)) + "\n" for row in [("text", "label"), *rows]))
    assert path.stat().st_size > HEAD_BYTES
    check(path, rows)


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
def test_texts_alone_in_quotes_with_newlines(tmp_path: Path, delimiter: str) -> None:
    path, rows = tmp_path / "my.csv", [(text.replace(", ", "\n"), label) for text, label in sentences()]
    lines = (f"{quoted(text)[0]}{delimiter}{label}\n" for text, label in rows)
    path.write_text(f"text{delimiter}label\n{''.join(lines)}")
    check(path, rows)


def test_quotes_escaped_by_backslashes(tmp_path: Path) -> None:
    path, rows = tmp_path / "my.csv", sentences()
    path.write_text("".join(",".join(quoted(*row, escape="\\")) + "\n" for row in [("text", "label"), *rows]))
    check(path, rows)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252", "gb18030"])
def test_other_encodings_and_line_ends(tmp_path: Path, encoding: str) -> None:
    more = " 这个产品的质量很好我很喜欢" if encoding == "gb18030" else " café à Malmö"
    path = tmp_path / "my.csv"
    rows = [(text + more, label) for text, label in sentences()]
    lines = "".join(",".join(quoted(*row)) + "\r\n" for row in [("text", "label"), *rows])
    path.write_bytes(lines.encode(encoding))
    check(path, rows)


def test_an_older_encoding_that_shows_after_the_first_mebibyte(tmp_path: Path) -> None:
    path, rows = tmp_path / "my.csv", [*sentences(), ("Grüße aus Köln, danke", "card")]
    path.write_bytes("".join(",".join(quoted(*row)) + "\n" for row in [("text", "label"), *rows]).encode("cp1252"))
    check(path, rows)


def test_pandas_index_and_a_long_text(tmp_path: Path) -> None:
    long = "a long word " * 170_000
    path, rows = tmp_path / "my.csv", [*sentences(5_000), (long, "card")]
    lines = (f"{number},{quoted(text)[0]},{label}\n" for number, (text, label) in enumerate(rows))
    path.write_text(f",text,label\n{''.join(lines)}")
    table = read_table(str(path))
    assert table.columns == ["unnamed_1", "text", "label"]
    assert table.column("text")[-1] == long


def test_a_workbook_of_5000_rows(tmp_path: Path) -> None:
    book, rows = openpyxl.Workbook(write_only=True), sentences(5_000)
    sheet = book.create_sheet("data")
    for row in [("text", "label"), *rows]:
        sheet.append(row)
    book.save(tmp_path / "my.xlsx")
    check(tmp_path / "my.xlsx", rows)


@pytest.mark.parametrize(
    "dump",
    [
        lambda records: json.dumps(records, indent=1),
        lambda records: "\n".join(map(json.dumps, records)),
        lambda records: json.dumps({"version": 1, "data": records}),
        lambda records: json.dumps({name: [record[name] for record in records] for name in records[0]}),
    ],
    ids=["list", "lines", "under one key", "columns"],
)
def test_9000_records_of_json(tmp_path: Path, dump: Callable[[list[dict[str, str]]], str]) -> None:
    rows = sentences(9_000)
    (tmp_path / "my.json").write_text(dump([{"text": text, "label": label} for text, label in rows]))
    check(tmp_path / "my.json", rows)


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
def test_the_dialect_does_not_depend_on_where_the_sample_ends(delimiter: str) -> None:
    """At each offset of some rows, inside a quoted field as well."""
    rows = sentences(60)
    text = "".join(delimiter.join(quoted(*row)) + "\n" for row in [("text", "label"), *rows])
    whole = find_dialect(text, ReadOptions())
    assert (whole.delimiter, whole.quote) == (delimiter, '"')
    assert {find_dialect(text[:end], ReadOptions()) for end in range(len(text) - 300, len(text))} == {whole}


@pytest.mark.parametrize("text_first", [True, False])
def test_english_with_a_few_other_bytes(tmp_path: Path, text_first: bool) -> None:
    """As news about finance: thousands of English rows, among them names that another program has already garbled."""
    rows = [(text.replace('"', ""), label) for text, label in sentences(4_800)]
    odd = ["Componenta holds D+\u00c2kt+_m+_l++k", "Sales of M\u00e4kel\u00e4 rose to \u00d71.5", "No change \u00b4"]
    rows[100:100] = [(text, "neutral") for text in odd]
    path = tmp_path / "all-data.csv"
    lines = [",".join(quoted(*(row if text_first else row[::-1]))) for row in rows]
    path.write_bytes("\r".join([*lines, ""]).encode("latin-1"))
    table = read_table(str(path))
    assert table.reading["encoding"] == "cp1252"
    assert len(table) == len(rows)
    assert table.column(table.columns[1 - text_first])[100:103] == odd
