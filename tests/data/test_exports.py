"""Tables as other tools export them: what looks like a class and is none is refused, or noted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from classify.tables.formats.registry import read_table
from classify.tables.label_lists import COLUMN_SEPARATOR
from tests.data.test_doubtful_guesses import decision, load, refusal, write
from tests.data.test_formats import write_workbook


def labelled(path: Path, *labels: str, rows: int = 60) -> Path:
    return write(path, "text,label", "text", list(labels), rows=rows)


@pytest.mark.parametrize(
    "labels",
    [
        ("物流", "账单", "物流、账单"),
        ("故障", "账单", "故障，账单"),
        ("<java>", "<python>", "<java><python>"),
        ("#java", "#python", "#java #python"),
        ("backend", "frontend", "backend frontend"),
        ("billing", "shipping", "billing and shipping"),
    ],
)
def test_several_labels_between_other_separators_are_asked(tmp_path: Path, labels: Sequence[str]) -> None:
    path = labelled(tmp_path / "a.csv", *labels)
    assert f"holds {labels[2]!r}: one class, or several labels? Give --task single, or --task multi" in refusal(path)
    assert len(load(path, task="single").encoder.labels) == 3


def test_names_of_several_words_are_no_lists(tmp_path: Path) -> None:
    path = labelled(tmp_path / "a.csv", "feature request", "bug report", "question")
    assert load(path).encoder.labels == ["bug report", "feature request", "question"]


def test_a_path_of_classes_is_named(tmp_path: Path) -> None:
    splits = load(labelled(tmp_path / "a.csv", "A|B|C", "A|B", "A|D", "E"))
    assert "'A|B' is one class; its parts may be several labels, too" in decision(splits, "task").why


def write_lines(path: Path, *labels: Any) -> Path:
    lines = [{"text": f"a text about it {row}", "label": labels[row % len(labels)]} for row in range(60)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.mark.parametrize(
    "labels",
    [([[0, 4, "LOC"]], [[2, 5, "PER"]]), ("billing", {"choices": ["billing", "refund"]}), ([{"start": 0}], "a")],
)
def test_spans_and_objects_are_refused(tmp_path: Path, labels: Sequence[Any]) -> None:
    words = refusal(write_lines(tmp_path / "a.jsonl", *labels))
    assert "expected names of classes for the whole text, not objects or spans" in words


def test_objects_are_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    way = "'messages' holds objects; write their values as columns, e.g. with pandas.json_normalize."
    chat = [{"messages": [{"role": "user", "content": f"a text {row}"}]} for row in range(20)]
    path.write_text("\n".join(map(json.dumps, chat)))
    assert refusal(path).endswith(f"Got the one column 'messages' instead; {way}")
    path.write_text("\n".join(json.dumps(record | {"id": row}) for row, record in enumerate(chat)))
    assert refusal(path).endswith(way)
    text = write(tmp_path / "b.csv", "text,id", "text", str)
    assert "json_normalize" not in refusal(text)


def test_empty_cells_beside_one_class_are_no_missing_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,spam", "text", ["1", "", ""])
    assert "expected at least two classes in column 'spam'. Got only '1' in 20 of 60 rows" in refusal(path)


@pytest.mark.parametrize("mark", ["\u200b", "\ufeff", "\u200f", "\u00a0"])
def test_labels_with_invisible_characters_around_them_are_one_class(tmp_path: Path, mark: str) -> None:
    path = labelled(tmp_path / "a.csv", f"good{mark}", f"good{mark}", "good", "bad")
    assert load(path).encoder.labels == ["bad", "good"]
    assert "merged" in decision(load(path), "labels").why
    assert len(load(path, normalize_labels="none").encoder.labels) == 3


@pytest.mark.parametrize("mark", ["\u3000", "\u2003", "\u3000\u200b", "\u200b\u3000"])
def test_a_class_is_named_without_what_is_around_it(tmp_path: Path, mark: str) -> None:
    path = labelled(tmp_path / "a.csv", f"good{mark}", f"good{mark}", "good", "bad")
    assert load(path).encoder.labels == ["bad", "good"]


@pytest.mark.parametrize(("one", "other"), [("می\u200cخواهم", "میخواهم"), ("👩\u200d👧", "👩👧")])
def test_joiners_inside_labels_keep_them_apart(tmp_path: Path, one: str, other: str) -> None:
    assert sorted(load(labelled(tmp_path / "a.csv", one, other)).encoder.labels) == sorted([one, other])


def test_tags_of_tokens_are_refused(tmp_path: Path) -> None:
    path = labelled(tmp_path / "a.csv", "O", "B-PER", "I-PER", "O")
    assert "holds tags of tokens: 'O' and 'B-PER'; this program classifies whole texts" in refusal(path)
    assert len(load(path, task="single").encoder.labels) == 3
    assert len(load(labelled(tmp_path / "b.csv", "O", "A", "B", "AB")).encoder.labels) == 4


def test_labels_that_were_rejected_are_noted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label,answer", "text", ["a", "b"], ["accept", "accept", "reject"])
    assert "column 'answer' holds 'reject' 20: annotators did not confirm the labels of these rows" in str(
        load(path).warnings
    )
    answers = write(tmp_path / "c.csv", "text,answer", "text", ["accept", "reject"])
    assert "did not confirm" not in str(load(answers).warnings)
    accepted = write(tmp_path / "b.csv", "text,label,answer", "text", ["a", "b"], ["accept"])
    assert "'answer'" not in str(load(accepted).warnings)


@pytest.mark.parametrize(("count", "classes"), [(10, True), (21, False)])
def test_numbers_with_fractions_may_be_classes_or_scores(tmp_path: Path, count: int, classes: bool) -> None:
    splits = load(labelled(tmp_path / "a.csv", *(f"{1 + number / 10:.1f}" for number in range(count)), rows=count * 5))
    why = decision(splits, "task").why
    assert ("a score is possible, too" in why) == classes
    assert (f"only {count} different values, so classes are possible, too" in why) != classes


def test_codes_with_leading_zeros_are_classes(tmp_path: Path) -> None:
    codes = ["008.45", *(f"{number}.{number % 10}" for number in range(250, 275))]
    splits = load(labelled(tmp_path / "a.csv", *codes, rows=120))
    assert len(splits.encoder.labels) == len(codes)


def test_scores_with_leading_zeros_are_scores(tmp_path: Path) -> None:
    scores = [f"{number / 7:05.2f}" for number in range(1, 121)]
    assert decision(load(labelled(tmp_path / "a.csv", *scores, rows=120)), "task").value == "a score for each row"


@pytest.mark.parametrize("values", [range(1960, 2021), (1, 2, 3, 5, 8, 13), range(1, 16)])
def test_whole_numbers_may_be_a_score(tmp_path: Path, values: Sequence[int]) -> None:
    splits = load(labelled(tmp_path / "a.csv", *map(str, values), rows=300))
    assert f"labels are numbers, {values[0]} to {values[-1]}; a score is possible, too" in decision(splits, "task").why


def test_whole_numbers_with_gaps_may_be_a_score(tmp_path: Path) -> None:
    points = load(labelled(tmp_path / "a.csv", *map(str, range(0, 100, 3)), rows=200))
    assert "labels are numbers, 0 to 99; a score is possible, too" in decision(points, "task").why
    ids = load(labelled(tmp_path / "b.csv", *map(str, range(34)), rows=200))
    assert decision(ids, "task").why == "one label per row"


@pytest.mark.parametrize("mark", ["x", "1", "Yes", "✓"])
def test_checked_cells_are_labels_of_named_columns(tmp_path: Path, mark: str) -> None:
    path = write(tmp_path / "a.csv", "text,billing,shipping", "text", [mark, ""], [mark, "", ""])
    assert "name all: --label-column billing,shipping)" in refusal(path)
    splits = load(path, label_column="billing,shipping")
    assert splits.encoder.labels == ["billing", "shipping"]
    rows = splits.train.table.column(splits.columns.label)
    assert [row.split(COLUMN_SEPARATOR) for row in rows[:3]] == [["billing", "shipping"], [""], ["billing"]]
    assert any("an empty cell there means that a text does not have the label" in note for note in splits.warnings)
    both = write(tmp_path / "b.csv", "text,billing,shipping", "text", [mark, "no", ""], [mark, "", ""])
    assert "holds ''; expected 0 or 1" in refusal(both, label_column="billing,shipping")
    withheld = write(tmp_path / "c.csv", "text,billing,shipping", str, [""], [""])
    words = refusal(path, label_column="billing,shipping", test_data=str(withheld))
    assert "holds ''; expected 0 or 1" in words


def test_raters_and_properties_are_no_labels(tmp_path: Path) -> None:
    bits, more, most = ["0", "1"], ["1", "1", "0"], ["1", "0", "0", "1"]
    raters = write(tmp_path / "a.csv", "text,rater_1,rater_2,rater_3", "text", bits, more, most)
    assert "several columns could hold the label: rater_1" in refusal(raters)
    mixed = write(tmp_path / "b.csv", "text,spam,is_weekend,has_attachment", "text", bits, more, most)
    assert "several columns could hold the label: spam" in refusal(mixed)
    flags = load(write(tmp_path / "c.csv", "text,is_rude,is_spam,is_long", "text", bits, more, most))
    assert flags.encoder.labels == ["is_long", "is_rude", "is_spam"]


def test_one_hot_columns_are_named(tmp_path: Path) -> None:
    one_hot = [["1", "0", "0"], ["0", "1", "0"], ["0", "0", "1"]]
    splits = load(write(tmp_path / "a.csv", "text,label_0,label_1,label_2", "text", *one_hot))
    assert (
        "each row has exactly one: for one class per row, write its name in one column" in decision(splits, "task").why
    )
    several = load(write(tmp_path / "b.csv", "text,good,mixed,bad", "text", *one_hot[:2], ["1", "0", "1"]))
    assert "exactly one" not in decision(several, "task").why


@pytest.mark.parametrize("other", ["sentiment", "sentiment_gold", "issue type"])
def test_another_column_named_like_a_label_is_printed(tmp_path: Path, other: str) -> None:
    splits = load(write(tmp_path / "a.csv", f"text,label,{other}", "text", ["x", "y"], ["p", "q", "r"]))
    label = decision(splits, "label column")
    assert label.printed
    assert f"; other possible labels: '{other}'" in label.why


def test_a_label_of_somebody_is_a_label(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "id,text,user_intent", str, "text", ["x", "y"])
    assert load(path).columns.labels == ("user_intent",)


@pytest.mark.parametrize("name", ["annotator", "sender", "lang", "user_id"])
def test_what_is_said_of_a_row_is_no_label_by_itself(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "a.csv", f"text,{name},id", "text", ["ann", "bob"], str)
    assert f"one column could hold the label, but its name is unusual for labels: {name}" in refusal(path)
    assert load(path, label_column=name).encoder.labels == ["ann", "bob"]


@pytest.mark.parametrize("name", ["is_test", "isTrain", "in train"])
def test_a_column_that_says_yes_or_no_of_a_split_is_asked(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "a.csv", f"text,label,{name}", "text", ["a", "b"], ["0", "0", "1"])
    assert f"column '{name}' may name the rows of a split" in refusal(path)
    assert load(path, split_column="none").columns.split is None


@pytest.mark.parametrize(
    ("values", "counts"),
    [
        (["train", "train", "unseen"], (40, 20)),
        (["train", "valid_seen", "test_unseen"], (20, 20)),
        (["train", "public_test", "private_test"], (20, 40)),
    ],
)
def test_splits_in_a_column_of_another_name(tmp_path: Path, values: Sequence[str], counts: tuple[int, int]) -> None:
    splits = load(write(tmp_path / "a.csv", "text,label,phase", "text", ["a", "b"], list(values)))
    assert splits.columns.split == "phase"
    assert splits.test is not None
    assert len(splits.test) == counts[1]
    assert load(write(tmp_path / "c.csv", "text,label,invalid", "text", ["a", "b"], ["0", "1"])).columns.split is None
    trains = load(write(tmp_path / "b.csv", "text,label,id", "text", ["train", "bus", "tram"], str))
    assert trains.columns.split is None


def test_a_survey_with_three_header_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    answers = "".join(f"R_{number},some words {number} about it,{'ab'[number % 2]}\n" for number in range(30))
    header = 'ResponseId,Q1,Q2\nResponse ID,"Describe it, please",Topic\n'
    imported = ",".join(f'"{{""ImportId"":""QID{number}""}}"' for number in range(3))
    path.write_text(f"{header}{imported}\n{answers}")
    assert "a Qualtrics export with three header rows" in refusal(path)
    path.write_text(f"ResponseId,Q1,Q2\n{answers}")
    assert len(load(path).train.table) == 30


def test_a_refusal_names_the_other_sheets(tmp_path: Path) -> None:
    notes = [("This workbook holds comments.",), ("See the other sheet.",)]
    rows = [("text", "label"), *((f"some words {number} about it", "ab"[number % 2]) for number in range(30))]
    path = tmp_path / "a.xlsx"
    write_workbook(path, {"README": notes, "Comments": rows})
    assert refusal(path).endswith("Only sheet 'README' was read; --sheet reads another: Comments.")
    assert len(load(path, sheet="Comments").train.table) == 30


@pytest.mark.parametrize("placeholder", ["unlabeled", "TODO", "?", "-", "—", ".", "#REF!"])
def test_placeholders_for_labels_are_noted(tmp_path: Path, placeholder: str) -> None:
    notes = str(load(labelled(tmp_path / "a.csv", "a", "b", placeholder)).warnings)
    assert f"the label '{placeholder}' of 20 rows may mean no label" in notes


def test_emoji_are_classes(tmp_path: Path) -> None:
    splits = load(labelled(tmp_path / "a.csv", "\U0001f44d", "\U0001f44e", "neutral"))
    assert "may mean no label" not in str(splits.warnings)


def test_minus_one_in_most_rows_is_noted(tmp_path: Path) -> None:
    assert "may mean no label" in str(load(labelled(tmp_path / "a.csv", "0", "1", "-1", "-1", "-1")).warnings)
    assert "may mean no label" not in str(load(labelled(tmp_path / "b.csv", "0", "1", "-1")).warnings)


def test_labels_that_a_spreadsheet_changed_are_noted(tmp_path: Path) -> None:
    notes = str(load(labelled(tmp_path / "a.csv", "5-Jan", "11-50", "51+")).warnings)
    assert "the label '5-Jan' looks like a date, others do not: a spreadsheet may have changed it" in notes
    assert "looks like a date" not in str(load(labelled(tmp_path / "c.csv", "1-Junior", "2-Senior", "x")).warnings)
    assert "looks like a date" not in str(load(labelled(tmp_path / "b.csv", "11-50", "51+")).warnings)


@pytest.mark.parametrize("flag", ["group_column", "split_by_time"])
def test_the_label_is_no_group(tmp_path: Path, flag: str) -> None:
    path = labelled(tmp_path / "a.csv", "1", "2", "3")
    assert "label: this is the label column of" in refusal(path, **{flag: "label"})


def test_texts_of_a_further_table_are_texts(tmp_path: Path) -> None:
    path = labelled(tmp_path / "a.csv", "a", "b")
    further = write(tmp_path / "b.csv", "text,message,label", str, "text", ["a", "b"])
    assert (
        "holds numbers, e.g. '0', but the model was trained on texts; name the text column, e.g. --text-column "
        '"message"' in (refusal(path, test_data=str(further)))
    )
    alone = write(tmp_path / "c.csv", "text,label", str, ["a", "b"])
    assert load(path, test_data=str(alone)).test is not None


def test_a_title_as_wide_as_the_table_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "Complaints export,2024-03-01\nText,Category", "text", ["a", "b"])
    table = read_table(str(path))
    assert table.columns == ["Text", "Category"]
    assert "line 1 above the table left out" in table.form
    assert table.describe_rows([0]).endswith("line 3")
    path.write_text("\n" + path.read_text())
    assert read_table(str(path)).columns == ["Text", "Category"]
    again = write(tmp_path / "b.csv", "what,kind\ntext,label", "text", ["a", "label"])
    assert read_table(str(again)).columns == ["what", "kind"]


def test_a_title_in_a_workbook(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in [["Complaints"], ["Exported by", "2024-03-01"], [], ["Text", "Category"], *[["a b c", "x"]] * 12]:
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    assert read_table(str(tmp_path / "a.xlsx")).columns == ["Text", "Category"]


def test_a_header_that_may_be_a_row_is_noted(tmp_path: Path) -> None:
    sentence = "it took my overdraft and did not say why"
    notes = str(load(write(tmp_path / "a.csv", f"{sentence},unknown", "text", ["a", "b"])).warnings)
    assert f"the first row is read as column names, e.g. '{sentence}'; if it is data, add --no-header" in notes
    question = write(tmp_path / "b.csv", "What could we do better for you?,unknown", "text", ["a", "b"])
    assert "first row" not in str(load(question).warnings)
    first = load(write(tmp_path / "c.csv", "Report,Q1\nComplaint about it,Kind", "text", ["a", "b"]))
    assert "; the first row may be a header" in str(first.warnings)


def test_files_beside_the_splits_of_a_folder_are_named(tmp_path: Path) -> None:
    for name in ("train", "test", "extra"):
        labelled(tmp_path / f"{name}.csv", "a", "b")
    (tmp_path / "README.md").write_text("about it")
    (tmp_path / "._train.csv").write_text("of macOS")
    note = f"train.csv is one of several tables in {tmp_path}; not read: "
    assert any(note + "extra.csv" in warning for warning in load(tmp_path).warnings)
    evaluated = load(tmp_path, eval_data=f"{tmp_path}/./extra.csv")
    assert not any("not read" in warning for warning in evaluated.warnings)
    tested = load(tmp_path, test_data=str(tmp_path / "extra.csv"))
    assert any(note + "test.csv" in warning for warning in tested.warnings)


def test_a_file_beside_folders_of_documents_is_no_table(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for name in ("pos", "neg"):
            (tmp_path / part / name).mkdir(parents=True)
            for row in range(20):
                (tmp_path / part / name / f"{row}.txt").write_text(f"a {name} text {row}")
    (tmp_path / "README").write_text("about it")
    assert not any("not read" in warning for warning in load(tmp_path).warnings)


def test_files_of_any_form_beside_the_splits_are_named(tmp_path: Path) -> None:
    for name in ("train.csv", "test.csv", "more.tsv", "rest.jsonl.gz"):
        labelled(tmp_path / name, "a", "b")
    for name in ("README.txt", "dataset_infos.json", "all.zip", "script.py"):
        (tmp_path / name).write_text("about it")
    for name in ("other/pos", "other/neg"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "1.txt").write_text("a text")
    note = f"train.csv is one of several tables in {tmp_path}; not read: more.tsv, other, rest.jsonl.gz"
    assert any(warning.endswith(note) for warning in load(tmp_path).warnings)


def test_documents_that_are_not_read_are_named(tmp_path: Path) -> None:
    folders = ("pos", "neg", "pos/sub", ".", ".ipynb_checkpoints", "pos/.cache")
    for folder in folders:
        (tmp_path / folder).mkdir(exist_ok=True)
        for row in range(20):
            (tmp_path / folder / f"{row}.txt").write_text(f"a text {row} in {folder}")
    (tmp_path / "pos" / "._0.txt").write_bytes(b"\0\5\x16\7 of macOS")
    splits = load(tmp_path)
    assert (len(splits.train.table), splits.encoder.labels) == (40, ["neg", "pos"])
    (tmp_path / "neg" / "deeper").mkdir()
    notes = str(splits.warnings)
    assert f"files outside the folders of classes are not read: 20, e.g. {tmp_path / '0.txt'}" in notes
    assert f"files in deeper folders are not read: 20, e.g. {tmp_path / 'pos/sub/0.txt'}" in notes


def test_hidden_folders_are_no_classes(tmp_path: Path) -> None:
    for folder in ("pos", ".ipynb_checkpoints"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.txt").write_text("a text")
    assert "expected a file, a folder with one subfolder of .txt files per class" in refusal(tmp_path)


def test_a_class_of_the_first_row_that_comes_again_far_below_is_noted(tmp_path: Path) -> None:
    labels = ["投诉", *["咨询", "退款"] * 1250, *["投诉", "退款"] * 250]
    lines = [f"快递{row}还没到,{label}" for row, label in enumerate(labels)]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    note = "the first row is read as column names, and '投诉' is the value of 250 rows below it, too"
    assert any(f"{note}; if it is data, add --no-header" in warning for warning in load(path).warnings)
    assert not any("column names" in warning for warning in load(path, no_header=True).warnings)
    path.write_text("\n".join(["utterance,kind", *lines[1:], "快递,utterance"]), encoding="utf-8")
    assert not any("column names" in warning for warning in load(path).warnings)


def test_a_header_in_chinese_that_may_be_a_row_is_noted(tmp_path: Path) -> None:
    for name, first in {
        "a": "我的快递已经五天了还没有送到",
        "b": "您对我们的服务有什么建议吗？",
        "c": "客户反馈内容",
    }.items():
        notes = str(load(write(tmp_path / f"{name}.csv", f"{first},投诉", "text", ["a", "b"])).warnings)
        assert (f"the first row is read as column names, e.g. '{first}'" in notes) == (name == "a")
