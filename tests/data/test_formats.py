"""JSON, Parquet, Excel and folders give the rows that delimited text gives, or say what they lack."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow
import pyarrow.parquet
import pytest

from classify.config.schema import DataConfig
from classify.data.reading import read_tables
from classify.errors import InputError
from classify.tables.read import read_table
from classify.tables.source import QuestionError, ReadOptions
from tests.support.tiny import table_rows, write_table

ROWS = table_rows(30)


def dump(folder: Path, content: Any, name: str = "my.json") -> str:
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return str(folder / name)


def test_nested_records_lists_of_objects_and_missing_keys(tmp_path: Path) -> None:
    """Keys of objects are joined by dots; a list of objects is a list per key, and loses none of them."""
    records = [
        {"data": {"text": "one"}, "labels": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}], "n": 1.0},
        {"data": {"text": "two"}, "labels": [{"id": 2, "name": "b"}], "ok": True},
    ]
    table = read_table(dump(tmp_path, records))
    assert table.columns == ["data.text", "labels.id", "labels.name", "n", "ok"]
    assert table.column("labels.name") == ['["a", "b"]', '["b"]']
    assert (table.column("n"), table.column("ok")) == (["1.0", ""], ["", "true"])
    assert table.describe_rows([1]).endswith("my.json record 2")


def test_a_key_with_objects_in_some_records_stays_as_it_is(tmp_path: Path) -> None:
    records = [{"text": "one", "topic": "a"}, {"text": "two", "topic": {"choices": ["a", "b"]}}]
    assert read_table(dump(tmp_path, records)).column("topic") == ["a", '{"choices": ["a", "b"]}']


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a"}\n{"text": "b"}\nno json\n', r"expected one JSON object per line.*line 3"),
        ('{"text": "a"},\n{"text": "b"}\n', "not JSON .*may not have commas between their lines"),
        ('{"train": [{"a": 1}], "test": [{"a": 2}]}', "expected a list of objects"),
        ("[1, 2, 3]", "expected a list of objects"),
        ("[" * 100_000, "nested too deeply|not JSON"),
    ],
)
def test_json_that_is_no_table(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_table(dump(tmp_path, content))


def test_one_record_is_a_row(tmp_path: Path) -> None:
    for content in ('{"text": "a", "n": 1}\n', '[{"text": "a", "n": 1}]'):
        table = read_table(dump(tmp_path, content, "my.jsonl"))
        assert [table.column(name) for name in ("text", "n")] == [["a"], ["1"]]


def test_lines_that_are_no_objects_can_be_skipped(tmp_path: Path) -> None:
    path = dump(tmp_path, '{"text": "a"}\n{"text": "b"}\n[1]\n{"text": "c"}\n', "my.jsonl")
    table = read_table(path, options=ReadOptions(skips_bad_rows=True))
    assert (table.column("text"), table.skipped) == (["a", "b", "c"], 1)
    assert table.describe_rows([2]).endswith("line 4")


def test_types_of_parquet_are_texts(tmp_path: Path) -> None:
    features = {"info": {"features": {"label": {"_type": "ClassLabel", "names": ["neg", "pos"]}}}}
    columns = {
        "text": pyarrow.array(["a", None]).dictionary_encode(), "label": [1, -1], "n": [1.0, None],
        "day": [datetime.date(2024, 5, 1), None], "tags": [["x", "y"], []], "who": [{"name": "A"}, None],
        "image": [b"\xff\xd8\xff", b"\x00"],
    }  # fmt: skip
    table = pyarrow.table(columns).replace_schema_metadata({"huggingface": json.dumps(features)})
    pyarrow.parquet.write_table(table, tmp_path / "my.parquet")
    read = read_table(str(tmp_path / "my.parquet"))
    cells = {name: read.column(name) for name in read.columns}
    assert cells == {
        "text": ["a", ""], "label": ["pos", ""], "n": ["1.0", ""], "day": ["2024-05-01", ""],
        "tags": ['["x", "y"]', "[]"], "who.name": ["A", ""],
    }  # fmt: skip
    assert "columns of bytes are left out: image" in read.findings[0].text
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "my.parquet").read_bytes()[:200])
    with pytest.raises(InputError, match=r"not a readable Parquet file"):
        read_table(str(tmp_path / "cut.parquet"))


def book(path: Path, sheets: dict[str, list[list[Any]]], hidden: str = "") -> str:
    made = openpyxl.Workbook()
    made.remove(made.active)  # type: ignore[arg-type]
    for name, rows in sheets.items():
        sheet = made.create_sheet(name)
        for row in rows:
            sheet.append(row)
        sheet.sheet_state = "hidden" if name == hidden else "visible"
    made.save(path)
    return str(path)


def test_the_first_visible_sheet_that_holds_texts(tmp_path: Path) -> None:
    rows = [["text", "label", "n", "day"], *[[text, label, 3, datetime.date(2024, 5, 1)] for text, label in ROWS]]
    path = book(tmp_path / "my.xlsx", {"old": rows, "about": [["made in May"]], "data": rows}, hidden="old")
    table = read_table(path)
    assert table.reading["sheet"] == "data"
    assert [table.column(name)[0] for name in table.columns] == [*ROWS[0], "3", "2024-05-01"]
    assert table.describe_rows([0]).endswith("row 2")
    assert read_table(path, options=ReadOptions(sheet="old")).reading["sheet"] == "old"
    with pytest.raises(InputError, match=r"--sheet new: .* has no such sheet; it has: old, about, data"):
        read_table(path, options=ReadOptions(sheet="new"))


def test_sheets_with_one_header_are_asked(tmp_path: Path) -> None:
    rows = [["text", "label"], *map(list, ROWS)]
    with pytest.raises(QuestionError, match=r"which sheet: May \(30 rows\), June \(30 rows\)\? Give --sheet 'May'"):
        read_table(book(tmp_path / "my.xlsx", {"May": rows, "June": rows}))


def test_a_folder_of_splits_and_several_files_of_one(tmp_path: Path) -> None:
    for name, part in (("train-00.csv", ROWS[:10]), ("train-01.csv", ROWS[10:20]), ("test.csv", ROWS[20:])):
        write_table(tmp_path / name, part)
    tables = read_tables(DataConfig(data=str(tmp_path)))
    assert (len(tables.train), tables.eval, len(tables.test or ())) == (20, None, 10)
    assert tables.train.describe_rows([10]) == f"{tmp_path}/train-01.csv line 2"


def test_a_folder_per_class(tmp_path: Path) -> None:
    for number, (text, label) in enumerate(ROWS):
        (tmp_path / label).mkdir(exist_ok=True)
        (tmp_path / label / f"{number}.txt").write_text(text)
    (tmp_path / "card" / "notes.md").write_text("not a text")
    table = read_table(str(tmp_path))
    assert sorted(zip(table.column("text"), table.column("label"), strict=True)) == sorted(ROWS)
    assert table.describe_rows([0]).endswith(".txt")
    assert "1 other files in it are not read" in table.findings[0].text


def test_a_pattern_is_one_table_and_a_lacking_column_is_named(tmp_path: Path) -> None:
    write_table(tmp_path / "part-1.csv", ROWS[:10])
    write_table(tmp_path / "part-2.csv", ROWS[10:])
    (tmp_path / "_SUCCESS").touch()
    assert len(read_table(f"{tmp_path}/*")) == 30
    write_table(tmp_path / "part-2.csv", ROWS[10:], ("text", "topic"))
    with pytest.raises(InputError, match=r"part-2\.csv has no column 'label', which .*part-1\.csv has"):
        read_table(f"{tmp_path}/part-*.csv")


def test_an_option_without_effect_is_refused(tmp_path: Path) -> None:
    path = str(write_table(tmp_path / "my.csv", ROWS))
    with pytest.raises(InputError, match="--sheet has no effect on such a table"):
        read_table(path, options=ReadOptions(sheet="x"))
    assert len(read_table(path, "--test-data", ReadOptions(sheet="x"))) == len(ROWS)


def test_what_was_given_for_an_earlier_table_is_not_asked_of_another_format(tmp_path: Path) -> None:
    earlier = {"given": {"delimiter": ";", "encoding": "utf-8"}, "found": {"delimiter": ";"}}
    (tmp_path / "my.parquet").write_bytes(b"")
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a; b"]}), tmp_path / "my.parquet")
    (tmp_path / "my.csv").write_text("text;n\na, b;1\n")
    options = ReadOptions().after(earlier, ["text"])
    assert read_table(str(tmp_path / "my.parquet"), options=options).column("text") == ["a; b"]
    assert read_table(str(tmp_path / "my.csv"), options=options).column("text") == ["a, b"]
    with pytest.raises(InputError, match="--quote has no effect"):
        read_table(str(tmp_path / "my.parquet"), options=ReadOptions(quote="'").after(earlier, ["text"]))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("my.cvs", r"no such file\. In .* there is: my\.csv"),
        ("nowhere/my.csv", "The folder .*nowhere does not exist either"),
        ("https://example.org/my.csv", "Got an address instead; download it first"),
        (".", "Got a folder with my.csv instead"),
    ],
)
def test_paths_without_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, message: str) -> None:
    write_table(tmp_path / "my.csv", ROWS)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        read_table(path)
