"""Labels as people type them: which are one class, which are several in a cell, which may be none."""

from __future__ import annotations

import csv
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
from classify.tables.labels import find_separator, find_typos, name_classes, parse_list, split_cell
from classify.tables.read import read_table
from classify.tables.source import Question, QuestionError
from classify.tasks import multi_label, single_label
from classify.tasks.base import Task
from classify.tasks.registry import recognize
from tests.support.findings import decisions_of, notes_of

COUNTS = {
    "Billing": 63, "Refund": 40, "Shipping": 30, "Login": 20, "Café": 12, "billing ": 2, "REFUND": 1,
    unicodedata.normalize("NFD", "Café"): 3,
}  # fmt: skip


def load(path: Path, counts: dict[str, int], **options: Any) -> Splits:
    labels = [label for label, count in counts.items() for _ in range(count)]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *((f"text {i}", label) for i, label in enumerate(labels))])
    tables = read_tables(DataConfig(data=str(path), **options))
    return split_table(tables, recognize(tables).targets, seed=0)


def test_labels_that_differ_in_writing_alone_are_one_class(tmp_path: Path) -> None:
    """Called as most rows call it; one line says so with the rows of each, and how to keep them apart."""
    splits = load(tmp_path / "a.csv", COUNTS)
    assert splits.labels == ["Billing", "Café", "Login", "Refund", "Shipping"]
    (line,) = [guess.line() for guess in decisions_of(splits) if guess.where == "labels"]
    assert "'Billing' (63) = 'billing ' (2), 'Refund' (40) = 'REFUND' (1), 'Café' (12) = " in line
    assert line.endswith("; --normalize-labels none)")
    apart = load(tmp_path / "a.csv", COUNTS, normalize_labels="none")
    assert len(apart.labels) == 8


@pytest.mark.parametrize(("one", "other"), [("m2", "m²"), ("A", "\uff21"), ("naïve", "naive"), ("a_b", "a b")])
def test_other_characters_are_other_labels(one: str, other: str) -> None:
    classes = name_classes({one: 5, other: 5})
    assert classes.of(one) != classes.of(other)


def test_a_label_of_several_ways_has_one_name() -> None:
    with pytest.raises(InputError, match=r"--label-names gives 'pos' the name 'y', and another name .*--normalize-la"):
        name_classes({"Pos": 5, "pos": 3}, requested="Pos=x,pos=y")
    assert name_classes({"Pos": 5, "pos": 3}, requested="Pos=x,pos=x").of("pos") == "x"
    assert name_classes({"Pos": 5, "pos": 3}, requested="Pos=x,pos=y", normalize=False).of("pos") == "y"


@pytest.mark.parametrize("none", ["NA", "n/a", "[null]", "undefined", "\u200b", "[]"])
def test_what_is_no_label(tmp_path: Path, none: str) -> None:
    splits = load(tmp_path / "a.csv", {"a": 20, "b": 20, none: 15})
    assert splits.labels == ["a", "b"]
    assert len(splits.unlabelled["unlabelled.csv"]) == 15


def test_a_missing_value_can_be_a_class(tmp_path: Path) -> None:
    notes = notes_of(load(tmp_path / "a.csv", {"a": 20, "b": 20, "NA": 15}))
    said = "15 rows have the label 'NA', which is read as missing; to keep it as a class: --label-names NA=NA"
    assert said in notes
    assert load(tmp_path / "a.csv", {"a": 20, "NA": 15}, label_names="NA=NA").labels == ["NA", "a"]


def test_a_column_that_is_mostly_empty_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="column 'label' is empty in 90 of 120 rows"):
        load(tmp_path / "a.csv", {"a": 20, "b": 10, "": 90}, label_column="label")


def test_yes_in_several_ways_is_refused_with_the_flag_that_merges(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--label-names 1=yes,TRUE=yes,no=no") as caught:
        load(tmp_path / "a.csv", {"TRUE": 20, "1": 10, "no": 30})
    names = shlex.split(str(caught.value).split("--label-names ")[1].rstrip("."))[0]
    assert load(tmp_path / "a.csv", {"TRUE": 20, "1": 10, "no": 30}, label_names=names).labels == ["no", "yes"]


@pytest.mark.parametrize(("first", "last"), [("category", ""), ("", "Total")])
def test_a_row_that_may_be_none_is_asked(tmp_path: Path, first: str, last: str) -> None:
    """Units below the header, or a total below the rows; the flag of the question leaves it out."""
    rows = [(f"a text that has several words, number {n}", "ab"[n % 2]) for n in range(40)]
    rows = [*([("string", first)] if first else []), *rows, *([("Sum", last)] if last else [])]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    tables = read_tables(DataConfig(data=str(tmp_path / "a.csv")))
    with pytest.raises(
        QuestionError, match=rf"is '\w+' with the label .* \(line {2 if first else 42}\) a row"
    ) as caught:
        recognize(tables)
    flag = caught.value.questions[0].flags[0].split(" to ")[0]
    assert flag == f"--unlabelled-value={first or last}"
    tables = read_tables(DataConfig(data=str(tmp_path / "a.csv"), unlabelled_value=first or last))
    assert recognize(tables).labels == ["a", "b"]


@pytest.mark.parametrize(
    ("cells", "separator", "parts"),
    [
        (["a,b", "b,c", "a", "b", "c"], ",", ["a", "b"]),
        (["a, b; c", "c; d", "a, b", "c", "d"], ";", ["a, b", "c"]),
        (["a|b|", "c|b|", "a", "b", "c"], "|", ["a", "b"]),
        (['["a", "b"]', "[]"], "[]", ["a", "b"]),
        (["['a', \"b\"]", "['c']"], "[]", ["a", "b"]),
        (["a b", "c"], None, ["a b"]),
        ([f"Name {n}, Other" for n in range(50)], None, ["Name 0, Other"]),
        ([f"{part}; {n}" for n, part in enumerate("aabbccdd")], None, ["a; 0"]),
        (["x,y"], None, ["x,y"]),
    ],
)
def test_cells_are_split(cells: list[str], separator: str | None, parts: list[str]) -> None:
    assert find_separator(dict.fromkeys(cells, 10)) == separator
    assert split_cell(cells[0], separator) == parts


@pytest.mark.parametrize(
    "cells",
    [
        ["a & b", "b & c", "a", "b", "c"],
        ["a and b", "b and c", "a", "b", "c"],
        ["w-1;f-0", "w-1;f-1", "w-0;f-0", "w-0;f-1"],
        ["[8, 9]", "[7, 9]"],
    ],
)
def test_cells_that_may_hold_several_labels_are_asked(cells: list[str]) -> None:
    assert isinstance(find_separator(dict.fromkeys(cells, 10)), Question)


@pytest.mark.parametrize("cell", ["[1, ", "{'a': 1}", "['a' 'b']", '[{"a": 1}]', "[" * 5_000])
def test_a_cell_that_is_no_list(cell: str) -> None:
    assert parse_list(cell) is None


def test_a_trained_model_reads_labels_however_they_are_written(tmp_path: Path) -> None:
    """Lists, other separators and spellings of its labels."""
    task = multi_label.make(["a", "b", "c"], separator=",", classes=name_classes(dict.fromkeys("abc", 1)))
    (tmp_path / "a.csv").write_text('text,label\none,"[""a"", ""b""]"\ntwo,a|C\nthree,\nfour,"b,c"\n')
    table = read_table(str(tmp_path / "a.csv"))
    targets = task.targets.encode(table, "label", "the model")
    assert targets.tolist() == [[1, 1, 0], [1, 0, 1], [0, 0, 0], [0, 1, 1]]
    single = single_label.make(["a", "b"], name_classes(dict.fromkeys("ab", 1))).targets
    (tmp_path / "b.csv").write_text('text,label\none,"[""a""]"\ntwo,\nthree,[]\n')
    assert single.labelled(read_table(str(tmp_path / "b.csv")), "label").tolist() == [True, False, False]


@pytest.mark.parametrize("task", [single_label.make(["a", "b"]), multi_label.make(["a", "b"])], ids=["single", "multi"])
def test_many_unknown_labels_are_refused_in_time(tmp_path: Path, task: Task) -> None:
    """One pass over the rows for each took more than 20 s."""
    (tmp_path / "test.csv").write_text("text,label\n" + "".join(f"new {n},u{n}\n" for n in range(100_000)))
    table, begin = read_table(str(tmp_path / "test.csv")), time.process_time()
    with pytest.raises(
        InputError, match=r"test.csv line 2: the label 'u0' is in no row of --data(.*\n)*.*100000 labels in all"
    ):
        task.targets.encode(table, "label", "--data")
    assert time.process_time() - begin < 10


@pytest.mark.parametrize(
    ("typed", "meant", "may_be"),
    [
        ("Biling", "Billing", True), ("Billling", "Billing", True), ("Bililng", "Billing", True),
        ("tehcnical issue", "technical issues", True), ("satisfied", "unsatisfied", False), ("legal", "illegal", False),
        ("1 star", "2 star", False), ("level 10", "level 1", False), ("pos", "neg", False), ("card", "cash", False),
    ],
)  # fmt: skip
def test_a_label_may_be_mistyped(typed: str, meant: str, may_be: bool) -> None:
    assert find_typos({meant: 9, typed: 3}) == ({typed: meant} if may_be else {})


def test_typing_errors_are_one_note_with_one_flag() -> None:
    rows = {"Shipping": 46, "Shiping": 5, "Feature request": 24, "Feature reqest": 3, "card": 30, "cart": 9}
    (typos,) = name_classes(rows).findings()
    assert typos.flag == "--label-names 'Shiping=Shipping,Feature reqest=Feature request'"
    names = name_classes(rows, requested=shlex.split(typos.flag)[1])
    assert (names.of("Shiping"), names.of("Feature reqest")) == ("Shipping", "Feature request")


def test_names_with_a_sign_between_their_parts_are_names() -> None:
    queues = ["Billing", "Technical", "Account"]
    topics = ["Refund", "Late", "Login", "Crash", "Close", "Export", "Invoice", "Slow", "Merge"]
    for sign in ("::", "^", " - ", "|"):
        cells = {f"{queues[number // 3]}{sign}{topic}": 20 for number, topic in enumerate(topics)}
        assert find_separator(cells) is None
