"""Reading a table: quoted commas and newlines are right, and every fault is told with its line."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pyarrow
import pytest

from classify.errors import InputError
from classify.tables.formats import delimited
from classify.tables.formats.base import ReadOptions
from classify.tables.formats.registry import read_table
from classify.tables.table import Table


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def test_quoted_commas_newlines_and_quotes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b'text,label\r\n"a, b\r\nc",x\r\n"say ""hi""",y\r\nplain "q" in,z\r\n')
    table = read_table(path)
    assert table.columns == ["text", "label"]
    assert table.column("text") == ["a, b\r\nc", 'say "hi"', 'plain "q" in']
    assert table.places([0, 1, 2]) == [2, 4, 5]


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (b'label,text\nx,a\nx,"hello there\ny,b\ny,c\ny,d\n', ["a", '"hello there', "b", "c", "d"]),
        (b'label,text\nx,a\nx,"hello there\ny,b', ["a", '"hello there', "b"]),
        (b'text,label\na,x\n"hello there,x\nb,y\n"bye",x\nd,y\n', ["a", '"hello there', "b", '"bye"', "d"]),
        (b'label\ttext\nx\t"a" b\nx\tc "d"\ny\t"e\nz\tf"\n', ['"a" b', 'c "d"', '"e', 'f"']),
    ],
)
def test_a_quote_that_never_closes_swallows_no_rows(tmp_path: Path, content: bytes, texts: list[str]) -> None:
    """Where all lines are equally wide without them, quotes are text."""
    table = read_table(write(tmp_path / "a.csv", content))
    assert table.column("text") == texts
    assert "quotes are text" in table.form


def test_a_quote_that_never_closes_has_its_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"line 3: a quote .* never closes"):
        read_table(write(tmp_path / "a.csv", b'text,label\n"a, b",x\n"hello, there,x\nb,y\n'))


def test_a_text_longer_than_a_block(tmp_path: Path) -> None:
    """Arrow reads in blocks of a MiB, and by itself refuses a row that is longer."""
    long = b"word " * 600_000
    table = read_table(write(tmp_path / "a.csv", b"text,label\nshort,a\n" + long + b",b\nlast,a\n"))
    assert [len(text) for text in table.column("text")] == [5, len(long), 4]


def test_values_stay_text_as_in_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b"id,text,label\n007,NA,1.50\n008,null,\n009,2024-01-01,true\n")
    table = read_table(path)
    assert table.column("id") == ["007", "008", "009"]
    assert table.column("text") == ["NA", "null", "2024-01-01"]
    assert table.column("label") == ["1.50", "", "true"]


def test_it_reads_what_the_standard_library_reads(tmp_path: Path) -> None:
    rows = [[f'text {i}, with "quotes"\nand lines\r' * (i % 3), str(i)] for i in range(500)]
    path = tmp_path / "a.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text", "label"], *rows])
    table = read_table(str(path))
    assert [list(row) for row in zip(table.column("text"), table.column("label"), strict=True)] == rows


def test_a_byte_order_mark_and_tabs(tmp_path: Path) -> None:
    assert read_table(write(tmp_path / "a.csv", b"\xef\xbb\xbftext,label\na,b\n")).columns == ["text", "label"]
    assert read_table(write(tmp_path / "a.tsv", b"text\tlabel\na, b\tc\n")).column("text") == ["a, b"]


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"", ["empty", "header"]),
        (b"\n\n", ["empty lines"]),
        (b'text,label\na,b\nc\n"x\ny",z\nd,e,f\n', ["2 columns", "line 3 (1 field)", "line 6 (3 fields)"]),
        (b"text,label\n\x89PNG\x00\xff\x00,b\n", ["line 2", "expected text"]),
    ],
)
def test_faults_say_where_and_what(tmp_path: Path, content: bytes, parts: list[str]) -> None:
    path = write(tmp_path / "bad.csv", content)
    with pytest.raises(InputError) as caught:
        read_table(path)
    (line,) = caught.value.faults
    assert "\n" not in line
    for part in ["bad.csv", *parts]:
        assert part in line


def test_a_broken_byte_far_into_a_large_file_is_said_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import classify.tables.source as module

    monkeypatch.setattr(module, "_BLOCK", 64)
    table = read_table(write(tmp_path / "a.csv", b"text,label\n" + "é,x\n".encode() * 100 + b"\xff,x\n"))
    assert table.column("text")[-2:] == ["é", "\ufffd"]
    assert "lines 102" in table.form
    with pytest.raises(InputError, match=r"--encoding utf-8: not valid in .*a\.csv line 102"):
        read_table(str(tmp_path / "a.csv"), options=ReadOptions(encoding="utf-8"))


def test_missing_files_name_their_neighbours(tmp_path: Path) -> None:
    write(tmp_path / "mails.csv", b"text,label\na,b\n")
    with pytest.raises(InputError, match=r"no such file.*mails\.csv"):
        read_table(str(tmp_path / "mail.csv"))
    with pytest.raises(InputError, match=r"Got a folder with mails\.csv instead"):
        read_table(str(tmp_path))
    with pytest.raises(InputError, match="does not exist either"):
        read_table(str(tmp_path / "no" / "mail.csv"))


@pytest.mark.parametrize(
    "texts",
    [['"Foo" said', "he"], ['""Foo"" said', "he"], ['"Foo" said', 'he said "Bar"'], ["'", '"']],
    ids=["after a quote", "doubled", "balanced", "alone"],
)
def test_quotes_that_are_text_stay(tmp_path: Path, texts: list[str]) -> None:
    """Far into a file, where no sample shows them."""
    rows = [("ham", f"text {number}") for number in range(30_000)] + [("spam", text) for text in texts]
    path = write(tmp_path / "a.tsv", "\n".join(["label\ttext", *map("\t".join, rows)]).encode())
    assert list(zip(*map(read_table(path).column, ("label", "text")), strict=True)) == rows


def test_values_of_rows_in_several_chunks() -> None:
    arrow = pyarrow.table({"text": pyarrow.chunked_array([["a", "bb"], [], ["ccc"], ["d", "ee"]])})
    table = Table("a", "0", arrow, "", lambda rows: rows)
    assert table.take("text", np.array([0, 2, 4])) == ["a", "ccc", "ee"]
    assert table.take("text", np.array([], dtype=np.int64)) == []
    assert table.lengths("text").tolist() == [1, 2, 3, 1, 2]


def test_a_columns_digest_depends_on_its_values_alone(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("text,label\nprix élevé,a\nok,b\n".encode("cp1252"))
    path = str(tmp_path / "a.csv")
    read = [read_table(path, options=ReadOptions(encoding=name)) for name in (None, "cp1252", "cp1251")]
    assert read[0].digest("text") == read[1].digest("text") != read[2].digest("text")
    assert read[0].digest("label") == read[2].digest("label") != read[0].digest("text")


def test_a_columns_digest_knows_boundaries_and_not_chunks() -> None:
    def digest(*chunks: list[str]) -> str:
        arrow = pyarrow.table({"text": pyarrow.chunked_array(chunks, pyarrow.string())})
        return Table("a", "0", arrow, "", lambda rows: rows).digest("text")

    values = ["a", "bb", "", "ccc"]
    assert digest(values) == digest(values[:1], [], values[1:3], values[3:])
    assert digest(values) != digest(["ab", "b", "", "ccc"])
    sliced = pyarrow.table({"text": pyarrow.array(["z", *values, "z"]).slice(1, 4)})
    assert Table("a", "0", sliced, "", lambda rows: rows).digest("text") == digest(values)


def test_places_in_several_files_are_found_in_one_pass_of_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in range(2):
        rows = "".join(f'"text {row}\nof part {part}",a\n' for row in range(5))
        (tmp_path / f"part-{part}.csv").write_text(f"text,label\n{rows}")
    table = read_table(str(tmp_path / "part-*.csv"))
    passes: list[int] = []
    rows_of = delimited._Text.rows
    monkeypatch.setattr(delimited._Text, "rows", lambda *given, **more: (passes.append(1), rows_of(*given, **more))[1])
    first, second = str(tmp_path / "part-0.csv"), str(tmp_path / "part-1.csv")
    assert table.describe_row_groups([[0, 5], [4, 9]]) == [
        f"{first} line 2, {second} line 2",
        f"{first} line 10, {second} line 10",
    ]
    assert len(passes) == 2


def test_rows_are_taken_across_chunks() -> None:
    arrow = pyarrow.table({"text": pyarrow.chunked_array([["a", "b"], [], ["c"], ["d", "e", "f"]])})
    table = Table("a.csv", "", arrow, "", lambda rows: rows)
    for rows in ([], [0], [5], [1, 2, 3], [0, 5], [2, 2, 4]):
        assert table.take("text", np.array(rows, dtype=np.int64)) == ["abcdef"[row] for row in rows]
