"""Delimited text is read strictly: what cannot be read is named with its line, and what is open is asked."""

from __future__ import annotations

import contextlib
import gzip
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from classify.errors import InputError
from classify.tables.read import read_table
from classify.tables.source import QuestionError, ReadOptions

ROWS = [f"a text about the number {number}" for number in range(20)]


def write(folder: Path, content: str | bytes, name: str = "my.csv") -> str:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(folder / name)


def test_quoted_commas_newlines_and_quotes_and_their_lines(tmp_path: Path) -> None:
    rows = '"a, b\r\nc, d, e",x\r\n"say ""hi""",y\r\nplain "q" in,z\r\nanother,x\r\nand one,y\r\n'
    table = read_table(write(tmp_path, f"text,label\r\n{rows}"))
    assert table.column("text")[:3] == ["a, b\r\nc, d, e", 'say "hi"', 'plain "q" in']
    assert [table.describe_rows([row]).split()[-1] for row in range(3)] == ["2", "4", "5"]


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ('label,text\nx,a\nx,"hello there\ny,b\ny,c\ny,d\n', ["a", '"hello there', "b", "c", "d"]),
        ('text,label\na,x\n"hello there,x\nb,y\n"bye,x\nd,y\n', ["a", '"hello there', "b", '"bye', "d"]),
        ('label\ttext\nx\t"a" b\nx\tc "d"\ny\t"e\nz\tf"\n', ['"a" b', 'c "d"', '"e', 'f"']),
    ],
)
def test_a_quote_that_never_closes_swallows_no_rows(tmp_path: Path, content: str, texts: list[str]) -> None:
    table = read_table(write(tmp_path, content))
    assert table.column("text") == texts
    assert "quotes as text" in table.form


def test_rows_of_another_width_are_named_and_can_be_skipped(tmp_path: Path) -> None:
    path = write(tmp_path, "text,label\n" + "".join(f"{row},x\n" for row in ROWS) + "a,b,c\nonly\nlast,y\n")
    with pytest.raises(InputError, match=r"line 22 \(3 fields\), line 23 \(1 fields\)\. Quote .* --on-bad-rows skip"):
        read_table(path)
    table = read_table(path, options=ReadOptions(skips_bad_rows=True))
    assert (len(table), table.skipped) == (21, 2)
    assert "2 rows skipped" in table.findings[0].text


def test_lines_above_the_table_are_refused_with_the_flag_that_leaves_them_out(tmp_path: Path) -> None:
    path = write(tmp_path, "Exported in March\n\ntext,label\n" + "".join(f"{row},x\n" for row in ROWS))
    with pytest.raises(InputError, match=r"line 1: expected 2 fields.*give --skip-lines 2"):
        read_table(path)
    assert len(read_table(path, options=ReadOptions(skip_lines=2))) == 20


def test_excels_own_line_names_the_delimiter(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "sep=;\ntext;label\n" + "".join(f"{row}, and more;x\n" for row in ROWS)))
    assert (table.columns, table.reading["delimiter"]) == (["text", "label"], ";")
    assert table.describe_rows([0]).endswith("line 3")


def test_rows_of_empty_cells_are_rows_but_at_the_end(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "text,label\na text,x\n,\nanother,y\n\n,\n,\n"))
    assert table.column("text") == ["a text", "", "another"]
    assert "2 rows without a value at the end" in table.findings[0].text


def test_names_of_columns(tmp_path: Path) -> None:
    """Repeated ones are numbered as pandas does, and columns without name and value are left out."""
    rows = "".join(f"{row},x,y,,{number}\n" for number, row in enumerate(ROWS))
    table = read_table(write(tmp_path, f"text,label,label,,\n{rows}"))
    assert table.columns == ["text", "label", "label.1", "unnamed_5"]


@pytest.mark.parametrize(
    ("first", "found"),
    [("text,label", True), ("opinion,kind", True), (f"{ROWS[0]} more,a", False), (f"{ROWS[0]} more,c", None)],
)
def test_the_first_row(tmp_path: Path, first: str, found: bool | None) -> None:
    """It names the columns, is one of the rows, or is asked about."""
    path = write(tmp_path, first + "\n" + "".join(f"{row},{'ab'[number % 2]}\n" for number, row in enumerate(ROWS)))
    if found is None:
        with pytest.raises(QuestionError, match=r"is the first row \(.* 'c'\) a header\? Give --header or --no-header"):
            read_table(path)
    else:
        assert read_table(path).has_names == found


def test_a_table_like_an_earlier_one_is_read_as_that(tmp_path: Path) -> None:
    rows = "".join(f"{row},{'ab'[number % 2]}\n" for number, row in enumerate(ROWS))
    path = write(tmp_path, f"{ROWS[0]} more,c\n{rows}")
    options = ReadOptions().after({"found": {"header": False}, "given": {"delimiter": ","}}, ("message", "label"))
    assert read_table(path, options=options).columns == ["message", "label"]


@pytest.mark.parametrize("encoding", ["cp1250", "cp1251", "cp1253", "cp1254", "koi8_r", "big5", "euc_jp", "cp949"])
def test_other_encodings_are_asked_with_a_line_under_each(tmp_path: Path, encoding: str) -> None:
    texts = {
        "cp1250": "příliš žluťoučký kůň úpěl", "cp1251": "быстрая доставка", "cp1253": "γρήγορη παράδοση",
        "cp1254": "çok hızlı geldi ve güzel şey", "koi8_r": "быстрая доставка", "big5": "送貨速度很快包裝完整",
        "euc_jp": "料理がとても美味しくて", "cp949": "배송이 정말 빠르고 좋아요",
    }  # fmt: skip
    rows = "".join(f"{texts[encoding]} {number},{'ab'[number % 2]}\n" for number in range(20))
    path = write(tmp_path, f"text,label\n{rows}".encode(encoding))
    with pytest.raises(QuestionError, match="which encoding shows this line right") as caught:
        read_table(path)
    assert any(f"{encoding} {texts[encoding][:8]!r}"[:-1] in shown for shown in caught.value.questions[0].candidates)
    assert read_table(path, options=ReadOptions(encoding=encoding)).column("text")[0] == f"{texts[encoding]} 0"


def test_damaged_utf8_is_refused_with_the_text(tmp_path: Path) -> None:
    rows = [f"grüße und mehr {number},x\n".encode() for number in range(20)]
    path = write(tmp_path, b"text,label\n" + b"".join([*rows[:5], b"gr\xfc\xdfe,x\n", *rows[5:]]))
    with pytest.raises(InputError, match=r"UTF-8, but not in 'gr.*e,x'"):
        read_table(path)


def test_a_compressed_table_and_the_one_in_a_zip(tmp_path: Path) -> None:
    content = "text,label\n" + "".join(f"{row},x\n" for row in ROWS)
    write(tmp_path, gzip.compress(content.encode()), "my.csv.gz")
    with zipfile.ZipFile(tmp_path / "my.zip", "w") as archive:
        archive.writestr("data/my.csv", content)
        archive.writestr("README.txt", "about it")
    for name in ("my.csv.gz", "my.zip"):
        assert read_table(str(tmp_path / name)).column("text") == ROWS
    with zipfile.ZipFile(tmp_path / "my.zip", "a") as archive:
        archive.writestr("data/more.csv", content)
    with pytest.raises(InputError, match=r"expected a zip of one table\. Got data/my\.csv, .*unzip it first"):
        read_table(str(tmp_path / "my.zip"))
    write(tmp_path, gzip.compress(content.encode())[:40], "cut.csv.gz")
    with pytest.raises(InputError, match=r"cut\.csv\.gz: cannot be decompressed"):
        read_table(str(tmp_path / "cut.csv.gz"))


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "the file is empty"), (b"\x7fELF\x02\x01\x01\0\0\0\0\0text", "not a table this program reads")],
)
def test_what_is_no_table(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_table(write(tmp_path, content))


@pytest.mark.parametrize("first", ["ORC", "PAR1 is a start", "Create table two, please", "BZh"])
def test_texts_are_never_refused_by_their_first_word(tmp_path: Path, first: str) -> None:
    path = write(tmp_path, f"{first}\tx\n" + "".join(f"{row}\tx\n" for row in ROWS))
    assert read_table(path, options=ReadOptions(header=False)).column("column_1")[0] == first


@given(st.binary(max_size=400))
def test_any_bytes_are_a_table_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = write(tmp_path_factory.getbasetemp(), b"text,label\n" + content, "fuzz.csv")
    with contextlib.suppress(InputError):
        read_table(path)
