"""The readers under arbitrary input: what a writer wrote comes back, and bytes of any kind end in rows or in a line."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from classify.config.schema import DataConfig
from classify.data.reading import read_tables
from classify.data.split_table import split_table
from classify.errors import InputError
from classify.tables.formats.registry import read_table
from classify.tasks.registry import recognize

# The same examples on every machine, and no judgement of how fast it is.
FUZZ = settings(
    max_examples=150, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
# Signs that readers stumble over, in the company of others.
SIGNS = st.text(st.sampled_from("a b,;|\t\"'\\\r\n\x85\u2028\0=ü支😀"), max_size=12)
BEGINNINGS = st.sampled_from([b"PAR1", b"ARROW1", b"PK\x03\x04", b"\x1f\x8b\x08", b"\xff\xfe", b'[{"a":'])
ROWS = st.lists(st.tuples(TEXTS | SIGNS, SIGNS), min_size=1, max_size=8)


def read(name: str, content: bytes) -> list[tuple[str, ...]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        table = read_table(str(path))
        return list(zip(*(table.column(column) for column in table.columns), strict=True))


@FUZZ
@given(ROWS, st.sampled_from(",;\t|"), st.sampled_from(["\n", "\r\n"]))
@example([("a\r\nb", ""), ("", "c")], ",", "\n")
def test_a_table_of_quoted_fields_comes_back(rows: list[tuple[str, str]], delimiter: str, end: str) -> None:
    written = io.StringIO(newline="")
    csv.writer(written, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(
        [("text", "label"), *rows]
    )
    assert read("a.csv", written.getvalue().encode()) == [row for row in rows if any(row)]


@FUZZ
@given(ROWS)
def test_json_comes_back(rows: list[tuple[str, str]]) -> None:
    objects = [{"text": text, "label": label} for text, label in rows]
    assert read("a.json", json.dumps(objects).encode()) == rows
    assert read("a.jsonl", "\n".join(json.dumps(one, ensure_ascii=False) for one in objects).encode()) == rows


def test_half_a_character_in_json() -> None:
    assert read("a.json", b'[{"text": "a\\ud83d", "label": "\\ud83d\\ude00"}]') == [("a\ufffd", "😀")]
    assert read("a.json", b'[{"\\ud800": "a", "label": "b"}]') == [("a", "b")]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".json", ".jsonl", ".parquet", ".arrow", ".xlsx", ".csv.gz"])
@FUZZ
@given(
    st.binary(max_size=300)
    | SIGNS.map(str.encode)
    | st.lists(SIGNS, max_size=6).map(lambda parts: ("text,label\n" + "\n".join(parts)).encode())
    | st.tuples(BEGINNINGS, st.binary(max_size=99)).map(b"".join)
)
def test_any_bytes_end_in_rows_or_in_a_line(suffix: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a{suffix}"
        path.write_bytes(content)
        config = DataConfig(data=str(path))
        faults: tuple[str, ...] = ()
        try:
            tables = read_tables(config)
            split_table(tables, recognize(tables), 0)
        except InputError as error:
            faults = error.faults
        assert all("\n" not in line for line in faults)
        assert [entry.name for entry in Path(folder).iterdir()] == [path.name]
