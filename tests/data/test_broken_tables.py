"""Hundreds of broken tables, made by a seeded generator: each is read right, or ends in lines that name the file."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import feather, parquet

from classify.config.schema import DataConfig
from classify.data.reading import read_tables
from classify.data.split_table import split_table
from classify.data.splits import Splits
from classify.errors import InputError
from classify.tasks.registry import recognize

SEED, EACH = 7, 9
# Of one table, on a busy machine; measured alone they take hundredths.
SECONDS = 10.0
WORDS = ("card", "lost", "late", "fee", "money", "支付", "失败", "größe", "café", "😀", "=1+1", "<b>", "\x1b[31m")


def rows(draw: random.Random, count: int = 40) -> list[tuple[str, str]]:
    return [(" ".join(draw.choices(WORDS, k=draw.randint(1, 12))), draw.choice("xyz")) for _ in range(count)]


def as_csv(draw: random.Random, delimiter: str = ",") -> bytes:
    lines = [delimiter.join(["text", "label"])]
    for text, label in rows(draw):
        lines.append(f'"{text}"{delimiter}{label}' if draw.random() < 0.5 else f"{text}{delimiter}{label}")
    return "\n".join(lines).encode()


def as_json(draw: random.Random) -> bytes:
    return json.dumps([{"text": text, "label": label} for text, label in rows(draw)]).encode()


def as_jsonl(draw: random.Random) -> bytes:
    return b"\n".join(json.dumps({"text": text, "label": label}).encode() for text, label in rows(draw))


def columns(draw: random.Random) -> pyarrow.Table:
    given = rows(draw)
    return pyarrow.table({"text": [text for text, _ in given], "label": [label for _, label in given]})


def as_parquet(draw: random.Random) -> bytes:
    sink = io.BytesIO()
    parquet.write_table(columns(draw), sink)
    return sink.getvalue()


def as_feather(draw: random.Random) -> bytes:
    sink = io.BytesIO()
    feather.write_feather(columns(draw), sink)
    return sink.getvalue()


def as_workbook(draw: random.Random) -> bytes:
    import openpyxl

    book, sink = openpyxl.Workbook(), io.BytesIO()
    for row in [("text", "label"), *rows(draw)]:
        book.active.append([field.replace("\x1b", "") for field in row])
    book.save(sink)
    return sink.getvalue()


FORMS: dict[str, Callable[[random.Random], bytes]] = {
    ".csv": as_csv,
    ".tsv": lambda draw: as_csv(draw, "\t"),
    ".json": as_json,
    ".jsonl": as_jsonl,
    ".parquet": as_parquet,
    ".feather": as_feather,
    ".xlsx": as_workbook,
}


def cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data))]


def flip(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.randint(1, 20)):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


def insert(what: Callable[[random.Random], bytes]) -> Callable[[bytes, random.Random], bytes]:
    def inserted(data: bytes, draw: random.Random) -> bytes:
        for _ in range(draw.randint(1, 3)):
            place = draw.randrange(len(data))
            data = data[:place] + what(draw) + data[place:]
        return data

    return inserted


FAULTS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "cut off": cut,
    "flipped bytes": flip,
    "quotes": insert(lambda draw: draw.choice([b'"', b'""', b"'", b'\\"', b'",'])),
    "delimiters": insert(lambda draw: draw.choice([b",", b";", b"\t", b"|", b",,,,"])),
    "line breaks": insert(lambda draw: draw.choice([b"\r", b"\n", b"\r\n\r\n", "\x85".encode(), "\u2028".encode()])),
    "another encoding": insert(lambda draw: "größe 支付".encode(draw.choice(["gb18030", "utf-16", "utf-8", "utf-7"]))),
    "NULs": insert(lambda draw: b"\0" * draw.randint(1, 5)),
    "binary": insert(lambda draw: draw.randbytes(200)),
    "a long cell": insert(lambda draw: b"word " * 40_000),
    "twice": lambda data, draw: data + data,
    "a mark": lambda data, draw: (
        draw.choice([b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"PK\x03\x04", b"PAR1", b"[{"]) + data
    ),
    "nothing": lambda data, draw: b"",
    "blank": lambda data, draw: b" \n" * draw.randint(1, 9),
    "its start": lambda data, draw: data.partition(b"\n")[0] + b"\n",
    "deep": lambda data, draw: draw.choice([b"[", b'{"a":']) * 100_000,
    "compressed": lambda data, draw: draw.choice([gzip.compress, bz2.compress, lzma.compress])(data),
    "half compressed": lambda data, draw: cut(draw.choice([gzip.compress, bz2.compress, lzma.compress])(data), draw),
    "a bomb": lambda data, draw: gzip.compress(draw.choice([b"\0", b"a,", b"[", b"\n"]) * (70 << 20), 9),
}


def check_parts(splits: Splits) -> None:
    """Each row is in one split, or predicted, and each class is trained on."""
    parts = [
        part for part in (splits.train, splits.validation, splits.test, *splits.unlabelled.values()) if part is not None
    ]
    rows = np.concatenate([part.rows for part in parts])
    assert sorted(rows) == list(range(len(splits.train.table)))
    assert set(splits.train.targets) == set(range(len(splits.labels)))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_table_is_read_or_refused(tmp_path: Path, fault: str) -> None:
    draw = random.Random(f"{SEED} {fault}")
    for number in range(3 if fault == "a bomb" else EACH * len(FORMS)):
        name = f"table-{number}{draw.choice([*FORMS, '.txt', '.data'])}"
        form = list(FORMS.values())[number % len(FORMS)]
        (tmp_path / name).write_bytes(FAULTS[fault](form(draw), draw))
        config = DataConfig(data=str(tmp_path / name))
        begin = time.monotonic()
        try:
            tables = read_tables(config)
            splits = split_table(tables, recognize(tables), seed=0)
        except InputError as error:
            for line in error.faults:
                assert name in line or "--" in line, line
                assert "\n" not in line, line
        else:
            check_parts(splits)
        assert time.monotonic() - begin < SECONDS, name
        assert [path.name for path in tmp_path.iterdir()] == [name]
        (tmp_path / name).unlink()
