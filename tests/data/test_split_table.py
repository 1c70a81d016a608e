"""How rows come to be trained on, evaluated or tested, and which rows have no label."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from classify.config.schema import DataConfig
from classify.data.reading import read_tables
from classify.data.split_record import SplitRecord, write_record
from classify.data.split_table import split_table
from classify.data.splits import Splits
from classify.errors import InputError
from classify.tables.rules import SPLITS
from classify.tasks.registry import recognize
from tests.support.findings import decisions_of, notes_of

WORDS = "card lost late fee money transfer refund blocked phone app login slow crash price cheap".split()  # noqa: SIM905


def load(path: Path, seed: int = 0, **options: Any) -> Splits:
    config = DataConfig(data=str(path), **options)
    tables = read_tables(config)
    return split_table(tables, recognize(tables).targets, seed)


def sentence(draw: random.Random) -> str:
    return " ".join(draw.choices(WORDS, k=12))


def write(path: Path, rows: list[tuple[Any, ...]], header: str = "text,label") -> Path:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def texts_of(splits: Splits) -> dict[str, set[str]]:
    parts = zip(SPLITS, (splits.train, splits.validation, splits.test), strict=True)
    return {name: set(part.texts("text")) if part is not None else set() for name, part in parts}


# A column that says which part a row is in.


@pytest.mark.parametrize("options", [{}, {"split_column": "split"}])
def test_a_column_says_which_part_a_row_is_in(tmp_path: Path, options: dict[str, str]) -> None:
    parts = ["train"] * 20 + ["dev"] * 6 + ["test"] * 4
    rows = [(f"text {i}", "ab"[i % 2], part) for i, part in enumerate(parts)]
    splits = load(write(tmp_path / "a.csv", rows, "text,label,split"), **options)
    assert texts_of(splits) == {
        "train": {f"text {i}" for i in range(20)},
        "eval": {f"text {i}" for i in range(20, 26)},
        "test": {f"text {i}" for i in range(26, 30)},
    }
    assert decisions_of(splits)[-1].flag == "--split-column"


def test_without_rows_to_evaluate_they_are_taken_from_those_to_train_on(tmp_path: Path) -> None:
    rows = [(f"text {i}", "ab"[i % 2], "train" if i < 40 else "test") for i in range(50)]
    path = write(tmp_path / "a.csv", rows, "text,label,set")
    splits = load(path)
    assert splits.test is not None
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [36, 4, 10]
    assert texts_of(splits)["test"] == {f"text {i}" for i in range(40, 50)}
    alone = load(path, split_column="none")
    assert alone.test is not None
    assert [len(part) for part in (alone.train, alone.validation, alone.test)] == [40, 5, 5]


@pytest.mark.parametrize(
    "value", [lambda i: i % 3, lambda i: f"train {i}", lambda i: f"plane {i}" if i else "train", lambda i: "train"]
)
def test_a_column_of_something_else_is_no_split_column(tmp_path: Path, value: Callable[[int], object]) -> None:
    rows = [(f"text {i}", "ab"[i % 2], value(i)) for i in range(40)]
    path = write(tmp_path / "a.csv", rows, "text,label,part")
    assert "80/10/10" in decisions_of(load(path))[-1].why


# Time.


@pytest.mark.parametrize(
    "form",
    ["{:%Y-%m-%d}", "{:%Y-%m-%d %H:%M:%S}", "{:%Y-%m-%dT%H:%M:%SZ}", "{:%Y-%m-%d %H:%M:%S UTC}", "{:%s}",
     "{:%Y%m%d}"],
)  # fmt: skip
def test_the_newest_rows_are_tested(tmp_path: Path, form: str) -> None:
    days = list(range(100))
    random.Random(1).shuffle(days)
    start = datetime.datetime(2024, 1, 20)
    rows = [(f"text {day}", "ab"[day % 2], form.format(start + datetime.timedelta(day))) for day in days]
    splits = load(write(tmp_path / "a.csv", rows, "text,label,sent"), split_by_time="sent")
    assert texts_of(splits) == {
        "train": {f"text {i}" for i in range(80)},
        "eval": {f"text {i}" for i in range(80, 90)},
        "test": {f"text {i}" for i in range(90, 100)},
    }


def test_rows_of_one_moment_stay_together(tmp_path: Path) -> None:
    rows = [(f"text {i}", "ab"[i % 2], f"2024-01-{1 + i // 30:02}") for i in range(90)]
    splits = load(write(tmp_path / "a.csv", rows, "text,label,day"), split_by_time="day")
    parts = texts_of(splits)
    assert parts["eval"] == {f"text {i}" for i in range(30, 60)}
    assert parts["test"] == {f"text {i}" for i in range(60, 90)}


@pytest.mark.parametrize("form", ["%m/%d/%Y", "%a, %d %b %Y %H:%M:%S +0000", "%d%m%Y"])
def test_the_format_of_times_is_given(tmp_path: Path, form: str) -> None:
    """It is asked for: the day, the month or the year may come first."""
    days = random.Random(1).sample(range(100), 100)
    start = datetime.datetime(2024, 1, 20)
    rows = [(f"text {i}", "ab"[i % 2], f'"{start + datetime.timedelta(i):{form}}"') for i in days]
    path = write(tmp_path / "a.csv", rows, "text,label,day")
    with pytest.raises(InputError, match=r"--split-by-time day: .*Expected a time such as 2024-12-31"):
        load(path, split_by_time="day")
    splits = texts_of(load(path, split_by_time="day", time_format=form))
    assert splits["test"] == {f"text {i}" for i in range(90, 100)}


# The record of an earlier run.


def test_rows_that_a_cap_left_out_are_recorded_as_unused(tmp_path: Path) -> None:
    """They were not trained on; --split-like keeps them in the training split."""
    path = write(tmp_path / "a.csv", [(f"text {i}", "ab"[i % 2]) for i in range(100)])
    splits = load(path, max_train_samples=20)
    earlier = recorded(tmp_path / "run", splits)
    hashes = splits.train.table.text_hashes("text")
    assert SplitRecord.read(earlier).find_trained(hashes).sum() == 20
    assert texts_of(load(path, seed=1, split_like=earlier)) == texts_of(load(path))


def recorded(folder: Path, splits: Splits) -> str:
    folder.mkdir()
    assert splits.assignment is not None
    write_record(folder, splits.train.table.text_hashes("text"), splits.assignment)
    return str(folder)


def test_a_text_in_two_splits_is_recorded_as_trained_on(tmp_path: Path) -> None:
    """By a column it may be a test row first, and a training row further down."""
    rows = [(f"text {i}", "ab"[i % 2], "test") for i in range(10)]
    rows += [(f"text {i}", "ab"[i % 2], "train") for i in range(5, 100)]
    splits = load(write(tmp_path / "a.csv", rows, "text,label,split"))
    hashes = splits.train.table.text_hashes("text")
    trained = hashes[splits.train.rows]
    assert SplitRecord.read(recorded(tmp_path / "run", splits)).find_trained(trained).all()


def test_a_table_with_more_rows_is_divided_as_before(tmp_path: Path) -> None:
    """Rows that an earlier run knew stay where they were, in whatever order; new ones fill the parts up."""
    draw = random.Random(3)
    rows = [(sentence(draw), "abc"[i % 3]) for i in range(200)]
    before = load(write(tmp_path / "a.csv", rows), seed=1)
    earlier = recorded(tmp_path / "run", before)
    more = [*rows, *((sentence(draw), "abc"[i % 3]) for i in range(100))]
    draw.shuffle(more)
    again = load(write(tmp_path / "b.csv", more), seed=2, split_like=earlier)
    parts = texts_of(again)
    for name, texts in texts_of(before).items():
        assert texts <= parts[name]
    assert [len(parts[name]) for name in SPLITS] == pytest.approx([240, 30, 30], abs=2)
    assert "; 200 rows keep the split of" in decisions_of(again)[-1].why
    without = load(tmp_path / "b.csv", split_like=earlier, test_data=str(tmp_path / "a.csv"))
    assert "; 180 rows keep the split of" in decisions_of(without)[-1].why


def test_a_record_that_is_not_there_or_damaged(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", [(f"text {i}", "ab"[i % 2]) for i in range(20)])
    with pytest.raises(InputError, match=r"--split-like .*gone: expected .*Got no folder instead"):
        load(path, split_like=str(tmp_path / "gone"))
    other = load(write(tmp_path / "b.csv", [(f"letter {i}", "ab"[i % 2]) for i in range(20)]))
    with pytest.raises(InputError, match=r"other: expected a run of a table that shares texts with .*a\.csv"):
        load(path, split_like=recorded(tmp_path / "other", other))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "split.parquet").write_text("PAR1")
    with pytest.raises(InputError, match=r"run/split\.parquet: cannot be read .* restore the file"):
        load(path, split_like=str(tmp_path / "run"))


@pytest.mark.parametrize("options", [{}, {"folds": 5}])
def test_swapped_pairs_stay_in_one_part(tmp_path: Path, options: dict[str, int]) -> None:
    """The same two texts in the other order are no new row to test on."""
    draw = random.Random(8)
    pairs = [(sentence(draw), sentence(draw), "ab"[i % 2]) for i in range(100)]
    rows = [*pairs, *((second, first, label) for first, second, label in pairs)]
    config = DataConfig(data=str(write(tmp_path / "a.csv", rows, "sentence1,sentence2,label")))
    tables = read_tables(config)
    splits = split_table(tables, recognize(tables).targets, 0, **options)
    assert splits.assignment is not None
    assert splits.assignment[:100].tolist() == splits.assignment[100:].tolist()
    assert ", swapped pairs in one split" in decisions_of(splits)[-1].why


# Classes without rows, and the cap on training rows.


def test_a_class_that_no_scored_row_has_is_said(tmp_path: Path) -> None:
    rows = [(f"text {i}", "yes" if i < 5 else "no") for i in range(100)]
    rows = [(text, label, "train" if i < 60 else "dev" if i < 80 else "test") for i, (text, label) in enumerate(rows)]
    splits = load(write(tmp_path / "a.csv", rows, "text,label,split"))
    assert "no validation row has the label 'yes'; the validation scores do not cover it" in notes_of(splits)
    assert "no test row has the label 'yes'; the test scores do not cover it" in notes_of(splits)
    balanced = load(write(tmp_path / "b.csv", [(f"text {i}", "ab"[i % 2]) for i in range(100)]))
    assert notes_of(balanced) == []


def test_texts_count_as_seen_where_they_are_left_in_train(tmp_path: Path) -> None:
    """The cap on training rows takes some of the test texts out of the training split."""
    path = write(tmp_path / "a.csv", [(f"text {i}", "ab"[i % 2]) for i in range(100)])
    test = write(tmp_path / "test.csv", [(f"text {i}", "ab"[i % 2]) for i in range(100)])
    assert len(load(path, test_data=str(test)).in_training["test"]) == 90
    splits = load(path, test_data=str(test), max_train_samples=12)
    assert [f"text {i}" for i in splits.in_training["test"]] == splits.train.texts("text")
    assert len(splits.train) == 12


# Rows without a label.


@pytest.mark.parametrize(
    ("options", "value", "files"),
    [
        ({}, "", {"unlabelled.csv"}),
        ({}, " ", {"unlabelled.csv"}),
        ({"drop_unlabelled": True}, "", set()),
        ({"predict_unlabelled": True}, " ", {"unlabelled.csv"}),
        ({"unlabelled_value": "none"}, "None", {"unlabelled.csv"}),
        ({"unlabelled_value": "-1", "predict_unlabelled": True}, "-1", {"unlabelled.csv"}),
    ],
)
def test_rows_without_a_label_are_in_no_part(
    tmp_path: Path, options: dict[str, Any], value: str, files: set[str]
) -> None:
    rows = [(f"text {i}", value if i % 5 == 0 else "ab"[i % 2]) for i in range(50)]
    splits = load(write(tmp_path / "a.csv", rows), **options)
    assert splits.labels == ["a", "b"]
    used = set().union(*texts_of(splits).values())
    assert used == {f"text {i}" for i in range(50) if i % 5}
    assert set(splits.unlabelled) == files
    for part in splits.unlabelled.values():
        assert part.texts("text") == [f"text {i}" for i in range(0, 50, 5)]
    (note,) = [note for note in notes_of(splits) if "without a label" in note]
    assert note.startswith(f"{tmp_path / 'a.csv'}: 10 rows without a label: ")


def test_empty_labels_stop_where_they_are_most(tmp_path: Path) -> None:
    half = write(tmp_path / "half.csv", [(f"text {i}", "ab"[i % 2] if i % 4 < 2 else "") for i in range(40)])
    assert len(load(half).unlabelled["unlabelled.csv"]) == 20
    path = write(tmp_path / "a.csv", [(f"text {i}", "ab"[i % 2] if i % 4 < 2 and i else "") for i in range(40)])
    with pytest.raises(
        InputError,
        match=r"a\.csv lines 2, 4, 5, 8, 9 and 16 more: column 'label' is empty in 21 of 40 rows; .*--label-column, .*"
        r"--drop-unlabelled.*--predict-unlabelled",
    ):
        load(path)
    for flag, files in (("drop_unlabelled", set()), ("predict_unlabelled", {"unlabelled.csv"})):
        assert set(load(path, **{flag: True}).unlabelled) == files
    with pytest.raises(InputError, match="--unlabelled-value -1: no row has it"):
        load(half, unlabelled_value="-1")


@pytest.mark.parametrize("value", ["-1", ""])
def test_a_test_table_whose_labels_are_withheld_is_predicted(tmp_path: Path, value: str) -> None:
    path = write(tmp_path / "a.csv", [(f"text {i}", i % 2) for i in range(40)])
    test = write(tmp_path / "test.csv", [(f"new {i}", value) for i in range(7)])
    splits = load(path, test_data=str(test))
    assert splits.test is None
    assert splits.labels == ["0", "1"]
    assert {file: len(part) for file, part in splits.unlabelled.items()} == {"unlabelled_test.csv": 7}
    assert any(
        "7 rows without a label: predicted in unlabelled_test.csv at the end" in note for note in notes_of(splits)
    )


def test_a_test_table_without_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", [(f"text {i}", i % 2) for i in range(40)])
    test = write(tmp_path / "test.csv", [(i, f"new {i}") for i in range(7)], "id,text")
    with pytest.raises(InputError, match=r"test\.csv: expected the column 'label', as in --data"):
        load(path, test_data=str(test))
    splits = load(path, test_data=str(test), predict_unlabelled=True)
    assert {file: len(part) for file, part in splits.unlabelled.items()} == {"unlabelled_test.csv": 7}


# Forms that are several things at once.


def test_a_part_without_a_header_has_the_columns_of_the_others(tmp_path: Path) -> None:
    rows = [(f"text {i}", "ab"[i % 2], i) for i in range(20)]
    named = write(tmp_path / "train.csv", rows, "mail,kind,number")
    bare = tmp_path / "dev.csv"
    bare.write_text("\n".join(f"other {i},{'ab'[i % 2]},{i}" for i in range(12)))
    columns = {"text_column": "mail", "label_column": "kind"}
    splits = load(named, eval_data=str(bare), **columns)
    assert splits.validation.texts("mail") == [f"other {i}" for i in range(12)]


@pytest.mark.parametrize(
    ("labels", "test_labels", "options"),
    [
        (["0", "1"], ["0.0", "1.0"], {}),
        (["0.0", "1.0"], ["0", "1"], {"label_names": "0.0=neg,1.0=pos"}),
        (["card", "app"], ["CARD", " app"], {}),
        (["a", "b"], ["a", " "], {}),
        (["a", "b"], ["a", " "], {"drop_unlabelled": True}),
        (["a", "b"], ["b", "-1"], {"unlabelled_value": "-1"}),
    ],
)
def test_labels_of_the_test_table_are_read_as_those_of_data(
    tmp_path: Path, labels: list[str], test_labels: list[str], options: dict[str, Any]
) -> None:
    path = write(tmp_path / "a.csv", [(f"text {i}", labels[i % 2]) for i in range(20)])
    test = write(tmp_path / "test.csv", [(f"new {i}", test_labels[i % 2]) for i in range(6)])
    splits = load(path, test_data=str(test), **options)
    assert splits.labels == (["neg", "pos"] if "label_names" in options else sorted(labels))
    assert splits.test is not None
    assert len(splits.test) == (3 if {" ", "-1"} & {*test_labels} else 6)


@pytest.mark.parametrize("role", ["eval_data", "test_data"])
def test_a_further_table_whose_lists_are_mostly_empty_is_refused(tmp_path: Path, role: str) -> None:
    """They may not have been labelled yet; a test table without any label is there to be predicted."""
    path = write(tmp_path / "a.csv", [(f"text {i}", ("a|b", "a", "b", "")[i % 4]) for i in range(60)])
    further = write(tmp_path / "b.csv", [(f"new {i}", "a|b" if i < 4 else "") for i in range(10)])
    with pytest.raises(InputError, match=r"b.csv .* is empty in 6 of 10 rows; .* --task multi"):
        load(path, **{role: str(further)})
    splits = load(path, task="multi", **{role: str(further)})
    assert len(splits.validation if role == "eval_data" else splits.test or ()) == 10
    blank = write(tmp_path / "c.csv", [(f"new {i}", "") for i in range(10)])
    if role == "test_data":
        assert len(load(path, test_data=str(blank)).unlabelled["unlabelled_test.csv"]) == 10


def day(i: int) -> str:
    return f"2024-01-{i + 1:02}"


def side(i: int) -> str:
    return "train" if i % 4 else "test"


@pytest.mark.parametrize(
    ("columns", "options", "printed"),
    [
        ({"day": lambda i: ("03/04/2024", "05/04/2024")[i % 2]}, {"split_by_time": "day"}, "--time-format, e.g. %d.%m"),
        ({"day": lambda i: ("12.2023", "1.2024")[i % 2]}, {"split_by_time": "day"}, "--time-format, e.g. %d.%m.%Y"),
        ({"day": lambda i: ("2024-01-01", "soon")[i % 2]}, {"split_by_time": "day"}, r"lines 3, 5, 7, 9, 11 .*'soon'"),
        ({"day": lambda i: ("nan", "7")[i % 2]}, {"split_by_time": "day"}, "'nan'"),
        ({"day": lambda i: "2024-01-01"}, {"split_by_time": "day"}, r"no row .* is left to train on \(by time"),
        ({"label": lambda i: "ab"[i // 15], "who": lambda i: i // 15}, {"group_column": "who"},
         "no row .* is left to validate on .*grouped by 'who'"),
        ({"label": lambda i: "" if i < 12 else "ab"[i % 2], "split": lambda i: "train" if i < 12 else "test"}, {},
         "no row .* is left to train on"),
        ({}, {"eval_data": "empty.csv"}, r"empty\.csv: no row .* is left to validate on"),
        ({"split": side, "who": lambda i: i % 9}, {"group_column": "who"}, "defines the splits, so"),
        ({"day": day}, {"split_by_time": "day", "eval_data": "a.csv"}, "defines the splits, so"),
        ({"day": day}, {"split_by_time": "day", "split_like": "runs/a"}, "defines the splits, so"),
        ({"day": day, "split": side}, {"split_column": "split", "group_column": "day"}, "defines the splits, so"),
        ({"day": day, "split": side}, {"split_column": "split", "split_by_time": "day"}, "defines the splits, so"),
        ({"split": side}, {"test_data": "a.csv"}, "or give --split-column none"),
        ({}, {"eval_data": "a.csv", "split_like": "runs/a"}, "defines the splits, so"),
        ({}, {"label_names": "a=x,a=y"}, "names a label twice"),
    ],
)  # fmt: skip
def test_what_cannot_be_split(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    columns: dict[str, Callable[[int], object]],
    options: dict[str, Any],
    printed: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("empty.csv"), [(f"new {i}", "") for i in range(7)])
    made = {"text": lambda i: f"text {i}", "label": lambda i: "ab"[i % 2], **columns}
    write(Path("a.csv"), [tuple(make(i) for make in made.values()) for i in range(30)], ",".join(made))
    with pytest.raises(InputError, match=printed):
        load(Path("a.csv"), **{"drop_unlabelled": True, **options})
