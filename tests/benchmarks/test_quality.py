"""benchmarks/quality.py: which rows a model is trained and scored on, and how its goals are computed."""

from __future__ import annotations

import functools
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


def measured(store: Any, quality: Any, tool: str, name: str, size: str = "2000", **entry: Any) -> None:
    """Add an entry for each seed: a value is a list then."""
    seeds = max(len(value) for value in entry.values())
    for seed in range(seeds):
        values = {what: value[seed % len(value)] for what, value in entry.items()}
        store.add(store.key(tool, (name, size, seed), False), values)


def test_goals_over_the_sets_that_both_have_run(quality: Any, tmp_path: Path) -> None:
    store = quality.Store(tmp_path / "q.json")
    add = functools.partial(measured, store, quality)
    curve = [[[5.0, 0.5], [9.0, 0.93], [12.0, 0.96]]]
    add("default", "trec", accuracy=[0.94, 0.96], wall=[10.0], rows=[500], curve=curve)
    add("default", "irony", accuracy=[0.65, 0.65], wall=[20.0], rows=[500])
    add("default", "banking77", accuracy=[0.92], wall=[20.0], rows=[500])
    add("default", "sst5", accuracy=[0.40], wall=[99.0], rows=[500])
    add(quality.SCRIPT, "trec", accuracy=[0.90, 0.94], wall=[100.0], train_seconds=[90.0])
    add(quality.SCRIPT, "irony", accuracy=[0.71], wall=[50.0], train_seconds=[40.0])
    add(quality.SCRIPT, "banking77", accuracy=[0.90], wall=[50.0], train_seconds=[40.0])
    add(quality.README, "trec", accuracy=[0.93], wall=[40.0])
    add(quality.TFIDF, "irony", accuracy=[0.60], wall=[3.0])
    add(quality.TFIDF, "sst5", accuracy=[0.41], wall=[3.0])
    add(quality.FAST, "irony", accuracy=[0.63], wall=[9.0], loading=[6.0])
    add("default", "trec", "k5", accuracy=[0.80], wall=[10.0])
    add(quality.SETFIT, "trec", "k5", accuracy=[0.82], wall=[40.0])
    lines = quality.goals(quality.Store(tmp_path / "q.json"), "default", False)
    assert [[cell.strip() for cell in line.split("|")[3:5]] for line in lines[2:]] == [
        ["+1.0", "3"],  # the seed that both have: 0.94 over 0.93, 0.65 under 0.71, 0.92 over 0.90
        ["-2.5", "2"],
        ["irony", "3"],
        ["1 of 2", "2"],
        ["0.25 x", "3"],
        ["0.12 x", "1"],  # 0.90 after 9 and 0.94 after 12 of 90 seconds
        ["0.50 x", "1"],  # of the two seeds of trec
        ["+3.0", "1"],
        ["1.00 x", "1"],
        ["-2.0", "1"],
        ["0.25 x", "1"],
    ]


def test_an_accuracy_that_is_never_reached_takes_for_ever(quality: Any, tmp_path: Path) -> None:
    store = quality.Store(tmp_path / "q.json")
    measured(store, quality, "default", "trec", curve=[[[5.0, 0.5], [9.0, 0.9]]])
    times = []
    for wanted in (0.4, 0.9, 0.95):
        measured(store, quality, quality.SCRIPT, "trec", accuracy=[wanted], train_seconds=[90.0])
        times.append(quality.times_to(store, "default", False)["trec"])
    assert times == [(5.0, 90.0), (9.0, 90.0), (float("inf"), 90.0)]


def test_the_ablations_are_those_of_the_document(quality: Any) -> None:
    assert quality.ablations().count("\n|") > 5
    assert "Measured and not used" in quality.ablations()
