"""Tables as most tools export them, at ordinary size: larger than the sample by which a dialect is chosen."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import openpyxl
import pytest

from classify.tables.csv_file import find_dialect
from classify.tables.read import read_table
from classify.tables.source import HEAD_BYTES, ReadOptions
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
