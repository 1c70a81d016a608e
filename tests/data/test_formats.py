"""Each form and dialect that a table comes in, read to the same rows, and what is said of it."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import feather, parquet

from classify.config.schema import DataConfig
from classify.data.reading import read_tables
from classify.errors import InputError
from classify.tables.formats.base import ReadOptions
from classify.tables.formats.registry import read_table
from classify.tables.source import Source
from classify.tables.table import Table

ROWS = [("good, really", "pos"), ('say "hi"', "neg"), ("two\nlines", "pos"), ("null", "NA"), ("fünf ☂", "neg")]
PLAIN = [("good", "pos"), ("bad", "neg"), ("fine", "pos")]


def pairs(table: Table, names: tuple[str, str] = ("text", "label")) -> list[tuple[str, str]]:
    return list(zip(table.column(names[0]), table.column(names[1]), strict=True))


def csv_text(rows: list[tuple[str, str]], header: str = "text,label") -> str:
    quoted = [",".join('"' + field.replace('"', '""') + '"' for field in row) for row in rows]
    return "\n".join([header, *quoted]) + "\n"


def objects() -> list[dict[str, str]]:
    return [{"text": text, "label": label} for text, label in ROWS]


def arrow_table() -> pyarrow.Table:
    return pyarrow.table({"text": [text for text, _ in ROWS], "label": [label for _, label in ROWS]})


def write_stream(table: pyarrow.Table, path: Path) -> None:
    with pyarrow.ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table)


def write_workbook(path: Path, sheets: dict[str, list[tuple[Any, ...]]]) -> None:
    import openpyxl

    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    book.save(path)


FORMS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "CSV": ("a.csv", lambda path: path.write_text(csv_text(ROWS), encoding="utf-8")),
    "CSV under another name": ("a.data", lambda path: path.write_text(csv_text(ROWS), encoding="utf-8")),
    "JSON Lines": ("a.jsonl", lambda path: path.write_text("\n".join(map(json.dumps, objects())))),
    "JSON Lines called JSON": ("a.json", lambda path: path.write_text("\n".join(map(json.dumps, objects())))),
    "JSON of objects": ("a.json", lambda path: path.write_text(json.dumps(objects(), indent=2))),
    "JSON called text": ("a.txt", lambda path: path.write_text(json.dumps({"data": objects()}))),
    "JSON of columns": ("a.json", lambda path: path.write_text(json.dumps(arrow_table().to_pydict()))),
    "Parquet": ("a.parquet", lambda path: parquet.write_table(arrow_table(), path)),
    "Parquet called CSV": ("a.csv", lambda path: parquet.write_table(arrow_table(), path)),
    "Feather": ("a.feather", lambda path: feather.write_feather(arrow_table(), path)),
    "Arrow stream": ("a.arrow", lambda path: write_stream(arrow_table(), path)),
    "Excel": ("a.xlsx", lambda path: write_workbook(path, {"data": [("text", "label"), *ROWS]})),
    "gzip": ("a.csv.gz", lambda path: path.write_bytes(gzip.compress(csv_text(ROWS).encode()))),
    "bzip2": ("a.csv.bz2", lambda path: path.write_bytes(bz2.compress(csv_text(ROWS).encode()))),
    "xz": ("a.csv.xz", lambda path: path.write_bytes(lzma.compress(csv_text(ROWS).encode()))),
    "zstd": (
        "a.jsonl.zst",
        lambda path: path.write_bytes(
            pyarrow.compress("\n".join(map(json.dumps, objects())).encode(), "zstd", asbytes=True)
        ),
    ),
}


@pytest.mark.parametrize("cells", [[["a", "b"], ["c"]]])
def test_a_column_of_lists_or_objects_is_one_of_the_columns(tmp_path: Path, cells: list[Any]) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"text": ["one", "two"], "more": cells}))
    table = read_table(str(tmp_path / "a.json"))
    assert table.columns == ["text", "more"]
    assert (table.column("text"), list(map(json.loads, table.column("more")))) == (["one", "two"], cells)


def test_utf_32_with_the_other_byte_order(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\0\0\xfe\xff" + csv_text(ROWS).encode("utf-32-be"))
    assert pairs(read_table(str(tmp_path / "a.csv"))) == ROWS


@pytest.mark.parametrize(
    ("form", "options", "printed"),
    [
        ("CSV", {"sheet": "data"}, "--sheet has no effect, because only workbooks have sheets; drop it"),
        ("JSON Lines", {"no_header": True}, "--no-header has no effect"),
        ("JSON of objects", {"sheet": "data"}, "--sheet has no effect"),
        ("Excel", {"encoding": "latin-1"}, "--encoding has no effect"),
        ("Parquet", {"encoding": "latin-1"}, "--encoding has no effect"),
    ],
)
def test_options_without_effect_are_refused(tmp_path: Path, form: str, options: dict[str, Any], printed: str) -> None:
    name, write = FORMS[form]
    write(tmp_path / name)
    with pytest.raises(InputError, match=printed):
        read_tables(DataConfig(data=str(tmp_path / name), **options))


def test_options_may_be_of_another_table(tmp_path: Path) -> None:
    """Of a workbook to test on, beside a CSV, or texts with their labels, to train on; or of one file of several."""
    texts, labels = tmp_path / "texts.txt", tmp_path / "labels.txt"
    texts.write_text("".join(f"{text}\n" for text, _ in PLAIN), encoding="utf-8")
    labels.write_text("".join(f"{label}\n" for _, label in PLAIN), encoding="utf-8")
    write_workbook(tmp_path / "test.xlsx", {"notes": [("n",), ("x",)], "data": [("text", "label"), *ROWS]})
    (tmp_path / "a.csv").write_text(csv_text(ROWS), encoding="utf-8")
    config = DataConfig(data=str(tmp_path / "a.csv"), test_data=str(tmp_path / "test.xlsx"), sheet="data")
    for given in (config, replace(config, data=str(texts), labels=str(labels))):
        tables = read_tables(given)
        assert tables.test is not None
        assert pairs(tables.test) == ROWS
    for form in ("CSV", "Parquet"):
        FORMS[form][1](tmp_path / f"part-{FORMS[form][0]}")
    assert len(read_tables(DataConfig(data=str(tmp_path / "part-*"), encoding="utf-8")).train) == 2 * len(ROWS)
    with pytest.raises(InputError) as caught:
        read_tables(replace(config, eval_data=str(tmp_path / "missing.csv"), encoding="utf-8"))
    assert len(caught.value.faults) == 1


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_rows(tmp_path: Path, form: str) -> None:
    name, write = FORMS[form]
    write(tmp_path / name)
    assert pairs(read_table(str(tmp_path / name))) == ROWS


def test_an_encoding_is_taken_as_given(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("text,label\ncafé,a\n".encode("mac_roman"))
    table = read_table(str(tmp_path / "a.csv"), options=ReadOptions(encoding="mac_roman"))
    assert pairs(table) == [("café", "a")]
    with pytest.raises(InputError, match=r"--encoding klingon: unknown to Python"):
        read_table(str(tmp_path / "a.csv"), options=ReadOptions(encoding="klingon"))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
def test_delimiters_and_line_ends(tmp_path: Path, delimiter: str, end: str) -> None:
    lines = [delimiter.join(row) for row in [("text", "label"), *PLAIN]]
    (tmp_path / "a.txt").write_bytes(end.join(lines).encode())
    assert pairs(read_table(str(tmp_path / "a.txt"))) == PLAIN


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        (
            "text,label\n'good, really',pos\n'bad',neg\n'so, so',pos\n",
            [("good, really", "pos"), ("bad", "neg"), ("so, so", "pos")],
        ),
        ('text,label\n"say \\"hi\\", you",pos\n"b",neg\n', [('say "hi", you', "pos"), ("b", "neg")]),
        ("text,label\nnext\x85line,a\npara\u2028graph,b\n", [("next\x85line", "a"), ("para\u2028graph", "b")]),
        ("text,label,\na,x,\nb,y,\n", [("a", "x"), ("b", "y")]),
        ("\n\ntext,label\n\na,x\n\nb,y\n", [("a", "x"), ("b", "y")]),
        ('text,label\na\0b,x\n"c\0",y\n', [("a\0b", "x"), ("c\0", "y")]),
    ],
    ids=["single quotes", "backslashes", "other line breaks", "empty trailing column", "empty lines", "zero bytes"],
)
def test_dialects(tmp_path: Path, content: str, rows: list[tuple[str, str]]) -> None:
    (tmp_path / "a.csv").write_text(content, encoding="utf-8", newline="")
    table = read_table(str(tmp_path / "a.csv"))
    assert pairs(table) == rows
    assert table.columns == ["text", "label"]


def test_places_count_what_a_person_sees(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n\n{"text": "b"}\n')
    assert read_table(str(tmp_path / "a.jsonl")).describe_rows([1]).endswith("a.jsonl line 3")
    write_workbook(tmp_path / "a.xlsx", {"one": [(None, None), ("text", "label"), ("a", 1), (None, None), ("b", 2.5)]})
    table = read_table(str(tmp_path / "a.xlsx"))
    assert pairs(table) == [("a", "1"), ("b", "2.5")]
    assert table.describe_rows([0, 1]).endswith("a.xlsx rows 3, 5")


def test_sheets_of_the_same_columns_are_a_question(tmp_path: Path) -> None:
    rows = [(f"the order number {place} is late", "late" if place % 2 else "lost") for place in range(12)]
    sheet = [("text", "label"), *rows]
    notes = [("Report",), ("made in spring", "by hand"), ("of two parts", "and more")]
    write_workbook(
        tmp_path / "a.xlsx", {"May": sheet, "June": [("June",), (), *sheet[:7]], "notes": notes, "empty": sheet[:1]}
    )
    with pytest.raises(InputError, match=r"which is the sheet\? May, June; give e\.g\. --sheet 'May'"):
        read_table(str(tmp_path / "a.xlsx"))
    assert pairs(read_table(str(tmp_path / "a.xlsx"), options=ReadOptions(sheet="June"))) == rows[:6]
    write_workbook(tmp_path / "b.xlsx", {"May": sheet, "notes": notes, "empty": sheet[:1]})
    assert pairs(read_table(str(tmp_path / "b.xlsx"))) == rows


def test_a_sheet_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    write_workbook(path, {"notes": [("n",), ("x",)], "data": [("text", "label"), ("a", "b")]})
    assert read_table(str(path)).columns == ["n"]
    assert "others: data" in read_table(str(path)).form
    assert pairs(read_table(str(path), options=ReadOptions(sheet="data"))) == [("a", "b")]
    with pytest.raises(InputError, match=r"--sheet more: .* has no such sheet; it has: notes, data\."):
        read_table(str(path), options=ReadOptions(sheet="more"))


def test_class_numbers_of_datasets_have_their_names(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])})
    datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features).to_parquet(tmp_path / "a.parquet")
    assert pairs(read_table(str(tmp_path / "a.parquet"))) == [("a", "pos"), ("b", "neg")]


def test_lists_of_class_numbers_have_their_names(tmp_path: Path) -> None:
    """In Parquet and in a saved folder; -1 means no label."""
    import datasets

    names = datasets.ClassLabel(names=["joy", "fear"])
    features = datasets.Features({"text": datasets.Value("string"), "label": names, "labels": datasets.List(names)})
    rows = {"text": ["a", "b", "c"], "label": [1, -1, 0], "labels": [[0, 1], [1], []]}
    data = datasets.Dataset.from_dict(rows, features)
    data.to_parquet(tmp_path / "a.parquet")
    data.save_to_disk(tmp_path / "saved")
    for path in ("a.parquet", "saved"):
        table = read_table(str(tmp_path / path))
        assert table.column("label") == ["fear", "", "joy"]
        assert table.column("labels") == ['["joy", "fear"]', '["fear"]', "[]"]


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": \n{"text": "b"}\n', ["line 2", "not JSON"]),
        ("a.jsonl", b'{"text": "a"}\n[1]\n', ["line 2", "expected an object", "a list"]),
        ("a.json", b"[" * 100_000, ["not JSON", "nested too deep"]),
        ("a.json", b'{"train": [1], "test": [1, 2]}', ["a list of objects", "'train', 'test'"]),
        ("a.json", b'[{"text": "a"}, 3]', ["record 2", "a number"]),
        ("a.json", b"[]", ["no record"]),
        ("a.parquet", b"PAR1 and no more", ["not a readable Parquet file"]),
        ("a.arrow", b"ARROW1 and no more", ["not a readable Arrow file"]),
        ("a.xlsx", b"PK\x03\x04 and no more", ["not a readable workbook"]),
        ("a.csv.gz", gzip.compress(b"text,label\na,b\n", mtime=0)[:-9], ["cannot be decompressed"]),
        ("a.csv.gz", gzip.compress(b"\0" * (200 << 20), mtime=0), ["MiB or more; if that is intended"]),
    ],
    ids=range(11),
)
def test_a_broken_file_ends_in_a_line(tmp_path: Path, name: str, content: bytes, parts: list[str]) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_table(str(tmp_path / name))
    (line,) = caught.value.faults
    assert "\n" not in line
    for part in [name, *parts]:
        assert part in line


@pytest.mark.parametrize("encoding", ["utf-8", "gb18030"])
def test_a_folder_for_each_class_and_a_file_for_each_document(tmp_path: Path, encoding: str) -> None:
    texts = {
        "体育/1.txt": "球队赢了比赛，球迷很高兴。",
        "体育/2.txt": "运动员打破了纪录。",
        "文学/1.txt": "这本小说\n很好看。",
    }
    for name, text in texts.items():
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_bytes(text.encode(encoding))
    table = read_table(str(tmp_path / "data"))
    assert dict(zip(table.column("file"), pairs(table), strict=True)) == {
        name: (text, name.split("/")[0]) for name, text in texts.items()
    }
    assert table.describe_rows([2]).endswith("data file 文学/1.txt")


def test_a_folder_with_a_file_for_each_part(tmp_path: Path) -> None:
    for name, rows in (("train", PLAIN * 4), ("validation", PLAIN), ("test", PLAIN[:2])):
        (tmp_path / f"{name}.csv").write_text(csv_text(rows))
    (tmp_path / "README.md").write_text("not a table")
    tables = read_tables(DataConfig(data=str(tmp_path)))
    assert tables.eval is not None
    assert tables.test is not None
    assert [len(table) for table in (tables.train, tables.eval, tables.test)] == [12, 3, 2]
    (tmp_path / "train.jsonl").write_text("{}")
    with pytest.raises(
        InputError, match=r"--data: .* has several files for one split \(.*train\.csv, .*train\.jsonl\)"
    ):
        read_tables(DataConfig(data=str(tmp_path)))


def test_files_that_a_pattern_names_are_one_table(tmp_path: Path) -> None:
    (tmp_path / "part-1.csv").write_text(csv_text(PLAIN))
    (tmp_path / "part-2.csv").write_text("label;text\nneg;last\n")
    table = read_table(str(tmp_path / "part-*.csv"))
    assert pairs(table) == [*PLAIN, ("last", "neg")]
    assert table.describe_rows([3]).endswith("part-2.csv line 2")
    assert Source(str(tmp_path / "part-*.csv"), "").stem == "part"
    (tmp_path / "part-3.csv").write_text("text,class\na,b\n")
    with pytest.raises(InputError, match=r"part-1\.csv and .*part-3\.csv have different columns \('class', 'label'"):
        read_table(str(tmp_path / "part-*.csv"))


def test_a_workbook_that_is_open_is_no_part(tmp_path: Path) -> None:
    write_workbook(tmp_path / "may.xlsx", {"data": [("text", "label"), *PLAIN]})
    (tmp_path / "~$may.xlsx").write_bytes(b"a lock of a spreadsheet")
    assert pairs(read_table(str(tmp_path / "*.xlsx"))) == PLAIN


def test_a_prediction_that_was_not_renamed(tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text(csv_text(PLAIN))
    (tmp_path / "new.csv").write_text("text,predicted_label,confidence\na,pos,0.9\n")
    with pytest.raises(InputError, match=r"rename the corrected 'predicted_label' of .*new\.csv to 'label'"):
        read_table(f"{tmp_path / 'my.csv'},{tmp_path / 'new.csv'}")


def test_a_further_file_may_have_more_columns(tmp_path: Path) -> None:
    (tmp_path / "part-1.csv").write_text("text,label\na,pos\n")
    (tmp_path / "part-2.csv").write_text("label,confidence,text,date\nneg,0.5,b,2020-01-01\n")
    table = read_table(f"{tmp_path / 'part-1.csv'},{tmp_path / 'part-2.csv'}")
    assert table.columns == ["text", "label"]
    assert table.column("text") == ["a", "b"]
    (found,) = table.findings
    assert found.sentence.endswith("columns 'confidence', 'date'")
    with pytest.raises(InputError, match="put the table with fewer columns first"):
        read_table(f"{tmp_path / 'part-2.csv'},{tmp_path / 'part-1.csv'}")
    bare = ReadOptions(header=False)
    with pytest.raises(InputError, match="different columns"):
        read_table(f"{tmp_path / 'part-1.csv'},{tmp_path / 'part-2.csv'}", options=bare)


def test_a_folder_of_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("no table")
    with pytest.raises(InputError, match=r"expected a file, a folder with .* Got a folder with notes\.md instead"):
        read_table(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "printed"),
    [
        ("a.csv", "text,label\na,x\nb\nc,y\nd,e,f\n", "2 rows with a different number of fields skipped (lines 3, 5)"),
        ("a.jsonl", '{"text": "a", "label": "x"}\nb\n{"text": "c", "label": "y"}\n[1]\n', "2 lines without an object"),
    ],
)
def test_rows_that_cannot_be_read_are_skipped_where_that_is_asked_for(
    tmp_path: Path, name: str, content: str, printed: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError):
        read_table(str(tmp_path / name))
    table = read_table(str(tmp_path / name), options=ReadOptions(skips_bad_rows=True))
    assert pairs(table) == [("a", "x"), ("c", "y")]
    assert printed in table.form
    assert table.skipped == 2


def written(header: str, rows: Callable[[int], str]) -> str:
    return "\n".join([header, *(f"a text of some words {number},{rows(number)}" for number in range(60))]) + "\n"


def test_what_datasets_has_saved(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])})
    whole = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": [1, 0, 1]}, features)
    whole.select([2, 0]).save_to_disk(tmp_path / "one")
    assert pairs(read_table(str(tmp_path / "one"))) == [("c", "pos"), ("a", "pos")]
    datasets.DatasetDict({"train": whole, "validation": whole.select([1])}).save_to_disk(tmp_path / "parts")
    tables = read_tables(DataConfig(data=str(tmp_path / "parts")))
    assert tables.eval is not None
    assert pairs(tables.eval) == [("b", "neg")]


def test_a_json_list_of_strings_is_a_column_of_texts(tmp_path: Path) -> None:
    path = tmp_path / "texts.json"
    path.write_text(json.dumps([text for text, _ in ROWS]))
    table = read_table(str(path))
    assert (table.columns, list(table.column("text"))) == (["text"], [text for text, _ in ROWS])
    path.write_text(json.dumps(["a text", {"text": "another"}]))
    with pytest.raises(InputError, match=r"record 1: expected a list of 6\. Got a string instead\."):
        read_table(str(path))


def test_json_lines_of_null_are_no_objects(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\nnull\n{"text": "b"}\n')
    with pytest.raises(InputError, match=r"a\.jsonl line 2: expected an object\. Got null instead\."):
        read_table(str(path))
    table = read_table(str(path), options=ReadOptions(skips_bad_rows=True))
    assert (table.column("text"), table.skipped) == (["a", "b"], 1)
    assert "1 lines without an object skipped (2)" in table.form


HEADER = ["text", "label"]
