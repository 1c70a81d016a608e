"""Tables that look like another thing than they are: the program says what it took, or asks."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from classify.config.run_config import RunConfig
from classify.config.schema import DataConfig
from classify.data.reading import read_tables
from classify.data.split_table import split_table
from classify.data.splits import Splits
from classify.errors import InputError
from classify.tables.content import SAMPLE
from classify.tables.formats.registry import read_table
from classify.tasks.multi_label import MultiLabel
from classify.tasks.registry import recognize
from classify.tasks.regression import Regression
from classify.training.inputs import check
from tests.support.runs import make_config

WORDS = [
    "order",
    "late",
    "phone",
    "refund",
    "great",
    "broken",
    "today",
    "parcel",
    "again",
    "never",
    "support",
    "answer",
]
CHINESE = "请尽快退款订单还没有发货客服不回复"


def sentence(draw: random.Random) -> str:
    return " ".join(draw.choices(WORDS, k=9))


def write(path: Path, header: str, *values: Any, rows: int = 60, between: str = ",") -> Path:
    """Write a table: "text" is another sentence in each row, a list is repeated, a function gets the row's number."""
    draw = random.Random(0)
    lines = [header]
    for row in range(rows):
        cells = [
            sentence(draw) if value == "text" else value[row % len(value)] if isinstance(value, list) else value(row)
            for value in values
        ]
        lines.append(between.join(cells))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def load(path: Path, **options: Any) -> Splits:
    tables = read_tables(DataConfig(data=str(path), **options))
    return split_table(tables, recognize(tables), seed=0)


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(InputError) as error:
        load(path, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def decision(splits: Splits, what: str) -> Any:
    return next(one for one in splits.decisions if one.what == what)


@pytest.mark.parametrize("encoding", ["gb18030", "big5"])
def test_a_file_of_two_encodings_is_refused(tmp_path: Path, encoding: str) -> None:
    """Read in any single one, most of its letters would be wrong."""
    path = write(tmp_path / "a.csv", "text,label", lambda row: CHINESE[row % 9 :] + str(row), ["aa", "bb"])
    path.write_bytes(path.read_bytes() + f"{CHINESE},aa\n".encode(encoding, "ignore") * 7)
    words = refusal(path)
    assert "60 non-ASCII lines are UTF-8 and 7 are not (lines 62, 63, 64, 65, 66 and 2 more)" in words


def test_a_german_file_of_two_encodings(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label", lambda row: f"Größe {row} gefällt", ["aa", "bb"], rows=20)
    path.write_bytes(path.read_bytes() + "Größe gefällt mir,aa\n".encode("cp1252") * 3)
    assert "20 non-ASCII lines are UTF-8 and 3 are not (lines 22, 23, 24)" in refusal(path)
    path.write_bytes(b"text,label\n" + "Größe gefällt mir,aa\n".encode("cp1252") * 9)
    assert "cp1252" in read_table(str(path)).form


@pytest.mark.parametrize(
    ("header", "rated"),
    [("review,group,stars", "stars"), ("review_text,category,rating", "rating"), ("message,reason,spam", "spam")],
)
def test_a_kind_of_product_beside_a_rating_is_asked(tmp_path: Path, header: str, rated: str) -> None:
    path = write(tmp_path / "a.csv", header, "text", ["A", "B"], ["1", "4", "5"])
    words = refusal(path)
    assert "several columns could hold the label" in words
    assert rated in words
    assert load(path, label_column=rated).columns.labels == (rated,)


def test_other_columns_that_would_do_are_printed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "question,answer,topic,channel", "text", "text", ["x", "y"], ["web", "app"])
    splits = load(path)
    text, label = decision(splits, "text column"), decision(splits, "label column")
    assert (text.value, label.value) == ("question", "topic")
    assert text.printed
    assert "; other columns of texts: 'answer'" in text.why
    assert label.printed
    assert "; other possible labels: 'channel'" in label.why
    clear = load(write(tmp_path / "b.csv", "id,text,label,channel", str, "text", ["x", "y"], ["web", "app"]))
    assert not decision(clear, "label column").printed


def test_labels_with_few_rows_each_are_candidates(tmp_path: Path) -> None:
    """25 intents in 60 rows repeat less than the two channels, and are as likely the label."""
    intents = [f"intent {chr(97 + number)}" for number in range(25)]
    words = refusal(write(tmp_path / "a.csv", "text,intent_name,channel", "text", intents, ["web", "app"]))
    assert "several columns could hold the label: intent_name (25 values, e.g. 'intent a'), channel (2" in words


@pytest.mark.parametrize("cells", [[["bug"], ["feature"], ["bug", "ui"]], [["a"], ["a", "b"], ["b"]]])
def test_json_lists_are_lists(tmp_path: Path, cells: list[list[str]]) -> None:
    """However few different ones there are."""
    draw = random.Random(1)
    path = tmp_path / "a.jsonl"
    records = [{"text": sentence(draw), "labels": cells[row % 3]} for row in range(60)]
    path.write_text("\n".join(map(json.dumps, records)))
    assert decision(load(path), "task").value.startswith("any of ")


def test_lists_of_one_label_are_that_label(tmp_path: Path) -> None:
    draw = random.Random(1)
    path = tmp_path / "a.jsonl"
    records = [{"text": sentence(draw), "label": [["neg"], ["pos"]][row % 2]} for row in range(60)]
    path.write_text("\n".join(map(json.dumps, records)))
    splits = load(path)
    assert splits.labels == ["neg", "pos"]
    assert any("lists of one label, such as" in note for note in splits.warnings)


def test_lists_that_are_something_else(tmp_path: Path) -> None:
    one_hot = write(tmp_path / "a.csv", "text;labels", "text", ["[1, 0, 0]", "[0, 1, 0]", "[0, 1, 1]"], between=";")
    assert "lists of 0 and 1, one place per label" in refusal(one_hot)
    numpy = write(tmp_path / "b.csv", "text;labels", "text", ["['a' 'b']", "['a']", "['b' 'c']"], between=";")
    assert """expected a list of labels such as ["a", "b"] in column 'labels'. Got "['a' 'b']" instead""" in refusal(
        numpy
    )


def test_scores_with_a_decimal_comma(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text;score", "text", lambda row: f"{row + 20},{row % 7}", between=";")
    splits = load(path)
    assert decision(splits, "task").value == "a score for each row"
    assert splits.targets[:3].tolist() == pytest.approx([20.0, 21.1, 22.2])
    shares = write(tmp_path / "d.csv", "text;score", "text", lambda row: f"0,{row:03}", between=";")
    assert load(shares).targets[:3].tolist() == pytest.approx([0.0, 0.001, 0.002])
    thousands = write(tmp_path / "b.csv", "text;score", "text", lambda row: f"{row % 5 + 1},{row:03}", between=";")
    assert "may be a thousand or a fraction" in refusal(thousands, task="regression", label_column="score")
    ids = write(tmp_path / "e.csv", "text;labels", "text", lambda row: f"{row % 3},{row % 5 + 3}", between=";")
    assert "a number with a decimal comma, or several labels?" in refusal(ids)
    assert decision(load(ids, task="multi"), "task").value.startswith("any of ")
    mixed = write(tmp_path / "c.csv", "text;score", "text", ["3", "3,5", "4", "4,5", "5"], between=";")
    assert (
        "'3,5': a number with a decimal comma, or several labels? Give --task regression, or --task multi"
        in refusal(mixed)
    )
    assert load(mixed, task="regression").targets.max() == 5.0


@pytest.mark.parametrize(
    ("column", "values"), [("dataset", ["train", "train", "dev", "test"]), ("数据集", ["训练", "训练", "验证", "测试"])]
)
def test_splits_in_a_column_of_any_name(tmp_path: Path, column: str, values: list[str]) -> None:
    path = write(tmp_path / "a.csv", f"text,label,{column}", "text", ["a", "b", "c"], values)
    splits = load(path)
    assert f"by column {column!r}" in decision(splits, "split").why
    assert (len(splits.train), len(splits.validation)) == (30, 15)
    assert len(load(path, split_column="none").train) == 48


def test_a_column_named_split_with_unknown_values_is_asked(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label,split", "text", ["a", "b"], ["0", "0", "1", "2"])
    assert "column 'split' holds '0', '1', '2'; expected train, validation and test alone" in refusal(path)


def test_labels_with_a_single_row_are_noted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label", "text", ["a", "b"])
    path.write_text(path.read_text() + "Total of all rows,60\n")
    notes = load(path).warnings
    assert any(f"labels with one training row: '60' ({path} line 62)" in note for note in notes), notes


def test_joined_files_leave_no_traces(tmp_path: Path) -> None:
    """A mark and a header before each, the second in another case."""
    path = write(tmp_path / "a.csv", "text,label", "text", ["a", "b"])
    path.write_bytes(
        b"\xef\xbb\xbf" + path.read_bytes() + b"\xef\xbb\xbfText,Label\n" + b"one more,a\n\xef\xbb\xbfanother,b\n"
    )
    table = read_table(str(path))
    assert (table.columns, len(table)) == (["text", "label"], 62)
    assert table.column("text")[-2:] == ["one more", "another"]
    assert table.places([60, 61]) == [63, 64]
    assert "rows that repeat the header dropped (line 62)" in table.form


def test_each_file_of_a_pattern_has_its_form(tmp_path: Path) -> None:
    write(tmp_path / "part-1.csv", "text,label", "text", ["a", "b"], rows=10)
    second = write(tmp_path / "part-2.csv", "text;label", "text", ["a", "b"], rows=10, between=";")
    second.write_text(second.read_text() + "a;b;c\n")
    table = read_table(str(tmp_path / "part-*.csv"), "--data", options(skips_bad_rows=True))
    assert table.skipped == 1
    assert "part-1.csv UTF-8 with a header, comma" in table.form
    assert "part-2.csv UTF-8 with a header, semicolon" in table.form
    assert "skipped (lines 12)" in table.form


def test_lines_that_are_no_table(tmp_path: Path) -> None:
    """A colon is in every line of YAML, and of questions with their kind before them; a header makes it a table."""
    yaml = tmp_path / "a.yaml"
    yaml.write_text("".join(f"- text: order {row} is late\n  label: aa\n" for row in range(30)))
    assert "this is YAML" in refusal(yaml)
    kinds = write(tmp_path / "b.csv", "DESC:manner How late ?", lambda row: f"NUM:date When {row}", rows=20)
    assert "Got ':' in each line, which may be text" in refusal(kinds)
    named = write(tmp_path / "c.csv", "label:text", ["NUM", "DESC"], "text", rows=40, between=":")
    assert load(named).labels == ["DESC", "NUM"]


def test_lines_in_quotes_are_cells_of_a_spreadsheet(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = [f'"Great phone {row},{"ab"[row % 2]}"' for row in range(40)]
    path.write_text("\n".join(['"text,label"', *rows]) + "\n")
    table = read_table(str(path))
    assert (table.columns, table.column("label")[:2]) == (["text", "label"], ["a", "b"])
    assert table.column("text")[0] == "Great phone 0"


def test_refusals_name_the_reason_and_two_columns(tmp_path: Path) -> None:
    dates = write(tmp_path / "a.csv", "text,label", "text", ["2024-03-05", "2024-03-06", "2024-03-07"])
    assert "the values of 'label' are dates or times, not classes" in refusal(dates)
    numbers = write(tmp_path / "b.csv", "id,code,day", str, lambda row: f"X{row}", ["2024-03-05", "2024-03-06"])
    assert '--text-column "id" --label-column "code"' in refusal(numbers)
    wide = write(tmp_path / "c.csv", "text,label", "text", ["a", "b"], lambda row: "")
    assert "the header has 2 columns, and each row below it has 3 fields; name all columns" in refusal(wide)
    assert "if R wrote the file, the first field is a row's name" in refusal(wide)
    train = write(tmp_path / "d.csv", "text,label", "text", ["a", "b"])
    test = write(tmp_path / "e.csv", "id,text", str, "text", rows=10)
    assert "or add --predict-unlabelled if its rows are only to be predicted" in refusal(train, test_data=str(test))


def test_rows_without_a_group_are_in_none(tmp_path: Path) -> None:
    """They are divided like any other row, and counted."""
    path = write(tmp_path / "a.csv", "text,label,who", "text", ["a", "b"], lambda row: "" if row % 6 else f"c{row % 4}")
    splits = load(path, group_column="who")
    assert "(50 rows without a value are in no group)" in decision(splits, "split").why
    assert (len(splits.train), len(splits.validation)) == (48, 6)


def test_folders_of_documents_by_split(tmp_path: Path) -> None:
    """As the movie reviews of Maas et al. come; their unlabelled texts have no class, and other files are counted."""
    draw = random.Random(0)
    for folder in ("train/pos", "train/neg", "train/unsup", "test/pos", "test/neg"):
        (tmp_path / "reviews" / folder).mkdir(parents=True)
        for number in range(12 if "unsup" not in folder else 60):
            (tmp_path / "reviews" / folder / f"{number}.txt").write_text(sentence(draw))
    (tmp_path / "reviews" / "train" / "pos" / "more.pdf").write_bytes(b"%PDF-")
    splits = load(tmp_path / "reviews")
    assert splits.labels == ["neg", "pos"]
    assert splits.test is not None
    assert (len(splits.train) + len(splits.validation), len(splits.test)) == (24, 24)
    assert any("files without a label are not read: 60" in note for note in splits.warnings)
    assert any("files not .txt are not read: 1, e.g. " in note for note in splits.warnings)


def options(**values: Any) -> Any:
    from classify.tables.formats.base import ReadOptions

    return ReadOptions(**values)


def test_each_table_is_printed(tmp_path: Path, model_folder: Path) -> None:
    """With columns of the first, and the form of each: the others may be of another."""
    data = write(tmp_path / "a.csv", "text,label", "text", ["a", "b"])
    test = write(tmp_path / "test.csv", "text;label", "text", ["a", "b"], rows=10, between=";")
    config: RunConfig = make_config(model_folder, data, tmp_path / "out", test_data=str(test))
    lines = [one.line() for one in check(config).decisions if one.what == "table"]
    assert lines[0].startswith(
        f"table: {data}, 60 rows, texts in 'text', labels in 'label' (UTF-8 with a header, comma"
    )
    assert lines[1].startswith(f"table: {test}, 10 rows (UTF-8 with a header, semicolon between columns")


@pytest.mark.parametrize(
    "header",
    ["text,class,grade", "message,category,priority", "subject_line,author,kind", "text,city,channel", "text,y,score"],
)
def test_ordinary_tables_are_not_asked_about(tmp_path: Path, header: str) -> None:
    """A name in few rows, a priority beside a category, or a probability beside a class, are no second label."""
    names = [f"name {letter}" for letter in "abcdefghijklmnopqrst"]
    middle, last = ["p", "q"], ["1", "2", "3"]
    if "author" in header or "city" in header:
        middle, last = names, ["x", "y"]
    if "score" in header:
        last = [f"0.{number}" for number in range(11, 71)]
    load(write(tmp_path / "a.csv", header, "text", middle, last))


def test_words_of_splits_that_are_texts_or_labels(tmp_path: Path) -> None:
    draw = ["training", "development"]
    assert load(write(tmp_path / "a.csv", "text,label,id", "text", draw, str)).labels == sorted(draw)
    teams = write(tmp_path / "b.csv", "text,department,id", "text", ["Training", "Evaluation"], str)
    assert load(teams).columns.labels == ("department",)
    late = write(
        tmp_path / "f.csv", "text,label,source", "text", ["a", "b"], lambda row: "xyz" if row > 50 else draw[0]
    )
    assert "by column" not in decision(load(late), "split").why, "a word in the last rows, too, is no split"
    titles = ["The train was late", "Test results are here", "Our dev team is new"]
    titled = write(tmp_path / "c.csv", "id,title,label", str, lambda row: f"{titles[row % 3]} {row}", ["a", "b"])
    assert load(titled).columns.texts.named == ("title",)
    many = write(
        tmp_path / "d.csv",
        "text,label,part_id",
        "text",
        ["a", "b"],
        lambda row: f"{'train' if row < 40 else 'test'}-{row}",
    )
    assert len(load(many, split_column="part_id").train) == 36
    other = write(
        tmp_path / "e.csv", "text,label,part_id", "text", ["a", "b"], lambda row: f"train-{row}" if row < 50 else "x"
    )
    assert "Got 'x' instead" in refusal(other, split_column="part_id")


def test_lists_of_one_label_in_a_further_table(tmp_path: Path) -> None:
    """Lists stay lists where some row of the run has two."""
    draw = random.Random(1)

    def table(name: str, cells: list[list[str]]) -> Path:
        path = tmp_path / name
        path.write_text(
            "\n".join(json.dumps({"text": sentence(draw), "labels": cells[n % len(cells)]}) for n in range(60))
        )
        return path

    train, test = table("a.jsonl", [["a"], ["b"], ["a", "b"]]), table("b.jsonl", [["a"], ["b"]])
    splits = load(train, test_data=str(test))
    assert splits.labels == ["a", "b"]
    assert splits.test is not None
    assert splits.test.targets.sum() == 60


def test_delimiters_that_a_file_names_itself(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "kind#note", ["a", "b"], "text", between="#")
    path.write_text("sep=#\n" + path.read_text())
    assert read_table(str(path)).columns == ["kind", "note"]
    bare = write(tmp_path / "b.csv", "NUM:How late ?", ["NUM", "DESC"], "text", between=":")
    assert read_table(str(bare), "--data", options(no_header=True)).columns == ["column_1", "column_2"]
    lines = tmp_path / "c.txt"
    lines.write_bytes(bare.read_bytes())
    assert read_table(str(lines)).columns == ["text"]


def test_an_empty_workbook_is_refused(tmp_path: Path) -> None:
    import openpyxl

    openpyxl.Workbook().save(tmp_path / "e.xlsx")
    assert "expected a row with column names" in refusal(tmp_path / "e.xlsx")


def test_a_table_without_a_column_for_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "sentence1,sentence2", "text", "text")
    assert "no column is left for the labels beside sentence1, sentence2" in refusal(path)


def test_a_spelling_of_a_missing_score_is_asked_about(tmp_path: Path) -> None:
    """Not one class per number, and never a score."""
    path = write(tmp_path / "a.csv", "text,score", "text", lambda row: "NA" if row % 6 == 0 else str(row / 7))
    words = refusal(path)
    assert "Got 'NA' instead; if that means no score, empty the cells (or train with --unlabelled-value=NA)" in words
    splits = load(path, unlabelled_value="NA")
    assert len(splits.train) + len(splits.validation) + len(splits.test or ()) == 50
    assert len(splits.unlabelled["unlabelled.csv"]) == 10
    assert "no row has it as its label" in refusal(path, unlabelled_value="-")


@pytest.mark.parametrize("header", ["text,question,sentence,label", "sentence1,sentence2,text,label"])
def test_a_text_beside_two_that_may_be_a_pair_is_asked_about(tmp_path: Path, header: str) -> None:
    path = write(tmp_path / "a.csv", header, "text", "text", "text", ["a", "b"])
    first, last = [name for name in header.split(",") if name not in ("text", "label")]
    part = (
        f"the text may be in one column, or in '{first}' and '{last}' (for a pair give --text-pair-column, too): text"
    )
    words = refusal(path)
    assert part in words
    assert '--text-column "text"' in words
    assert load(path, text_column="text").columns.texts.named == ("text",)
    assert load(path, text_column=first, text_pair_column=last).columns.texts.named == (first, last)
    assert load(path, text_pair_column=last).columns.texts.named == (first, last)


@pytest.mark.parametrize(
    ("names", "others"),
    [
        ("question,sentence", {"index": str}),
        ("question1,question2", {"id": str, "qid1": str, "qid2": str}),
        ("sentence1,sentence2", {"idx": str}),
        ("premise,hypothesis", {"title": "text"}),
        ("sentence_A,sentence_B", {"comment": "text"}),
        ("text1,text2", {"text_id": str}),
    ],
)
def test_usual_pairs_are_not_asked_about(tmp_path: Path, names: str, others: dict[str, Any]) -> None:
    header = ",".join([*others, names, "label"])
    path = write(tmp_path / "a.csv", header, *others.values(), "text", "text", ["a", "b"])
    assert ",".join(load(path).columns.texts.named) == names


def test_thousands_are_refused_in_every_table(tmp_path: Path) -> None:
    """5,263 would be scored as 5.263."""
    path = write(tmp_path / "a.csv", "text,score", "text", lambda row: f"{row * 47}.5")
    other = write(tmp_path / "b.csv", "text,score", "text", ['"5,263"', '"9,275"', "812"])
    part = "b.csv: column 'score' holds '5,263', which may be a thousand or a fraction; write thousands without a comma"
    assert part in refusal(path, test_data=str(other))
    assert part in refusal(path, eval_data=str(other))
    with pytest.raises(InputError, match=r"b\.csv: column 'score' holds '5,263', which may be a thousand"):
        Regression(["score"]).encode(read_table(str(other)), "score", "the training data")
    fractions = write(tmp_path / "c.csv", "text,score", "text", ['"5,263"', '"9,27"', "812"])
    assert load(path, test_data=str(fractions)).scored.targets.max() == 812


def test_a_missing_score_is_the_same_number_in_every_table(tmp_path: Path) -> None:
    """Programs write -1 as -1.0."""
    path = write(tmp_path / "a.csv", "text,score", "text", lambda row: "-1" if row % 4 == 0 else f"{row / 7:.3f}")
    test = write(tmp_path / "b.csv", "text,score", "text", ["-1.0", "2.5", "0.5"], rows=30)
    for value in ("-1", "-1.0"):
        splits = load(path, test_data=str(test), unlabelled_value=value)
        assert len(splits.unlabelled["unlabelled.csv"]) == 15
        assert splits.test is not None
        assert (len(splits.test), splits.test.targets.min()) == (20, 0.5)
    assert "no row has it as its label" in refusal(path, unlabelled_value="-2")


def test_scores_have_no_names(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,score", "text", lambda row: f"{row / 7:.3f}")
    for names in ("1=bad", "no-such-file.txt"):
        assert "--label-names: scores have no classes; drop the flag" in refusal(path, label_names=names)


def test_decimal_commas_do_not_separate_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text;score", "text", lambda row: f"{row},{row % 9}5", between=";")
    assert decision(load(path), "task").value == "a score for each row"


@pytest.mark.parametrize(
    ("cells", "part"),
    [
        (["a;b", '"b,c"', "c", "a"], "the label 'b,c', which may be several"),
        (['"{""a"": 1, ""b"": 0}"', '"{""a"": 0, ""b"": 1}"'], "holds objects"),
    ],
)
def test_labels_with_several_separators_are_refused(tmp_path: Path, cells: list[str], part: str) -> None:
    path = write(tmp_path / "a.csv", "text,labels", "text", cells)
    assert part in refusal(path, task="multi", label_column="labels")


@pytest.mark.parametrize("cells", [["a", "b", "a b", "b c", "c"], ["a", "b/a", "b", "c"], ["a", "b", "c", "a and b"]])
def test_an_unusual_separator_is_taken_where_several_labels_are_asked_for(tmp_path: Path, cells: list[str]) -> None:
    splits = load(write(tmp_path / "a.csv", "text,labels", "text", cells), task="multi", label_column="labels")
    assert splits.encoder.labels == ["a", "b", "c"]
    assert "labels of a row are separated by" in decision(splits, "task").why


def test_tags_without_anything_between_them(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,tags", "text", ["<c#>", "<java>", "<java><c#>"])
    assert "Give --task single, or --task multi" in refusal(path)
    test = write(tmp_path / "b.csv", "text,tags", "text", ["<c#>", "<java><c#>"], rows=10)
    splits = load(path, test_data=str(test), task="multi")
    assert splits.encoder.labels == ["<c#>", "<java>"]
    assert splits.test is not None
    assert splits.test.targets.sum() == 15


@pytest.mark.parametrize(
    ("cells", "labels"),
    [
        (["credit card|late", "card", "credit|card", "credit"], ["card", "credit", "credit card", "late"]),
        (["Action & Drama|War", "Action", "Drama", "War"], ["Action", "Action & Drama", "Drama", "War"]),
        (
            ['"[""Action/Drama"", ""War""]"', '"[""Action""]"', '"[""Drama""]"'],
            ["Action", "Action/Drama", "Drama", "War"],
        ),
        ([lambda row: "a|b" if row == 7 else "abc"[row % 3]], ["a", "b", "c"]),
        ([lambda row: "a;b" if row == 7 else "abc"[row % 3]], ["a", "b", "c"]),
        ([lambda row: "[]" if row % 50 == 0 else '"a,b"' if row % 2 else "c"], ["a", "b", "c"]),
    ],
)
def test_the_separator_of_labels(tmp_path: Path, cells: list[Any], labels: list[str]) -> None:
    """The usual one divides; what a name may have as well does not, and a rare one where it leaves other labels."""
    path = write(tmp_path / "a.csv", "text,labels", "text", cells[0] if callable(cells[0]) else cells, rows=1_000)
    assert load(path, task="multi").labels == labels


def test_lists_between_the_rows_of_the_sample_are_asked_about(tmp_path: Path) -> None:
    label = lambda row: "a;b" if row == 3 else "abc"[row % 3]  # noqa: E731
    path = write(tmp_path / "a.csv", "text,label", "text", label, rows=4 * SAMPLE)
    assert "holds 'a;b': one class, or several labels?" in refusal(path)


def test_one_class_or_several_labels_is_asked(tmp_path: Path) -> None:
    """Where hardly a row holds two: it may be a class that was named after two others."""
    label = lambda row: "a;b" if row % 200 == 7 else "abc"[row % 3]  # noqa: E731
    path = write(tmp_path / "a.csv", "text,label", "text", label, rows=600)
    assert "holds 'a;b': one class, or several labels? Give --task single, or --task multi." in refusal(path)
    assert load(path, task="single").labels == ["a", "a;b", "b", "c"]
    assert load(path, task="multi").labels == ["a", "b", "c"]


def test_json_with_a_list_for_several_labels_and_a_string_for_one(tmp_path: Path) -> None:
    labels = [["a", "b"], "a", "b", [], ["c"]]
    draw = random.Random(0)
    lines = [json.dumps({"text": sentence(draw), "labels": labels[row % 5]}) for row in range(60)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    splits = load(tmp_path / "a.jsonl")
    assert splits.labels == ["a", "b", "c"]
    assert splits.encoder.label_counts(splits.targets).tolist() == [24, 24, 12]


def test_a_label_with_the_character_between_labels_is_noted(tmp_path: Path) -> None:
    labels = [["a|b", "c"], ["c"], ["d", "c"]]
    lines = [json.dumps({"text": f"letter {row} is late", "labels": labels[row % 3]}) for row in range(60)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    warning = "the label 'a|b' holds |, which separates labels in predictions.csv"
    assert warning in load(tmp_path / "a.jsonl").warnings


@pytest.mark.parametrize(("no", "yes"), [("0", "1"), ("0.0", "1.0"), ("False", "True"), ("no", "Yes")])
def test_columns_that_say_yes_or_no_are_labels(tmp_path: Path, no: str, yes: str) -> None:
    marks = ([yes if row % step == 0 else no for row in range(60)] for step in (2, 3, 4))
    path = write(tmp_path / "a.csv", "text,late,lost,broken", "text", *marks)
    splits = load(path, label_column="late,lost,broken")
    assert splits.labels == ["broken", "late", "lost"]
    assert splits.encoder.label_counts(splits.targets).tolist() == [15, 30, 20]


@pytest.mark.parametrize("stars", [["1.0", "2.0", "3.0"], ["1", "1.5", "2.0", "2.5"]])
def test_ratings_may_be_scores(tmp_path: Path, stars: list[str]) -> None:
    path = write(tmp_path / "a.csv", "text,stars", "text", stars)
    assert "a score is possible, too" in decision(load(path), "task").why


def test_a_validation_table_is_no_test_table(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label", "text", ["x", "y"])
    held_out = write(tmp_path / "b.csv", "text,label", lambda row: f"other text {row}", ["x", "y"], rows=20)
    splits = load(path, eval_data=str(held_out), test_data=str(held_out))
    assert any("20 of 20 test texts are also in the validation split" in warning for warning in splits.warnings)


def test_labels_of_a_trained_model_are_not_divided(tmp_path: Path) -> None:
    """Although a label is made of two others, whichever rows the further table has."""
    task = MultiLabel(["card", "credit", "credit card"])
    further = read_table(str(write(tmp_path / "a.csv", "text,labels", "text", ["credit card", "card"], rows=4)))
    targets = task.for_table(further, "labels").encode(further, "labels", "--data")
    assert targets.tolist() == [[0, 0, 1], [1, 0, 0]] * 2


def test_labels_of_a_trained_model_may_hold_a_separator(tmp_path: Path) -> None:
    task = MultiLabel(["food, drink", "service"])
    further = read_table(str(write(tmp_path / "a.csv", "text,labels", "text", ['"food, drink"', "service"], rows=4)))
    targets = task.for_table(further, "labels").encode(further, "labels", "--data")
    assert targets.tolist() == [[1, 0], [0, 1]] * 2


def test_brackets_within_names_stay(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,labels", "text", ["a><b;c", "c", "a><b"])
    assert load(path, task="multi").encoder.labels == ["a><b", "c"]


LISTS = ["\"['a']\"", "\"['a', 'b']\"", "\"['b']\""]
MIXED = {
    "one cell of many": (LISTS, '"b, a"', 301),
    "some": (LISTS, '"b, a"', 90),
    "not in the sample": (LISTS, '"b, a"', 4 * SAMPLE),
    "lists beside a separator": (["a", "a|b", "b"], '"[""a"",""b""]"', 300),
}


@pytest.mark.parametrize("task", ["auto", "multi"])
@pytest.mark.parametrize(("cells", "odd", "rows"), MIXED.values(), ids=MIXED)
def test_lists_beside_cells_with_a_separator_are_refused(
    tmp_path: Path, task: str, cells: list[str], odd: str, rows: int
) -> None:
    """No separator fits both."""
    label = lambda row: odd if row == 3 else cells[row % 3]  # noqa: E731
    words = refusal(write(tmp_path / "a.csv", "text,labels", "text", label, rows=rows), task=task)
    assert "column 'labels' holds lists such as" in words
    assert all(repr(cell.strip('"').replace('""', '"')) in words for cell in (odd, cells[1]))


def test_a_rare_list_among_names_is_asked_about(tmp_path: Path) -> None:
    label = lambda row: '"[""a"", ""b""]"' if row == 3 else "abc"[row % 3]  # noqa: E731
    path = write(tmp_path / "a.csv", "text,label", "text", label, rows=4 * SAMPLE)
    assert """holds '["a", "b"]': one class, or several labels?""" in refusal(path)
    assert load(path, task="multi").labels == ["a", "b", "c"]


@pytest.mark.parametrize("cells", [["\"('a',)\"", "\"('a', 'b')\"", "()"], ['"(1,)"', '"(1, 12)"', '"(12,)"']])
def test_tuples_are_lists(tmp_path: Path, cells: list[str]) -> None:
    """As scikit-learn's MultiLabelBinarizer.inverse_transform returns them."""
    splits = load(write(tmp_path / "a.csv", "text,labels", "text", cells))
    assert splits.labels in (["a", "b"], ["1", "12"])
    assert decision(splits, "task").why == "cells hold lists"


def test_arrays_of_numbers_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,labels", "text", ["[0]", "[0 2]", "[2]"])
    assert "expected a list of labels such as" in refusal(path)


@pytest.mark.parametrize(
    "cells",
    [
        ['"[0, 10]"', '"(10, 20]"', '"(20, 30]"'],
        ["(other)", "(a) or (b)", "c"],
        ["(1)", "(2)", "3"],
        ["[CLS]", "[SEP]", "a"],
        ['"(18, 24)"', '"(25, 34)"', '"(35, 44)"'],
        ['"(0, 2)"', '"(4, 6)"', "35"],
    ],
)
def test_brackets_in_names_are_no_lists(tmp_path: Path, cells: list[str]) -> None:
    splits = load(write(tmp_path / "a.csv", "text,label", "text", cells))
    assert decision(splits, "task").value == "one of 3 classes"


def test_objects_between_the_rows_of_the_sample_are_refused(tmp_path: Path) -> None:
    label = lambda row: '"[{""start"": 1}]"' if row == 3 else "ab"[row % 2]  # noqa: E731
    path = write(tmp_path / "a.csv", "text,label", "text", label, rows=4 * SAMPLE)
    assert "not objects or spans" in refusal(path)
