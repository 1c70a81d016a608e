"""Which line of a text file is its header, and what stands above it; texts a line; quotes that are text."""

from __future__ import annotations

import csv
import io
import random
from pathlib import Path

import pytest

from classify.errors import InputError
from classify.tables.dialect import detect_dialect, has_header
from classify.tables.formats.base import ReadOptions
from classify.tables.formats.registry import read_table
from classify.tables.table import Table

ROWS = [(f"the card {number} is lost, please help", "ab"[number % 2]) for number in range(40)]


def read(folder: Path, content: str, name: str = "a.csv", options: ReadOptions | None = None) -> Table:
    (folder / name).write_text(content, encoding="utf-8", newline="")
    return read_table(str(folder / name), options=options)


def lines(delimiter: str = ";", rows: list[tuple[str, str]] | None = None) -> str:
    return "".join(f"{text}{delimiter}{label}\n" for text, label in rows or ROWS)


@pytest.mark.parametrize("label", ["y", "target", "review", "question"])
def test_a_class_with_a_usual_name_is_no_header(tmp_path: Path, label: str) -> None:
    rows = [(text, label if number % 2 == 0 else "other") for number, (text, _) in enumerate(ROWS)]
    table = read(tmp_path, lines(rows=rows))
    assert len(table) == len(ROWS)
    assert table.column("column_2")[0] == label


def test_a_header_that_comes_again_is_one_of_joined_files() -> None:
    assert has_header([["text", "label"], ["hello", "a"], ["text", "label"], ["you", "b"]])
    assert not has_header([["hello", "a"], ["there", "b"], ["you", "a"]])
    assert not has_header([["hello", "a"], ["there", "b"], ["hello", "a"]]), "a row that is there twice"


def test_rows_that_repeat_the_header_are_dropped_and_counted(tmp_path: Path) -> None:
    """Files joined by cat; lines after the second header keep their numbers."""
    joined = f"text;label\n{lines()}text;label\n{lines()}"
    table = read(tmp_path, joined)
    assert len(table) == 2 * len(ROWS)
    assert "text" not in table.column("text")
    assert f"rows that repeat the header dropped (line {len(ROWS) + 2})" in table.form
    assert table.describe_rows([len(ROWS)]).endswith(f"a.csv line {len(ROWS) + 3}")


@pytest.mark.parametrize("separator", ["sep=;", '"sep=;"', "SEP=;"])
def test_the_line_in_which_excel_names_the_delimiter(tmp_path: Path, separator: str) -> None:
    table = read(tmp_path, f"{separator}\r\ntext;label\r\n{lines()}")
    assert table.columns == ["text", "label"]
    assert len(table) == len(ROWS)
    assert table.describe_rows([0]).endswith("a.csv line 3")
    assert "line 1 above the table left out" in table.form


@pytest.mark.parametrize(
    ("above", "count"),
    [
        ("Tickets of 2024\n", 1),
        ("Tickets of 2024\n\nExported by the help desk, June\n\n", 4),
        ("Tickets of 2024;;\n;;\n", 2),
        ("Report;Tickets\nDate;2024-06-01\n", None),  # as wide as the table of two columns
    ],
)
def test_lines_above_the_header_are_no_rows(tmp_path: Path, above: str, count: int | None) -> None:
    body = "text;label;id\n" + "".join(f"{line};{number}\n" for number, line in enumerate(lines().splitlines()))
    table = read(tmp_path, above + (body if above.count(";") > 2 else f"text;label\n{lines()}"))
    if count is None:
        assert table.columns == ["Report", "Tickets"]
        return
    assert table.columns[:2] == ["text", "label"]
    assert len(table) == len(ROWS)
    assert table.describe_rows([0]).endswith(f"line {count + 2}")
    assert " above the table left out" in table.form


def test_a_first_row_with_an_empty_cell_is_no_title(tmp_path: Path) -> None:
    assert "above the table" not in read(tmp_path, "a card;\n" + lines()).form


PROSE = ["Hello, my card is lost", "Yes, please send it", "No, that is wrong", "Well, thank you"]


def test_prose_in_a_text_file_has_no_columns(tmp_path: Path) -> None:
    """Each line has one comma, and would be cut there."""
    table = read(tmp_path, "\n".join(PROSE) + "\n", "a.txt")
    assert table.columns == ["text"]
    assert table.column("text") == PROSE
    assert not table.has_names


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
@pytest.mark.parametrize("header", ["", "text{}label\n"])
def test_a_table_in_a_text_file_is_one(tmp_path: Path, delimiter: str, header: str) -> None:
    rows = [(text.replace(", ", " "), label) for text, label in ROWS]
    table = read(tmp_path, header.format(delimiter) + lines(delimiter, rows), "a.txt")
    assert len(table.columns) == 2
    assert len(table) == len(ROWS)


def test_no_header_makes_the_first_row_data(tmp_path: Path) -> None:
    table = read(tmp_path, "text;label\n" + lines(), options=ReadOptions(no_header=True))
    assert table.columns == ["column_1", "column_2"]
    assert table.column("column_1")[0] == "text"
    table = read(tmp_path, "text\nmy card\n", "a.txt", ReadOptions(no_header=True))
    assert table.column("text") == ["text", "my card"]


def bare_quotes(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Rows of which some begin, and others end, with a mark of inches."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        text = f"{draw.randint(2, 9)} inch nails of order {number} are missing"
        text = (
            f'"{text}' if number % 40 == 5 else f'{text}, these are 5"' if number % 40 == 30 else text.replace(",", "")
        )
        rows.append((text.replace(",", "") if number % 40 == 30 else text, "ab"[number % 2]))
    return rows


def test_bare_quotes_swallow_no_rows(tmp_path: Path) -> None:
    rows = bare_quotes(200)
    table = read(tmp_path, "text,label\n" + lines(",", rows))
    assert list(zip(table.column("text"), table.column("label"), strict=True)) == rows
    assert "quotes are text" in table.form


def test_texts_of_several_lines_stay_whole(tmp_path: Path) -> None:
    """Also where each line of them has as many commas as there are delimiters."""
    rows = [(f"Hello, number {number}\nyours, Anna", label) for number, (_, label) in enumerate(ROWS)]
    body = "".join(f'"{text}",{label}\n' for text, label in rows)
    table = read(tmp_path, "text,label\n" + body)
    assert list(zip(table.column("text"), table.column("label"), strict=True)) == rows
    assert table.notes == ()


@pytest.mark.parametrize("name", ["a.csv", "a.txt"])
@pytest.mark.parametrize("every", [1, 3, 20])
def test_one_column_of_texts_with_line_breaks_is_a_row_per_text(tmp_path: Path, name: str, every: int) -> None:
    """As pandas and spreadsheets write it: fields with commas, quotes or line breaks are in quotes, others are not."""
    texts = [f"row {number}" for number in range(40)]
    texts[::every] = [f'{text}, says "me"\nthanks, Anna' for text in texts[::every]]
    written = io.StringIO(newline="")
    csv.writer(written, lineterminator="\n").writerows([["text"], *([text] for text in texts)])
    assert read(tmp_path, written.getvalue(), name).column("text") == texts


def test_a_line_per_text_keeps_quotes_that_are_text(tmp_path: Path) -> None:
    texts = ['"great" film', "a 5 inch nail, or so", '"never again', "he left"]
    for name in ("a.csv", "a.txt"):
        assert read(tmp_path, "\n".join(["text", *texts]), name).column("text") == texts


def test_a_field_of_many_lines_is_noted(tmp_path: Path) -> None:
    letter = "\n".join(f"line {number}" for number in range(12))
    table = read(tmp_path, f'text,label\n{lines(",", [("hello", "a")])}"{letter}",b\nyes,b\n')
    assert table.column("text")[1] == letter
    note = 'line 3: a quoted field spans 12 lines; if the quote character is part of the text, double it ("")'
    assert table.notes == (note,)


def test_fasttext(tmp_path: Path) -> None:
    content = "__label__billing I was charged twice\n\n__label__login __label__app  cannot log in, __label__ said\n"
    table = read(tmp_path, content, "a.txt")
    assert table.column("label") == ["billing", "login|app"]
    assert table.column("text") == ["I was charged twice", "cannot log in, __label__ said"]
    assert table.describe_rows([1]).endswith("line 3")
    with pytest.raises(InputError, match=r"a\.txt line 2: expected __label__NAME before the text, as in line 1"):
        read(tmp_path, "__label__a hello\nyou\n", "a.txt")


def test_a_dialect_must_fit_nearly_all_rows() -> None:
    """A semicolon in three of five texts is not a delimiter, though their commas fit even fewer rows."""
    texts = [f"a text{'; number' if n % 5 < 3 else ''} {n}{', more' * (n % 7)}" for n in range(40)]
    assert detect_dialect("text,label\n" + "\n".join(texts), ".csv").delimiter == ","
