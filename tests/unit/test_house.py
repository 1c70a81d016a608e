"""The house keeps its own rules: sample data, law 3, recipes, sizes."""

from __future__ import annotations

import collections
import csv
import re
from pathlib import Path

import pytest

from tests.conftest import ROOT

MODULES = sorted((ROOT / "classify").rglob("*.py"))


def tickets() -> list[dict[str, str]]:
    with (ROOT / "data" / "tickets.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_no_two_messages_share_five_consecutive_words() -> None:
    seen: dict[tuple[str, ...], int] = {}
    for number, row in enumerate(tickets()):
        words = re.findall(r"[a-z0-9']+", row["text"].lower())
        for start in range(len(words) - 4):
            run = tuple(words[start : start + 5])
            assert seen.setdefault(run, number) == number, f"{' '.join(run)}: messages {seen[run]} and {number}"


def test_messages_are_many_and_uneven() -> None:
    rows = tickets()
    counts = collections.Counter(row["label"] for row in rows)
    assert len(rows) >= 800
    assert len(counts) == 8
    assert max(counts.values()) >= 2 * min(counts.values())
    lengths = [len(row["text"].split()) for row in rows]
    assert (min(lengths), max(lengths) <= 80) == (3, True)
    assert max(lengths) > 60


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_rank_lives_in_one_room(path: Path) -> None:
    """Law 3: no other module reads a launcher's variables or compares ranks."""
    if path.name in ("devices.py", "launch.py"):
        return
    text = path.read_text(encoding="utf-8")
    for sign in ("LOCAL_RANK", "get_rank", "rank ==", "rank !=", "SLURM_", "OMPI_", '"RANK"', '"WORLD_SIZE"'):
        assert sign not in text, sign


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_and_functions_stay_small(path: Path) -> None:
    import ast

    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 350
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 70, node.name


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_unpickled_and_no_remote_code_runs(path: Path) -> None:
    """Law 10."""
    text = path.read_text(encoding="utf-8")
    for sign in ("torch.load", "pickle.", "trust_remote_code=True", "yaml.load(", "allow_pickle=True", "eval("):
        assert sign not in text.replace(".eval()", ""), sign


def test_the_package_data_room_is_not_ignored() -> None:
    ignored = (ROOT / ".gitignore").read_text().split()
    assert "data/" not in ignored
    assert "data" not in ignored
