"""Columns and classes: found where they can be, asked for where they cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from classify.config.schema import DataConfig
from classify.data.reading import read_tables
from classify.data.split_table import split_table
from classify.data.splits import Splits
from classify.errors import InputError
from classify.tables.derived import TextColumns
from classify.tables.formats.registry import read_table
from classify.tables.labels import find_labels
from classify.tables.roles import find_text_columns
from classify.tables.table import Table
from classify.tasks.registry import recognize
from tests.support.findings import decisions_of, notes_of


def table(tmp_path: Path, text: str, name: str = "a.csv") -> Table:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return read_table(str(tmp_path / name))


def test_labels_are_sorted_as_numbers_or_words(tmp_path: Path) -> None:
    numbers = "".join(f"t{i},{i % 12}\n" for i in range(36))
    assert find_labels(table(tmp_path, "text,label\n" + numbers), "label") == [str(i) for i in range(12)]
    words = "".join(f"t{i},{'cab'[i % 3]}\n" for i in range(12))
    assert find_labels(table(tmp_path, "text,label\n" + words), "label") == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        (["a,x"] * 12, ["at least two classes", "'x'"]),
        (["a,x", "b,y"] * 4, ["at least 10 rows", "8"]),
        ([f"a{i},{i}" for i in range(12)], ["at least 2 rows", "12 rows"]),
        (["a,x", "b,", "c,y"] * 4, ["at least 10 rows with a label", "8"]),
    ],
)
def test_labels_that_cannot_be_learned(tmp_path: Path, rows: list[str], parts: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        find_labels(table(tmp_path, "text,label\n" + "\n".join(rows) + "\n"), "label")
    for part in parts:
        assert part in str(caught.value)


def load(config: DataConfig) -> Splits:
    tables = read_tables(config)
    return split_table(tables, recognize(tables), seed=0)


def corpus_files(tmp_path: Path, test: str) -> DataConfig:
    rows = "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(40))
    (tmp_path / "data.csv").write_text("text,label\n" + rows)
    (tmp_path / "test.csv").write_text(test)
    return DataConfig(data=str(tmp_path / "data.csv"), test_data=str(tmp_path / "test.csv"))


def test_an_unseen_test_label_is_named_with_its_line(tmp_path: Path) -> None:
    config = corpus_files(tmp_path, 'text,label\n"two\nlines",a\nnew,c\nnew too,c\nother,d\n')
    with pytest.raises(InputError) as caught:
        load(config)
    assert len(caught.value.faults) == 2
    assert "test.csv lines 4, 5: the label 'c' is in no row of --data" in caught.value.faults[0]
    assert "line 6" in caught.value.faults[1]
    several = "".join(f"t{number},new{number}\n" for number in range(9))
    (tmp_path / "test.csv").write_text(f"text,label\n{several}")
    with pytest.raises(InputError, match=r"9 labels are in no row of --data: 'new0' .*line 2") as caught:
        load(config)
    assert len(caught.value.faults) == 1


def test_given_parts_are_taken_as_given(tmp_path: Path) -> None:
    splits = load(corpus_files(tmp_path, "text,label\nnew,a\ntext 3,b\n"))
    assert splits.test is not None
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (36, 4, 2)
    both = DataConfig(data=str(tmp_path / "data.csv"), eval_data=str(tmp_path / "test.csv"))
    splits = load(both)
    assert (len(splits.train), len(splits.validation), splits.test) == (40, 2, None)
    assert "1 of 2 validation texts are also in the training split" in notes_of(splits)[0]
    assert "line 3" in notes_of(splits)[0]


def test_the_cap_comes_after_the_labels(tmp_path: Path) -> None:
    rows = "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(40)) + "once,rare\n"
    (tmp_path / "data.csv").write_text("text,label\n" + rows)
    splits = load(DataConfig(data=str(tmp_path / "data.csv"), max_train_samples=2))
    assert splits.labels == ["a", "b", "rare"]
    assert len(splits.train) == 2


def test_a_text_column_for_prediction(tmp_path: Path) -> None:
    assert find_text_columns(table(tmp_path, "id,mail\n1,x\n"), TextColumns(("mail",)), None, None).whole == "mail"
    assert find_text_columns(table(tmp_path, "anything\nx\n"), TextColumns(("mail",)), None, None).whole == "anything"
    assert (
        find_text_columns(table(tmp_path, "id,E-Mail text\n1,x\n"), TextColumns(("e_mail_text",)), None, None).whole
        == "E-Mail text"
    )
    for other in ("id,message\n1,I lost my card\n", "number\nT-10301\n"):
        with pytest.raises(InputError, match=r"which is the text column .mail.\?.*--text-column"):
            find_text_columns(table(tmp_path, other), TextColumns(("mail",)), None, None)


def test_nan_among_numbers_has_one_place(tmp_path: Path) -> None:
    """Whatever the order it is met in: ranks must agree on class numbers."""
    for order in (["0", "1", "nan", "2"], ["nan", "2", "1", "0"], ["inf", "2", "nan", "0"]):
        rows = "".join(f"t{i},{order[i % 4]}\n" for i in range(12))
        wanted = sorted((o for o in order if o.isdecimal()), key=int) + sorted(o for o in order if not o.isdecimal())
        assert find_labels(table(tmp_path, "text,label\n" + rows), "label") == wanted


def test_a_test_part_without_rows_is_no_test_part(tmp_path: Path) -> None:
    """Nine classes in ten rows: nothing can be spared for a test, so no score must be called one."""
    rows = "a 0,x\nb 0,x\n" + "".join(f"c {i},y{i}\n" for i in range(8))
    (tmp_path / "data.csv").write_text("text,label\n" + rows)
    splits = load(DataConfig(data=str(tmp_path / "data.csv"), label_column="label"))
    assert splits.test is None
    assert len(splits.validation) == 1


def test_few_texts_with_many_copies_still_have_parts(tmp_path: Path) -> None:
    rows = "".join(f"text {i % 10},{'ab'[i % 2]}\n" for i in range(30))
    (tmp_path / "data.csv").write_text("text,label\n" + rows)
    splits = load(DataConfig(data=str(tmp_path / "data.csv")))
    assert splits.test is not None
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (24, 3, 3)


def test_a_very_long_text_does_not_hide_a_fault(tmp_path: Path) -> None:
    rows = "x" * 200_000 + ",a\n" + ",b\nfine,a\n" * 6
    (tmp_path / "data.csv").write_text("text,label\n" + rows)
    splits = load(DataConfig(data=str(tmp_path / "data.csv")))
    assert "lines 3, 5, 7, 9, 11 and 1 more: the text is empty" in notes_of(splits)[0]


@pytest.mark.parametrize(
    ("labels", "changes", "classes"),
    [
        (["1", "1.0", "2", "2.00"], {}, ["1", "2"]),
        (["1.0", "2.0"], {}, ["1.0", "2.0"]),
        (["Pos", "pos", "neg", "neg "], {}, ["neg", "pos"]),
        (["Pos", "pos", "neg", "neg "], {"normalize_labels": "none"}, ["Pos", "neg", "neg ", "pos"]),
        (["0", "1"], {"label_names": "0=negative,1=positive"}, ["negative", "positive"]),
        (["0", "1", "1.0"], {"label_names": "1=positive"}, ["0", "positive"]),
    ],
    ids=["1.0 is 1", "floats alone", "normalized", "as they stand", "renamed", "merged and renamed"],
)
def test_what_classes_are_called(
    tmp_path: Path, labels: list[str], changes: dict[str, Any], classes: list[str]
) -> None:
    rows = [f"text {number},{labels[number % len(labels)]}" for number in range(47)]
    (tmp_path / "data.csv").write_text("\n".join(["text,label", *rows, "more,pos" if "pos" in labels else ""]) + "\n")
    splits = load(DataConfig(data=str(tmp_path / "data.csv"), **changes))
    assert splits.labels == classes
    assert sum(len(part) for part in (splits.train, splits.validation, splits.test or [])) == 47 + ("pos" in labels)
    merged = len(labels) > len(classes)
    printed = [*notes_of(splits), *(decision.why for decision in decisions_of(splits))]
    assert any("are one class" in line or "merged, since they differ only in" in line for line in printed) == merged


def test_a_name_for_no_label_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("text,label\n" + "".join(f"text {i},{i % 2}\n" for i in range(20)))
    for given, fault in (("2=two", "not a label in --data: '2'"), ("0", "must be pairs such as")):
        with pytest.raises(InputError, match=fault):
            load(DataConfig(data=str(tmp_path / "data.csv"), label_names=given))


def test_copies_but_for_case_and_spaces_stay_in_one_part(tmp_path: Path) -> None:
    rows = [(way(f"Some text {i}"), "ab"[i % 2]) for i in range(40) for way in (str, str.upper, "  {} ".format)]
    (tmp_path / "data.csv").write_text("\n".join(["text,label", *(",".join(row) for row in rows)]) + "\n")
    splits = load(DataConfig(data=str(tmp_path / "data.csv")))
    assert splits.test is not None
    parts = [
        {text.strip().lower() for text in part.texts("text")} for part in (splits.train, splits.validation, splits.test)
    ]
    assert len(set.union(*parts)) == sum(map(len, parts)) == 40


def test_a_column_that_keeps_rows_together(tmp_path: Path) -> None:
    rows = [f"text {i},{'ab'[i % 2]},customer {i // 4}" for i in range(80)]
    (tmp_path / "data.csv").write_text("\n".join(["text,label,who", *rows]) + "\n")
    splits = load(DataConfig(data=str(tmp_path / "data.csv"), group_column="who"))
    assert not {row // 4 for row in splits.train.rows} & {row // 4 for row in splits.validation.rows}
    assert "grouped by 'who'" in decisions_of(splits)[-1].why
    with pytest.raises(
        InputError, match=r"--group-column owner: .* has no such column; it has: .text., .label., .who."
    ):
        load(DataConfig(data=str(tmp_path / "data.csv"), group_column="owner"))
