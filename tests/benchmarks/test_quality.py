"""benchmarks/quality.py: which rows a model is trained and scored on, and how its goals are computed."""

from __future__ import annotations

import importlib.util
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import ROOT


@pytest.fixture(scope="module")
def quality() -> Any:
    spec = importlib.util.spec_from_file_location("quality", ROOT / "benchmarks" / "quality.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path, quality: Any) -> Path:
    """A set of 3,500 rows and one of 1,000, with test rows that name themselves."""
    for name, count in (("trec", 3_500), ("irony", 1_000)):
        (tmp_path / "quality" / name).mkdir(parents=True)
        for part, rows in (("train", count), ("test", 50)):
            drawn = [(f"{part}, row {number}", random.Random(number).choice("abc")) for number in range(rows)]
            quality.write(tmp_path / "quality" / name / f"{part}.csv", drawn)
    return tmp_path


@pytest.mark.parametrize("size", ["1000", "2000", "k5", "k10"])
@pytest.mark.parametrize("name", ["trec", "irony"])
def test_choices_never_see_test_rows(quality: Any, folder: Path, name: str, size: str) -> None:
    train, scored = quality.draw_rows(folder, (name, size, 1), validation=True)
    assert not set(train) & set(scored)
    assert all(text.startswith("train") for text, _ in [*train, *scored])
    again, tested = quality.draw_rows(folder, (name, size, 1), validation=False)
    assert all(text.startswith("train") for text, _ in again)
    assert {text[:4] for text, _ in tested} == {"test"}
    assert train != quality.draw_rows(folder, (name, size, 2), validation=True)[0]
    if size.startswith("k"):
        assert set(Counter(label for _, label in train).values()) == {int(size[1:])}
    else:
        assert len(again) == min(int(size), 3_500 if name == "trec" else 1_000)


def test_the_tickets_are_cut_in_five(quality: Any, folder: Path) -> None:
    parts = [quality.draw_rows(folder, ("tickets", "2000", seed), validation=False) for seed in range(5)]
    together = Counter(row for _, scored in parts for row in scored)
    assert together == Counter(quality.read(ROOT / "data" / "tickets.csv"))
    assert all(Counter(train) + Counter(scored) == together for train, scored in parts)
