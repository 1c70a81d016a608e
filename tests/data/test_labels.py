"""Labels as people type them: which of them are one class, and which may be none."""

from __future__ import annotations

import csv
import random
import shlex
import time
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from classify.config.schema import DataConfig
from classify.data.reading import read_tables
from classify.data.split_table import split_table
from classify.data.splits import Splits
from classify.errors import InputError
from classify.tables.formats.registry import read_table
from classify.tables.labels import is_typo, name_classes
from classify.tasks.multi_label import MultiLabel
from classify.tasks.registry import recognize
from classify.tasks.single_label import SingleLabel
from tests.support.findings import decisions_of, notes_of

# Eight classes, three of which somebody wrote otherwise now and then.
COUNTS = {
    "Billing": 63,
    "Refund": 40,
    "Shipping": 30,
    "Login": 20,
    "Returns": 20,
    "Prices": 12,
    "Café": 12,
    "Other": 10,
    "billing ": 2,
    "REFUND": 1,
    unicodedata.normalize("NFD", "Café"): 3,
}


def load(path: Path, counts: dict[str, int], **options: Any) -> Splits:
    labels = [label for label, count in counts.items() for _ in range(count)]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *((f"text {i}", label) for i, label in enumerate(labels))])
    config = DataConfig(data=str(path), **options)
    tables = read_tables(config)
    return split_table(tables, recognize(tables), seed=0)


def test_labels_that_differ_in_writing_alone_are_one_class(tmp_path: Path) -> None:
    """Called as most rows call it; one line says so with the rows of each, and how to keep them apart."""
    splits = load(tmp_path / "a.csv", COUNTS)
    assert splits.labels == ["Billing", "Café", "Login", "Other", "Prices", "Refund", "Returns", "Shipping"]
    (line,) = [guess.line() for guess in decisions_of(splits) if guess.where == "labels"]
    assert "'Billing' (63) = 'billing ' (2), 'Refund' (40) = 'REFUND' (1), 'Café' (12) = " in line
    assert line.endswith("; --normalize-labels none)")
    rows = sum(len(part) for part in (splits.train, splits.validation, splits.test or ()))
    assert rows == sum(COUNTS.values())


def test_labels_are_kept_apart_where_that_is_asked_for(tmp_path: Path) -> None:
    splits = load(tmp_path / "a.csv", COUNTS, normalize_labels="none")
    assert len(splits.labels) == 11
    assert not any(guess.where == "labels" for guess in decisions_of(splits))
    assert sum("they are two classes" in note for note in notes_of(splits)) == 3


def test_labels_that_nobody_mistyped_are_not_talked_about(tmp_path: Path) -> None:
    splits = load(tmp_path / "a.csv", {"a": 20, "b": 20})
    assert [guess.where for guess in decisions_of(splits)] == ["text column", "label column", "task", "split"]
    assert notes_of(splits) == []


@pytest.mark.parametrize(("one", "other"), [("m2", "m²"), ("A", "\uff21"), ("naïve", "naive"), ("a_b", "a b")])
def test_other_characters_are_other_labels(one: str, other: str) -> None:
    classes = name_classes({one: 5, other: 5})
    assert classes.of(one) != classes.of(other)


def test_a_label_of_several_ways_has_one_name() -> None:
    with pytest.raises(
        InputError, match=r"--label-names gives 'pos' the name 'y', and another name .*--normalize-labels none"
    ):
        name_classes({"Pos": 5, "pos": 3}, requested="Pos=x,pos=y")
    assert name_classes({"Pos": 5, "pos": 3}, requested="Pos=x,pos=x").of("pos") == "x"
    assert name_classes({"Pos": 5, "pos": 3}, requested="Pos=x,pos=y", normalize=False).of("pos") == "y"


@pytest.mark.parametrize(("counts", "noted"), [({"1": 20, "01": 20, "2": 20}, True), ({"1": 20, "10": 20}, False)])
def test_classes_that_are_the_same_number_are_noted(tmp_path: Path, counts: dict[str, int], noted: bool) -> None:
    splits = load(tmp_path / "a.csv", counts)
    assert splits.labels == sorted(counts)
    note = "the labels '01', '1' are the same number, yet different classes; write them alike if they are one"
    assert (note in notes_of(splits)) == noted


@pytest.mark.parametrize(
    ("cells", "none"),
    [(['["a"]', '["b"]'], "[]"), (['["a"]', '["b"]'], '[""]'), (["a", "b"], "\u200b"), (["a", "b"], "[]")],
)
def test_lists_without_a_label_and_invisible_cells_are_no_class(tmp_path: Path, cells: list[str], none: str) -> None:
    splits = load(tmp_path / "a.csv", {cells[0]: 20, cells[1]: 20, none: 15})
    assert splits.labels == ["a", "b"]
    assert len(splits.unlabelled["unlabelled.csv"]) == 15
    with pytest.raises(InputError, match="the label is empty in 45 of 85 rows"):
        load(tmp_path / "a.csv", {cells[0]: 20, cells[1]: 20, none: 45})


def test_many_labels_without_letters_are_read_in_time() -> None:
    """Each is looked at once: a pass over all for each took 17 s."""
    signs = [chr(0x2190 + n // 90) + chr(0x2200 + n % 90) for n in range(8_000)]
    begin = time.process_time()
    assert notes_of(name_classes(dict.fromkeys(signs, 2))) == []
    assert time.process_time() - begin < 5


@pytest.mark.parametrize("task", [SingleLabel(["a", "b"]), MultiLabel(["a", "b"])], ids=["single", "multi"])
def test_many_unknown_labels_are_refused_in_time(tmp_path: Path, task: SingleLabel | MultiLabel) -> None:
    """One pass over the rows for each took more than 20 s."""
    path = tmp_path / "test.csv"
    path.write_text("text,label\n" + "".join(f"new {n},u{n}\n" for n in range(400_000)))
    table = read_table(str(path))
    begin = time.process_time()
    with pytest.raises(InputError, match=r"400000 labels are in no row of --data: 'u0' \(.*test.csv line 2\), 'u1' "):
        task.encode(table, "label", "--data")
    assert time.process_time() - begin < 10


@pytest.mark.parametrize(
    ("typed", "meant", "may_be"),
    [
        ("Biling", "Billing", True),
        ("Billling", "Billing", True),
        ("Biliing", "Billing", True),
        ("Bililng", "Billing", True),
        ("tehcnical issue", "technical issues", True),
        ("satisfied", "unsatisfied", False),
        ("legal", "illegal", False),
        ("1 star", "2 star", False),
        ("level 10", "level 1", False),
        ("pos", "neg", False),
        ("card", "cash", False),
    ],
)
def test_a_label_may_be_mistyped(typed: str, meant: str, may_be: bool) -> None:
    assert is_typo(typed, meant) is may_be
    notes = notes_of(name_classes({typed: 1, meant: 30, "another": 20}))
    flag = shlex.quote(f"{typed}={meant}")
    assert [note for note in notes if f"--label-names {flag}" in note] == (notes if may_be else [])
    assert bool(notes) is may_be


def test_typing_errors_are_one_note_with_one_flag() -> None:
    """However often a long name is mistyped; short ones that occur often are names of their own."""
    rows = {"Shipping": 46, "Shiping": 5, "Feature request": 24, "Feature reqest": 3, "card": 30, "cart": 9}
    (typos,) = name_classes(rows).findings()
    assert typos.flag == "--label-names 'Shiping=Shipping,Feature reqest=Feature request'"
    assert typos.text.startswith("labels that may be typing errors: 'Shiping' (5) of 'Shipping' (46), ")
    names = name_classes(rows, requested="Shiping=Shipping,Feature reqest=Feature request")
    assert (names.of("Shiping"), names.of("Feature reqest")) == ("Shipping", "Feature request")
    assert any("are one class" in note for note in notes_of(names))


@pytest.mark.parametrize("length", [60, 3_000])
def test_long_labels_are_compared_in_time(length: int) -> None:
    """Sentences are no typing errors; with a quadratic comparison 2.7 MB took minutes."""
    draw = random.Random(0)
    labels = ["".join(draw.choices("abcdefgh ", k=length)) for _ in range(300)]
    begin = time.process_time()
    assert notes_of(name_classes(dict.fromkeys(labels, 2))) == []
    assert time.process_time() - begin < 5


@pytest.mark.parametrize("labels", [("card", "app"), ("card,app", "card")], ids=["classes", "lists"])
def test_a_file_without_labels_among_others(labels: tuple[str, str], tmp_path: Path) -> None:
    """Its column may be empty because its labels are in another one, which nobody has renamed."""
    lines = [f'the order number {place} is late,"{labels[place % 2]}"' for place in range(60)]
    (tmp_path / "my.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    (tmp_path / "new.csv").write_text("text,label,predicted_label\n" + "a new message,,card\n" * 9)
    (tmp_path / "bare.csv").write_text("text,label\n")
    names = [str(tmp_path / name) for name in ("my.csv", "new.csv")]
    with pytest.raises(
        InputError, match=r"new\.csv: none of its 9 rows has a label in column 'label'.*predicted_label"
    ):
        recognize(read_tables(DataConfig(data=",".join(names))))
    recognize(read_tables(DataConfig(data=",".join(names), predict_unlabelled=True)))
    recognize(read_tables(DataConfig(data=f"{names[0]},{tmp_path / 'bare.csv'}")))
