"""`--label-column topic,tags,score`: one model, whose columns are tasks that do not know of each other."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import classify
from classify.cli import main
from classify.config.schema import TrainingConfig
from classify.errors import InputError, Interrupted
from classify.evaluation.scored_rows import ScoredRows
from classify.report.result import Result
from classify.tables.source import QuestionError
from classify.tasks import multi_column, multi_label, regression, single_label
from classify.tasks.base import MISSING, Column, FitRows, Task
from classify.training.inputs import check
from classify.training.run import train
from tests.support.runs import make_config, read_json, stop_at
from tests.support.tasks import CLASSES, make_labels, score_of, words_of

HEADER = ("text", "topic", "tags", "score")
FLAG = {"label_column": "topic,tags,score"}


def row_of(number: int) -> tuple[str, str, str, str]:
    """A row; the topic is empty in a tenth of the rows, the score in a third, both in the first."""
    labels = make_labels(number)
    return (
        f"{words_of(number, labels)} {number}",
        "" if number % 10 == 0 else (labels or ["none"])[0],
        "|".join(labels),
        "" if number % 3 == 0 else score_of(number),
    )


def write(path: Path, count: int = 90, header: tuple[str, ...] = HEADER) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(row_of(number)[: len(header)] for number in range(count))
    return path


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("table") / "my.csv")


@pytest.fixture(scope="module")
def run(model_folder: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("columns") / "run"
    return train(make_config(model_folder, table, folder, folds=0, contrastive_steps=3, **FLAG))


def make_task() -> tuple[Task, dict[str, Task], dict[str, np.ndarray]]:
    """A task of three columns, its parts, and the parts' targets of 24 rows."""
    draw = np.random.default_rng(0)
    scores = draw.normal(5, 2, 24).astype(np.float32)
    parts = {
        "topic": single_label.make(CLASSES),
        "tags": multi_label.make(["x", "y"]),
        "score": regression.make(["score"], float(scores.mean()), float(scores.std()), 2.0),
    }
    targets = {
        "topic": draw.integers(0, len(CLASSES), 24),
        "tags": draw.integers(0, 2, (24, 2)).astype(np.uint8),
        "score": scores,
    }
    return multi_column.make(list(parts.items())), parts, targets


def join(task: Task, targets: dict[str, np.ndarray], missing: dict[str, list[int]]) -> np.ndarray:
    cells = multi_column.pack(task.columns, list(targets.values()))
    for column in task.columns:
        cells[missing.get(column.name, []), column.cells] = MISSING
    return cells


MISSED: dict[str, list[int]] = {"topic": [0, 1, 2], "tags": [2, 5], "score": list(range(6, 12))}


def each(task: Task, cells: np.ndarray) -> list[tuple[Column, np.ndarray]]:
    return [(column, column.rows(cells)) for column in task.columns]


def test_a_rows_loss_is_the_mean_over_the_columns_that_it_has() -> None:
    task, parts, targets = make_task()
    cells = join(task, targets, MISSED)
    logits = torch.randn(24, len(task.labels), generator=torch.Generator().manual_seed(1), requires_grad=True)
    weights = np.linspace(0.5, 2, 24).astype(np.float32)
    config = TrainingConfig()
    loss = task.head.loss(config, cells)
    total = loss.loss_sum(logits, torch.from_numpy(cells), torch.from_numpy(weights)) / loss.weight_sum(cells, weights)
    expected, divisor = torch.zeros(()), 0.0
    counts = np.zeros(24)
    for _, rows in each(task, cells):
        counts[rows] += 1
    for column, rows in each(task, cells):
        own = parts[column.name].head.loss(config, targets[column.name][rows])
        for row in rows.tolist():
            one = torch.from_numpy(targets[column.name][[row]])
            expected = expected + weights[row] / counts[row] * own.loss_sum(logits[[row], column.outputs], one)
            divisor += weights[row] / counts[row]
    torch.testing.assert_close(total, expected / divisor)
    total.backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    # No gradient reaches the outputs of a column that a row does not have.
    for column in task.columns:
        assert not logits.grad[MISSED[column.name], column.outputs].any()
        assert logits.grad[column.rows(cells), column.outputs].any(dim=1).all()


def test_padding_rows_count_for_nothing() -> None:
    task, _, targets = make_task()
    cells = join(task, targets, MISSED)
    loss = task.head.loss(TrainingConfig(), cells)
    logits = torch.randn(24, len(task.labels), generator=torch.Generator().manual_seed(1))
    padded = torch.cat([torch.from_numpy(cells), torch.full((3, cells.shape[1]), loss.padding)])
    more = torch.cat([logits, torch.ones(3, len(task.labels))])
    more.requires_grad_()
    whole = loss.loss_sum(more, padded)
    torch.testing.assert_close(whole, loss.loss_sum(logits, torch.from_numpy(cells)))
    whole.backward()
    assert more.grad is not None
    assert not more.grad[24:].any()


def test_a_column_is_fitted_scored_and_decided_as_if_it_were_alone() -> None:
    task, parts, targets = make_task()
    cells = join(task, targets, MISSED)
    draw = np.random.default_rng(2)
    features, logits = (draw.normal(size=(24, size)).astype(np.float32) for size in (6, len(task.labels)))
    penalty = task.head.choose_penalty(FitRows(features, cells))
    weight, bias = task.head.fit(FitRows(features, cells), penalty)
    scores = task.scores.score(logits, cells, 0)
    predicted = task.answers.decide(task.answers.probabilities(logits))
    similarity, shared = np.zeros((24, 24)), np.zeros((24, 24))
    for column, rows in each(task, cells):
        part, own = parts[column.name], targets[column.name][rows]
        fitted = FitRows(features[rows], own)
        one = part.head.fit(fitted, part.head.choose_penalty(fitted))
        np.testing.assert_allclose(weight[column.outputs], one[0], rtol=1e-6)
        np.testing.assert_allclose(bias[column.outputs], one[1], rtol=1e-6)
        assert scores.columns[column.name].values == part.scores.score(logits[rows, column.outputs], own, 0).values
        decided = part.answers.decide(part.answers.probabilities(logits[:, column.outputs]))
        np.testing.assert_allclose(column.unpack(predicted), decided, rtol=1e-6)
        similarity[np.ix_(rows, rows)] += part.targets.similarity(own)
        shared[np.ix_(rows, rows)] += 1
    primary = [scores.columns[name].values[part.scores.primary] for name, part in parts.items()]
    assert scores["mean"] == pytest.approx(np.mean(primary))
    np.testing.assert_allclose(task.targets.similarity(cells), similarity / np.maximum(shared, 1), rtol=1e-5)


def test_splits_hold_combinations_in_proportion_and_rare_ones_by_their_rarest_label() -> None:
    task = multi_column.make([("one", single_label.make(["a", "b"])), ("two", single_label.make(["x", "y", "z"]))])
    one = np.array([0] * 40 + [1] * 23)
    two = np.array([0] * 20 + [1] * 20 + [0] * 20 + [2] * 3)
    strata = task.targets.stratify_by(multi_column.pack(task.columns, [one, two]))
    assert len(np.unique(strata)) == 4
    assert [len(np.unique(strata[part])) for part in (slice(0, 20), slice(20, 40), slice(40, 60), slice(60, 63))] == [
        1, 1, 1, 1,
    ]  # fmt: skip


def test_scores_and_predictions_are_those_of_each_column(run: Path) -> None:
    metrics, rows = read_json(run / "metrics.json"), read(run / "predictions.csv")
    assert metrics["task"] == "multi_column"
    columns = metrics["test"]["columns"]
    assert set(columns) == {"topic", "tags", "score"}
    labelled = [row for row in rows if row["topic"]]
    right = np.mean([row["topic"] == row["predicted_topic"] for row in labelled])
    assert columns["topic"]["accuracy"] == pytest.approx(right)
    assert columns["topic"]["rows"] == len(labelled)
    assert columns["score"]["rows"] == sum(bool(row["score"]) for row in rows)
    wrong = [abs(float(row["score"]) - float(row["predicted_score"])) for row in rows if row["score"]]
    assert columns["score"]["mae"] == pytest.approx(np.mean(wrong), rel=1e-4)
    primary = (columns["topic"]["macro_f1"], columns["tags"]["macro_f1"], columns["score"]["pearson"])
    assert metrics["test"]["mean"] == pytest.approx(np.mean(primary))
    assert metrics["baseline"]["columns"]["topic"]["paired"]
    assert set(metrics["calibration"]["columns"]) == {"topic", "tags"}
    for name in ("confidence_topic", "predicted_tags", "prob_tags_card"):
        assert name in rows[0]
    for row in rows:
        probabilities = [float(value) for name, value in row.items() if name.startswith("prob_topic_")]
        assert sum(probabilities) == pytest.approx(1, abs=1e-5)
        assert max(probabilities) == pytest.approx(float(row["confidence_topic"]))


def test_the_stock_folder_has_the_logits_of_all_columns(run: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(run), AutoTokenizer.from_pretrained(run)
    names = list(model.config.id2label.values())
    assert names[-1] == "score"
    columns = [name.partition(": ")[0] for name in names]
    assert columns == sorted(columns, key=HEADER.index)
    rows = ScoredRows.read(run)
    text = read(run / "predictions.csv")[0]["text"]
    limit = read_json(run / "classify.json")["max_length"]
    with torch.no_grad():
        logits = model.eval()(**tokenizer(text, return_tensors="pt", truncation=True, max_length=limit)).logits
    np.testing.assert_allclose(logits.numpy()[0], rows.logits[0], atol=1e-4)
    entries = read_json(run / "classify.json")["columns"]
    assert [one["task"] for one in entries] == ["single_label", "multi_label", "regression"]
    assert set(entries[1]["thresholds"]) == set(entries[1]["labels"])
    assert [one["slice"] for one in entries] == [[0, 4], [4, 7], [7, 8]]


def test_python_answers_with_a_value_for_each_column(run: Path, table: Path, tmp_path: Path) -> None:
    texts = [row["text"] for row in read(run / "predictions.csv")]
    with classify.load(run, use_cpu=True) as model:
        answers = model.predict(texts)
        scores = model.evaluate(write(tmp_path / "two.csv", header=HEADER[:2]))
        with pytest.raises(InputError, match="'topic', 'tags', 'score'"):
            model.explain(texts[0])
        assert model.explain(texts[0], "topic")
        assert model.explain(texts[0], "tags: card")
    assert [answer["topic"] for answer in answers] == [row["predicted_topic"] for row in read(run / "predictions.csv")]
    assert set(answers[0]) == {"topic", "tags", "score"}
    assert isinstance(answers[0]["tags"], list)
    assert isinstance(answers[0]["score"], float)
    assert set(scores["columns"]) == {"topic"}


def test_commands_know_the_columns(
    run: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out.csv"
    words = ["predict", "--model", str(run), "--data", str(table), "--out", str(out), "--cpu"]
    assert main([*words, "--min-confidence", "0.4", "--coverage", "0.5", "--threshold", "tags: card=0"]) == 0
    rows = read(out)
    assert {row["accepted_topic"] for row in rows} <= {"true", "false"}
    assert all("card" in row["predicted_tags"].split("|") for row in rows)
    assert all(float(row["score_low_score"]) < float(row["score_high_score"]) for row in rows)
    assert all(row["predicted_topic"] in row["label_set_topic"].split("|") for row in rows)
    assert "topic: " in capsys.readouterr().out
    assert main([*words, "--overwrite", "--top-k", "1"]) == 0
    assert {"label_1_topic", "prob_1_topic", "label_1_tags"} <= set(read(out)[0])
    assert main([*words, "--overwrite", "--threshold", "nope=0.5"]) == 2
    assert "tags: card" in capsys.readouterr().err
    assert main(["predict", "--model", str(run), "--text", "stolen card", "--cpu"]) == 0
    answers = [line for line in capsys.readouterr().out.splitlines() if line[0] != " "]
    assert [line.partition(":")[0] for line in answers] == list(HEADER[1:])
    assert main(["explain", "--model", str(run), "--cpu", "--json", "stolen card"]) == 0
    assert '"topic": {' in capsys.readouterr().out
    evaluation = ["evaluate", "--model", str(run), "--data", str(table), "--output-dir", "made", "--cpu"]
    assert main([*evaluation, "--label-column", "topic,score"]) == 0
    assert set(Result.read(Path("made")).by_column) == {"topic", "score"}
    assert main(["compare", str(run), "made"]) == 0
    printed = capsys.readouterr().out
    assert "topic:" in printed
    assert "tags:" not in printed.split("result:")[-1]
    with (tmp_path / "new.csv").open("w", encoding="utf-8") as file:
        file.write("text\n" + "".join(f"{words_of(n, make_labels(n))} new\n" for n in range(30, 50)))
    assert main(["suggest", "--model", str(run), "--data", "new.csv", "--count", "3", "--cpu"]) == 0
    assert {"topic", "tags", "score", "predicted_topic", "confidence_topic"} <= set(read(Path("label-me.csv"))[0])
    assert main(["compare", "--model", str(run), "--data", "new.csv", "--cpu"]) == 0
    assert "certainty of topic" in capsys.readouterr().out


def test_the_page_and_the_card_show_each_column(run: Path) -> None:
    from classify.report.page import write_pages

    assert write_pages(run, use_cpu=True)
    page, card = ((run / name).read_text(encoding="utf-8") for name in ("report.html", "README.md"))
    for title in ("topic: Confusions", "tags: Classes", "score: Predictions"):
        assert f"<h2>{title}</h2>" in page
    anchors = [part.partition('"')[0] for part in page.split('id="')[1:]]
    assert len(anchors) == len(set(anchors))
    assert "| topic: accuracy |" in card
    assert set(read_json(run / "explanations.json")) == {"topic", "tags", "score"}


def test_a_resumed_run_ends_with_the_same_weights(
    model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"folds": 0, "dropout": 0.0, "batch_size": 16, "logging_steps": 1, **FLAG}
    whole = train(make_config(model_folder, table, tmp_path / "whole", **settings))
    with monkeypatch.context() as patched:
        stop_at(4, patched)
        with pytest.raises(Interrupted):
            train(make_config(model_folder, table, tmp_path / "cut", **settings))
    resumed = train(make_config(model_folder, table, tmp_path / "cut", resume_from_checkpoint=True, **settings))
    first, second = (load_file(folder / "model.safetensors") for folder in (whole, resumed))
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_folds_find_labels_to_check_in_each_column(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = ("money transfer", "stolen card")
    rows = [(f"{kinds[number % 2]} {number}", "ab"[number % 2]) for number in range(400)]
    table = tmp_path / "wrong.csv"
    wrong = {7: "topic", 101: "team", 200: "team"}
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "topic", "team"])
        for number, (text, label) in enumerate(rows):
            cells = {"topic": label, "team": label * 2}
            if number in wrong:
                cells[wrong[number]] = cells[wrong[number]].translate(str.maketrans("ab", "ba"))
            writer.writerow([text, *cells.values()])
    options: dict[str, Any] = {"folds": 2, "num_train_epochs": 3.0, "label_column": "topic,team"}
    folder = train(make_config(model_folder, table, tmp_path / "run", **options))
    found = read(folder / "suspects.csv")
    assert {(int(row["row"]) - 2, row["column"]) for row in found} == set(wrong.items())
    reviewed = (folder / "suspects.csv").read_text(encoding="utf-8").replace(",,team", ",x,team")
    (folder / "reviewed.csv").write_text(reviewed, encoding="utf-8")
    out = tmp_path / "fixed.csv"
    assert main(["clean", "--apply", str(folder / "reviewed.csv"), "--out", str(out)]) == 0
    assert "2 labels changed in column 'team'" in capsys.readouterr().out
    assert [row["team"] for row in read(out)] == [label * 2 for _, label in rows]


def write_cells(path: Path, **columns: Any) -> Path:
    """A table of 40 texts, and columns of cells by row."""
    lines = [["text", *columns]] + [[words_of(n, []), *(cell(n) for cell in columns.values())] for n in range(40)]
    path.write_text("".join(",".join(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "'one': expected at least two classes"),
        ({"out_of_scope_label": "a"}, "--out-of-scope-label: works with one label column"),
        ({"class_weights": "{}"}, "expected at least two classes"),
    ],
)
def test_what_one_column_lacks_is_one_line(
    model_folder: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    table = write_cells(tmp_path / "t.csv", topic=lambda n: "ab"[n % 2], one=lambda n: "x")
    with pytest.raises(InputError, match=message) as caught:
        check(make_config(model_folder, table, tmp_path / "out", label_column="topic,one", **options))
    assert len(caught.value.faults) == 1


def test_what_looks_odd_is_a_finding(model_folder: Path, tmp_path: Path) -> None:
    cells = {
        "topic": lambda n: "abc"[n % 3],
        "same": lambda n: "xyz"[n % 3],
        "score": lambda n: f"{n / 8:.1f}" if n % 3 == 0 else "",
    }
    table = write_cells(tmp_path / "t.csv", **cells)
    inputs = check(make_config(model_folder, table, tmp_path / "out", label_column="topic,same,score"))
    notes = [one.sentence for one in inputs.splits.findings if one.level == "note"]
    assert any("columns 'topic' and 'same' say the same in each row" in text for text in notes)
    assert any("column 'score' is empty in 26 of 40 rows" in text for text in notes)


def test_columns_of_0_and_1_are_still_one_task(model_folder: Path, tmp_path: Path) -> None:
    table = write_cells(tmp_path / "t.csv", urgent=lambda n: "01"[n % 2], spam=lambda n: "01"[n % 3 > 0])
    inputs = check(make_config(model_folder, table, tmp_path / "out", label_column="urgent,spam"))
    assert inputs.task.name == multi_label.NAME


def test_the_question_for_the_label_column_names_the_way_to_both(model_folder: Path, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    texts = draw.integers(0, 2, (40, 2))
    path = tmp_path / "t.csv"
    lines = [f"{('red', 'blue')[a]} {('low', 'high')[b]} text {n},t{a},u{b}" for n, (a, b) in enumerate(texts.tolist())]
    path.write_text("\n".join(["text,topic,urgency", *lines]) + "\n", encoding="utf-8")
    with pytest.raises(QuestionError, match='--label-column "topic,urgency" for a task each'):
        check(make_config(model_folder, path, tmp_path / "out"))


def test_each_column_takes_the_flags_that_fit_it(model_folder: Path, tmp_path: Path) -> None:
    """Names, missing values and separators hold where they occur; weights of classes not for scores."""
    cells = {
        "topic": lambda n: ("a", "bb", "none")[n % 3],
        "tags": lambda n: ("x / y", "x", "y")[n % 3],
        "score": lambda n: f"{n / 8:.1f}",
    }
    table = write_cells(tmp_path / "t.csv", **cells)
    options = {"label_names": "bb=b", "unlabelled_value": "none", "label_separator": "/", "class_weights": "balanced"}
    names = "topic,tags,score"
    inputs = check(make_config(model_folder, table, tmp_path / "out", label_column=names, **options))
    assert inputs.task.labels == ["topic: a", "topic: b", "tags: x", "tags: y", "score"]
    weights = inputs.task.head.class_weights(inputs.config.training, inputs.splits.train.targets)
    assert weights is not None
    assert len(weights) == 5
    assert weights[4] == 1
    options["label_names"] = "nope=b"
    with pytest.raises(InputError, match="no label column has 'nope'"):
        check(make_config(model_folder, table, tmp_path / "out", label_column=names, **options))


def test_a_column_without_a_training_row_is_one_line(model_folder: Path, tmp_path: Path) -> None:
    cells = {
        "topic": lambda n: "ab"[n % 2],
        "new": lambda n: "xy"[n % 2] if n >= 28 else "",
        "split": lambda n: "train" if n < 28 else "validation",
    }
    table = write_cells(tmp_path / "t.csv", **cells)
    with pytest.raises(InputError, match="column 'new' is empty in all rows to train on"):
        check(make_config(model_folder, table, tmp_path / "out", label_column="topic,new"))


def test_a_fold_may_lack_a_column() -> None:
    task, _, targets = make_task()
    cells = join(task, targets, {"topic": list(range(24))})
    features = np.random.default_rng(2).normal(size=(24, 6)).astype(np.float32)
    weight, bias = task.head.fit(FitRows(features, cells), task.head.trained_penalty(is_final=True))
    assert not weight[task.columns[0].outputs].any()
    assert np.isfinite(weight).all()
    assert np.isfinite(bias).all()


def test_rows_of_one_text_complete_each_other(model_folder: Path, tmp_path: Path) -> None:
    """One row has its topic, another its team; that is no contradiction, and each column is scored."""
    lines = ["text,topic,team"]
    for number in range(120):
        text = words_of(number, [CLASSES[number % 2]]) + f" {number}"
        lines += [f"{text},{'ab'[number % 2]},", f"{text},,{'xy'[number % 2]}"]
    table = tmp_path / "long.csv"
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    folder = train(make_config(model_folder, table, tmp_path / "run", label_column="topic,team", folds=0))
    assert read_json(folder / "run.json")["inspection"]["conflicting_texts"] == 0
    columns = read_json(folder / "metrics.json")["baseline"]["columns"]
    rows = {name: one["rows"] for name, one in read_json(folder / "metrics.json")["test"]["columns"].items()}
    assert set(rows) == set(columns) == {"topic", "team"}
    for name in columns:
        assert Result.read(folder).by_column[name].independent.size == rows[name]


def test_a_report_knows_rows_that_were_trained_on(model_folder: Path, table: Path, tmp_path: Path) -> None:
    """The scores of new texts have the paired test, and no prediction is taken for a group of rows."""
    test = tmp_path / "test.csv"
    lines = table.read_text(encoding="utf-8").splitlines()
    more = write(tmp_path / "more.csv", 140).read_text(encoding="utf-8").splitlines()
    test.write_text("\n".join([*lines[:20], *more[91:]]) + "\n", encoding="utf-8")
    folder = train(make_config(model_folder, table, tmp_path / "run", test_data=str(test), folds=0, **FLAG))
    from classify.report.verdict import sentences

    result = Result.read(folder)
    assert result.left_out
    assert len(sentences(result)) == 4
    assert all("paired" in view.baseline for view in result.by_column.values() if view.baseline is not None)
    view = result.by_column["topic"]
    assert {"predicted_tags", "confidence_topic"} <= set(view.added)
