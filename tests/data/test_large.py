"""A table of a million rows: read, divided, inspected and tokenized in little more memory than a small one."""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

import psutil
import pyarrow
import pytest
from pyarrow import parquet

from classify.tables import cache
from classify.tables.dialect import Dialect
from classify.tables.encoding import Encoding
from classify.tables.formats import delimited
from classify.tables.formats.registry import read_table
from classify.tables.source import Source
from tests.support.runs import read_json

ROWS = 1_000_000
WORDS = "card lost late fee money transfer refund blocked phone app login slow crash price cheap customer".split()  # noqa: SIM905
# What ten million rows, with what the libraries take, may need at most; a tenth of the rows a tenth of the rest.
MOST, LIBRARIES = 2 << 30, 800 << 20


def write(path: Path, rows: int) -> Path:
    draw = random.Random(0)
    with path.open("w") as file:
        file.write("id,text,label\n")
        for row in range(rows):
            file.write(f"{row},{row} {' '.join(draw.choices(WORDS, k=12))},class {row % 20}\n")
    return path


def test_a_table_that_is_too_large_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the same rows, also where rows span pieces and lines, and the second time from the cache, until it changes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "a.csv"
    rows = [(f'"{number},\n""more"""', f"class {number % 3}") for number in range(5000)]
    path.write_text("\n\ntext,label\n" + "\n".join(map(",".join, rows)) + "\n")
    wanted = read_table(str(path))
    monkeypatch.setattr("classify.tables.formats.delimited.LARGE", 1 << 12)
    monkeypatch.setattr("classify.tables.formats.delimited._PIECE", 1000)
    table = read_table(str(path))
    assert table.arrow.equals(wanted.arrow)
    assert table.describe_rows([0, 4999]) == wanted.describe_rows([0, 4999])
    assert cache.cached_bytes()[0] == 1
    assert read_table(str(path)).arrow.equals(wanted.arrow)
    assert cache.cached_bytes()[0] == 1
    (entry,) = (one for one in cache.cache_folder().iterdir() if one.is_dir())
    assert entry.stat().st_mode & 0o077 == 0
    path.write_text(path.read_text() + "new,class 0\n")
    assert len(read_table(str(path))) == 5001
    assert cache.cached_bytes()[0] == 2
    (entry / "rows.arrow").write_bytes(b"damaged")
    path.write_text(path.read_text().removesuffix("new,class 0\n"))
    assert read_table(str(path)).arrow.equals(wanted.arrow)


def test_a_large_table_read_in_another_way_is_another_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same file with its header a line further down has other rows: the cached ones are not taken for them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("classify.tables.formats.delimited.LARGE", 1 << 10)
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" * 2 + "".join(f"words {n},class {n % 3}\n" for n in range(500)))
    rows = []
    for above in (0, 1):
        text = delimited._Text(Source(str(path), "--data"), Encoding("utf-8"), above)
        rows.append(len(delimited._parse(text, Dialect(","), ["text", "label"], True)))
    assert rows == [501, 500]


def test_large_files_of_other_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parquet a batch at a time, JSON Lines a block at a time: a key that a block lacks is empty there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows = [{"text": f"text {n}", "label": n % 3} | ({"late": "x"} if n == 40 else {}) for n in range(50)]
    typed = pyarrow.table({"text": [row["text"] for row in rows], "label": [row["label"] for row in rows]})
    parquet.write_table(typed, tmp_path / "a.parquet")
    wanted = read_table(str(tmp_path / "a.parquet"))
    monkeypatch.setattr("classify.tables.formats.columnar.LARGE", 10)
    monkeypatch.setattr("classify.tables.formats.records._BLOCK", 7)
    table = read_table(str(tmp_path / "a.parquet"))
    assert table.arrow.equals(wanted.arrow)
    assert cache.cached_bytes()[0] == 1
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    lines = read_table(str(tmp_path / "a.jsonl"))
    assert lines.columns == ["text", "label", "late"]
    assert lines.column("late") == ["x" if n == 40 else "" for n in range(50)]
    assert lines.column("label") == wanted.column("label")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="anonymous memory is known on Linux")
def test_a_million_rows_take_little_memory(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not counting what is mapped from files, which the system takes back when it has to."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write(tmp_path / "a.csv", ROWS)
    assert path.stat().st_size > cache.LARGE
    words = [sys.executable, "-m", "classify", "inspect", "--data", str(path), "--model", str(model_folder), "--cpu"]
    report = tmp_path / "report.json"
    with report.open("w") as file:
        process = psutil.Popen([*words, "--json"], cwd=tmp_path, stdout=file)
    peak = 0
    while process.poll() is None:
        try:
            memory = process.memory_info()
            peak = max(peak, memory.rss - memory.shared)
        except psutil.Error:
            break
        time.sleep(0.02)
    assert process.wait() == 0
    assert read_json(report)["rows"] == ROWS
    assert peak < LIBRARIES + (MOST - LIBRARIES) / 10, f"{peak >> 20} MiB"
