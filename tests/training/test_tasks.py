"""Every task from the table to the predictions: the files, transformers' pipeline, resuming, cross-validation."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score

import classify
from classify.cli import main
from classify.errors import InputError, Interrupted
from classify.evaluation.calibration import choose_thresholds
from classify.evaluation.metrics import sigmoid
from classify.evaluation.scored_rows import ScoredRows
from classify.report.page import write_report
from classify.report.result import Result
from classify.training.run import train
from tests.support.runs import make_config, read_json, stop_at
from tests.support.tasks import CASES, CLASSES, Case, make_labels, words_of

METRICS = {
    "single_label": {"accuracy", "macro_f1"},
    "multi_label": {"micro_f1", "macro_f1", "jaccard", "subset_accuracy", "average_precision"},
    "regression": {"pearson", "spearman", "mse", "mae"},
}


@pytest.fixture(scope="module", params=CASES)
def run(
    request: pytest.FixtureRequest, model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Case, Path, Path]:
    """A case, its table, and the folder of a run on it."""
    case, folder = CASES[request.param], tmp_path_factory.mktemp("task")
    table = case.write(folder / "my.csv")
    # Shorter than most texts: prediction and pipeline must truncate as training did.
    options = {"folds": 0, "max_length": 12, **case.options}
    return case, table, train(make_config(model_folder, table, folder / "out", **options))


def parse_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def texts_of(case: Case, row: dict[str, str]) -> list[str]:
    columns = case.options.get("text_column", "").split(",")
    if columns != [""]:
        return [" ".join(row[name] for name in columns)]
    return [row[name] for name in case.header if name in ("text", "sentence1", "sentence2")]


def test_the_files_say_which_task_it_is(run: tuple[Case, Path, Path]) -> None:
    case, _, out = run
    metrics = read_json(out / "metrics.json")
    assert (
        metrics["task"] == read_json(out / "run.json")["task"] == read_json(out / "classify.json")["task"] == case.task
    )
    assert METRICS[case.task] <= set(metrics["test"])
    assert METRICS[case.task] - {"average_precision"} <= set(metrics["baseline"])
    problem = {"single_label": "single_label_classification", "multi_label": "multi_label_classification"}
    assert read_json(out / "config.json")["problem_type"] == problem.get(case.task, "regression")
    table = parse_rows(out / "predictions.csv")
    assert list(table[0]) == [*case.header, *case.added]
    assert len(table) == metrics["test"]["rows"]


def check_same_prediction(case: Case, row: dict[str, str], expected: dict[str, str]) -> None:
    for name in case.added:
        if name.startswith("predicted_label"):
            assert row[name] == expected[name], expected[case.header[0]]
        else:
            assert float(row[name]) == pytest.approx(float(expected[name]), abs=1e-5)


def has(row: dict[str, str], label: str) -> bool:
    return label in row.get("labels", "").split(",") or row.get(label) == "1"


def test_the_metrics_are_those_of_the_predictions(run: tuple[Case, Path, Path]) -> None:
    from scipy.stats import pearsonr
    from sklearn.metrics import accuracy_score, f1_score

    case, _, out = run
    table, result = parse_rows(out / "predictions.csv"), read_json(out / "metrics.json")["test"]
    if case.task == "regression":
        scores, predicted = ([float(row[name]) for row in table] for name in (case.header[-1], "predicted_score"))
        # The scores of this random encoder differ in their last digits alone, and the file has eight.
        assert result["pearson"] == pytest.approx(pearsonr(scores, predicted).statistic, abs=1e-3)
        assert result["mae"] == pytest.approx(np.abs(np.subtract(scores, predicted)).mean(), abs=1e-4)
    elif case.task == "single_label":
        assert result["accuracy"] == accuracy_score(
            [row["label"] for row in table], [row["predicted_label"] for row in table]
        )
    else:
        labels = sorted(name.removeprefix("prob_") for name in case.added[1:])
        wanted = [
            [label in row.get("labels", "").split(",") or row.get(label) == "1" for label in labels] for row in table
        ]
        predicted = [[label in row["predicted_labels"].split("|") for label in labels] for row in table]
        assert result["micro_f1"] == pytest.approx(f1_score(wanted, predicted, average="micro", zero_division=0.0))


def test_transformers_pipeline_gives_the_same(run: tuple[Case, Path, Path]) -> None:
    from transformers import pipeline

    case, _, out = run
    table = parse_rows(out / "predictions.csv")
    pipe = pipeline("text-classification", model=str(out), top_k=None, device="cpu")
    for row in table:
        texts = texts_of(case, row)
        given: Any = texts[0] if len(texts) == 1 else {"text": texts[0], "text_pair": texts[1]}
        scores = pipe([given], truncation=True)[0]
        for score in scores:
            name = "predicted_score" if case.task == "regression" else f"prob_{score['label']}"
            assert score["score"] == pytest.approx(float(row[name]), abs=1e-4)


def test_predict_gives_the_same(run: tuple[Case, Path, Path], tmp_path: Path) -> None:
    case, table, out = run
    assert main(["predict", "--model", str(out), "--data", str(table), "--out", str(tmp_path / "p.csv"), "--cpu"]) == 0
    predicted = {tuple(row[name] for name in case.header): row for row in parse_rows(tmp_path / "p.csv")}
    assert len(parse_rows(tmp_path / "p.csv")) == 60
    for row in parse_rows(out / "predictions.csv"):
        again = predicted[tuple(row[name] for name in case.header)]
        check_same_prediction(case, again, row)
    with classify.load_classifier(str(out), use_cpu=True) as predictor:
        rows = parse_rows(out / "predictions.csv")
        texts = [tuple(texts_of(case, row)) for row in rows]
        probabilities = predictor.probabilities(texts if len(texts[0]) > 1 else [text for (text,) in texts])
        name = case.added[-1]
        assert probabilities[:, -1].tolist() == pytest.approx([float(row[name]) for row in rows], abs=1e-5)


def test_evaluate_gives_the_same(run: tuple[Case, Path, Path], tmp_path: Path) -> None:
    """The rows of predictions.csv, scored again, have the run's test scores."""
    case, _, out = run
    with (tmp_path / "test.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, case.header, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(parse_rows(out / "predictions.csv"))
    words = ["--data", str(tmp_path / "test.csv"), "--output-dir", str(tmp_path / "scores"), "--cpu"]
    assert main(["evaluate", "--model", str(out), *words]) == 0
    expected, scores = (read_json(folder / "metrics.json")["test"] for folder in (out, tmp_path / "scores"))
    for metric, value in expected.items():
        if isinstance(value, float):
            # Predictions of the tiny model hardly differ, which amplifies the rounding in a correlation.
            rounding = 1e-3 if metric in ("pearson", "spearman") else 1e-5
            assert scores[metric] == pytest.approx(value, abs=rounding), metric
    before, after = (parse_rows(folder / "predictions.csv") for folder in (out, tmp_path / "scores"))
    for row, other in zip(before, after, strict=True):
        check_same_prediction(case, other, row)
    assert (tmp_path / "scores" / "report.html").exists()
    assert write_report(Result.read(tmp_path / "scores")).exists(), "a report can be made from the folder alone"


def test_a_model_of_pairs_says_what_it_expects(
    run: tuple[Case, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case, _, out = run
    if "sentence2" not in case.header:
        pytest.skip("one text per row")
    (tmp_path / "half.csv").write_text("sentence1\nonly one text\n")
    words = ["--model", str(out), "--out", str(tmp_path / "p.csv"), "--cpu"]
    assert main(["predict", *words, "--data", str(tmp_path / "half.csv")]) == 2
    assert "no column 'sentence2', which the model was trained on" in capsys.readouterr().err
    (tmp_path / "empty.csv").write_text("sentence1,sentence2\na text,another\na text,\n")
    assert main(["predict", *words, "--data", str(tmp_path / "empty.csv")]) == 2
    assert "empty.csv line 3: column 'sentence2' is empty" in capsys.readouterr().err
    with classify.load_classifier(str(out), use_cpu=True) as predictor:
        with pytest.raises(ValueError, match="Got an empty one at index 1"):
            predictor.probabilities([("a", "b"), ("a", " ")])
        with pytest.raises(TypeError, match="must be a list of pairs of strings"):
            predictor.probabilities(["one text"])


def test_resumed_is_uninterrupted_to_the_last_bit(
    run: tuple[Case, Path, Path], model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, table, whole = run
    options = {"folds": 0, "max_length": 12, **case.options}
    with monkeypatch.context() as patch:
        stop_at(2, patch)
        with pytest.raises(Interrupted):
            train(make_config(model_folder, table, tmp_path / "out", **options))
    out = train(make_config(model_folder, table, tmp_path / "out", resume_from_checkpoint=True, **options))
    for name in ("model.safetensors", "predictions.csv"):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name


def test_cross_validation_scores_every_row(run: tuple[Case, Path, Path], model_folder: Path, tmp_path: Path) -> None:
    case, table, _ = run
    out = train(
        make_config(
            model_folder, table, tmp_path / "out", folds=2, num_train_epochs=0.0, contrastive_steps=2, **case.options
        )
    )
    metrics = read_json(out / "metrics.json")
    assert (metrics["test"]["rows"], metrics["test"]["method"]) == (60, "2-fold cross-validation")
    assert {row["fold"] for row in parse_rows(out / "predictions.csv")} == {"1", "2"}
    assert metrics["pairs"]["steps"] == 2


def test_a_score_is_learned_in_its_own_units(model_folder: Path, tmp_path: Path) -> None:
    """Scores a thousand times as large give the same model, a thousand times as large."""
    case = CASES["scores"]
    outputs = []
    for factor in (1.0, 1000.0):
        rows = [(case.row(n)[0], repr(factor * float(case.row(n)[1]))) for n in range(60)]
        table = tmp_path / f"{factor:g}.csv"
        table.write_text("text,label\n" + "".join(f"{text},{score}\n" for text, score in rows))
        out = train(
            make_config(
                model_folder, table, tmp_path / f"out-{factor:g}", folds=0, task="regression", label_column="label"
            )
        )
        outputs.append([float(row["predicted_score"]) for row in parse_rows(out / "predictions.csv")])
    assert outputs[1] == pytest.approx([1000 * score for score in outputs[0]], rel=1e-3)


def test_thresholds_are_kept_and_used(run: tuple[Case, Path, Path]) -> None:
    case, _, out = run
    settings = read_json(out / "classify.json")
    if case.task != "multi_label":
        assert "thresholds" not in settings
        return
    for row in parse_rows(out / "predictions.csv"):
        above = [
            label for label, threshold in settings["thresholds"].items() if float(row[f"prob_{label}"]) >= threshold
        ]
        assert row["predicted_labels"] == "|".join(above)


def test_a_test_table_of_zeros_is_scored(model_folder: Path, tmp_path: Path) -> None:
    """None of its rows has a label, which is known; an empty column of lists is one of withheld labels."""
    table = CASES["columns"].write(tmp_path / "my.csv")
    (tmp_path / "test.csv").write_text("text,card,money,app\n" + "".join(f"a text {n},0,0,0\n" for n in range(12)))
    config = make_config(
        model_folder, table, tmp_path / "out", test_data=str(tmp_path / "test.csv"), folds=0, num_train_epochs=1.0
    )
    out = train(config)
    assert read_json(out / "metrics.json")["test"]["rows"] == 12
    assert not (out / "unlabelled_test.csv").exists()


@pytest.mark.parametrize(
    ("rows", "options", "line"),
    [
        ("a,b,1\na,,0\n", {"text_column": "s", "text_pair_column": "t"}, "line 13: column 't' is empty; expected two"),
        ("a,b,x\n", {"task": "regression"}, "line 12: expected a finite number in column 'y'. Got 'x' instead"),
        ("a,b,2\n", {"label_column": "y,z"}, "line 12: column 'y' holds '2'; expected 0 or 1"),
        ("a,b,nan\n", {"task": "regression"}, "line 12: expected a"),
    ],
    ids=["half a pair", "no number", "no mark", "not a number"],
)
def test_cells_that_do_not_fit(
    model_folder: Path,
    tmp_path: Path,
    rows: str,
    options: dict[str, str],
    line: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    good = "".join(f"text {n},other {n},{n % 2}\n" for n in range(10))
    extra = ",z" if "z" in options.get("label_column", "") else ""
    body = "".join(f"{row}{',0' if extra else ''}\n" for row in (good + rows).splitlines())
    (tmp_path / "my.csv").write_text(f"s,t,y{extra}\n{body}")
    words = ["--data", str(tmp_path / "my.csv"), "--model", str(model_folder), "--output-dir", str(tmp_path / "out")]
    options = {"text_column": "s", "label_column": "y", **options}
    words += [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    assert main(["train", *words]) == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "labelled"), [("--task multi", 60), ("--drop-unlabelled", 24), ("--predict-unlabelled", 24)]
)
def test_mostly_empty_lists_are_asked_about(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, labelled: int
) -> None:
    """An empty cell may mean that no label applies, or that the row has not been labelled yet."""
    cells = [",".join(make_labels(n % 7 + 1)) if n % 5 < 2 else "" for n in range(60)]
    lines = [f'{words_of(n, [])} {n},"{cell}"' for n, cell in enumerate(cells)]
    (tmp_path / "my.csv").write_text("text,labels\n" + "\n".join(lines) + "\n")
    start = ["train", "--data", str(tmp_path / "my.csv"), "--model", str(model_folder), "--epochs", "1", "--cpu"]
    start += ["--output-dir", str(tmp_path / "out")]
    assert main(start) == 2
    assert "column 'labels' is empty in 36 of 60 rows" in capsys.readouterr().err
    assert main([*start, *words.split()]) == 0
    split = re.search(r"split: train (\d+), validation (\d+), test (\d+)", capsys.readouterr().out)
    assert split is not None
    assert sum(map(int, split.groups())) == labelled
    assert (tmp_path / "out" / "unlabelled.csv").exists() == (words == "--predict-unlabelled")


def test_thresholds_can_be_set(run: tuple[Case, Path, Path], tmp_path: Path, capsys: Any) -> None:
    """For one label, in prediction and evaluation; metrics.json has those of the run."""
    _, table, out = run
    label = json.loads((out / "config.json").read_text())["id2label"]["0"]
    words = ["--model", str(out), "--data", str(table), "--cpu", "--threshold"]
    if "thresholds" not in json.loads((out / "classify.json").read_text()):
        assert main(["predict", *words, f"{label}=0.4", "--out", str(tmp_path / "p.csv")]) == 2
        assert "--threshold: the model predicts no sets of labels" in capsys.readouterr().err
        return
    scores = json.loads((out / "metrics.json").read_text())["eval"]["per_class"]
    stored = json.loads((out / "classify.json").read_text())["thresholds"]
    assert {name: values["threshold"] for name, values in scores.items()} == stored
    for threshold, given in (("0", 1.0), ("1", 0.0)):
        out_file, folder = tmp_path / f"{threshold}.csv", tmp_path / threshold
        assert main(["predict", *words, f"{label}={threshold}", "--out", str(out_file)]) == 0
        cells = [row["predicted_labels"] for row in parse_rows(out_file)]
        assert {label in cell.split("|") for cell in cells} == {bool(given)}
        assert main(["evaluate", *words, f"{label}={threshold}", "--output-dir", str(folder)]) == 0
        evaluated = json.loads((folder / "metrics.json").read_text())["test"]["per_class"][label]
        assert (evaluated["recall"], evaluated["threshold"]) == (given, float(threshold))
    for wrong, part in ((f"{label}", "expected a label and its threshold"), ("nope=0.5", "no such label")):
        assert main(["predict", *words, wrong, "--out", str(tmp_path / "p.csv")]) == 2
        assert part in capsys.readouterr().err


def test_labels_of_a_test_table_that_training_has_not(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a list of labels, too: the line, and the labels there are."""
    case = CASES["lists"]
    case.write(tmp_path / "my.csv")
    (tmp_path / "test.csv").write_text('text,labels\na text,card\nanother,"app,flight"\n')
    words = [
        "--data",
        str(tmp_path / "my.csv"),
        "--test-data",
        str(tmp_path / "test.csv"),
        "--model",
        str(model_folder),
    ]
    assert main(["train", *words, "--output-dir", str(tmp_path / "out")]) == 2
    assert "test.csv line 3: the label 'flight' is in no row of --data" in capsys.readouterr().err


def test_ids_are_named(model_folder: Path, tmp_path: Path) -> None:
    """As GoEmotions has them: numbers in the table; the flag may be given several times."""
    case = CASES["lists"]
    index = {"card": "0", "money": "1", "app": "2"}
    rows = [(case.row(n)[0], ",".join(index[label] for label in case.row(n)[1].split(",") if label)) for n in range(60)]
    (tmp_path / "my.csv").write_text("text,labels\n" + "".join(f'{text},"{labels}"\n' for text, labels in rows))
    config = make_config(
        model_folder, tmp_path / "my.csv", tmp_path / "out", folds=0, label_names="0=card,1=money,2=app"
    )
    out = train(config)
    assert set(json.loads((out / "config.json").read_text())["label2id"]) == {"card", "money", "app"}


def write_rows(path: Path, classes: list[str], count: int = 60) -> Path:
    rows = [f"{words_of(n, [CLASSES[n % len(classes)]])},{classes[n % len(classes)]}" for n in range(count)]
    path.write_text("text,label\n" + "\n".join(rows) + "\n")
    return path


def test_a_run_goes_on_from_another_with_its_head(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Labels are matched by name, whatever their order: the start scores as the earlier run did."""
    table = write_rows(tmp_path / "my.csv", ["b", "c", "a"])
    first = train(make_config(model_folder, table, tmp_path / "first", folds=0, num_train_epochs=6.0, calibrate="none"))
    named = tmp_path / "named.csv"
    named.write_text(table.read_text().replace(",b\n", ",z\n"))
    renamed = {"label_names": "z=b"}
    capsys.readouterr()
    again = train(
        make_config(first, named, tmp_path / "again", folds=0, learning_rate=1e-9, calibrate="none", **renamed)
    )
    output = capsys.readouterr().out
    assert "head: kept (" in output
    assert "head: kept, validation accuracy" in output
    for one, other in zip(parse_rows(first / "predictions.csv"), parse_rows(again / "predictions.csv"), strict=True):
        assert one["predicted_label"] == other["predicted_label"]
        for label in "abc":
            assert float(one[f"prob_{label}"]) == pytest.approx(float(other[f"prob_{label}"]), abs=1e-5)


def test_a_regression_goes_on_with_its_head(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the units of the earlier scores, whatever mean and deviation those of the new table have."""
    table = CASES["scores"].write(tmp_path / "my.csv", 60)
    options = {"folds": 0, "task": "regression"}
    first = train(make_config(model_folder, table, tmp_path / "first", num_train_epochs=4.0, **options))
    header, *rows = (line.rsplit(",", 1) for line in table.read_text().splitlines())
    other = tmp_path / "other.csv"
    other.write_text("\n".join([",".join(header), *(f"{text},{3 * float(score) + 100:.2f}" for text, score in rows)]))
    capsys.readouterr()
    again = train(make_config(first, other, tmp_path / "again", learning_rate=1e-9, num_train_epochs=1.0, **options))
    assert "head: kept (" in capsys.readouterr().out
    before, after = (
        {row["text"]: float(row["predicted_score"]) for row in parse_rows(folder / "predictions.csv")}
        for folder in (first, again)
    )
    shared = before.keys() & after.keys()
    assert len(shared) > 1
    assert [after[text] for text in shared] == pytest.approx([before[text] for text in shared], rel=1e-4)


@pytest.mark.parametrize(
    ("classes", "line"),
    [
        (["a", "b"], "head: kept ({} was trained on all of these 2 labels; dropped, without a row here: 'c'; --head)"),
        (
            ["a", "b", "c", "d"],
            "head: replaced by a new logistic regression ({} was trained on 3 of these 4 labels; --head)",
        ),
    ],
    ids=["fewer", "more"],
)
def test_fewer_and_more_labels_than_an_earlier_run(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], classes: list[str], line: str
) -> None:
    table = write_rows(tmp_path / "my.csv", ["a", "b", "c"])
    first = train(make_config(model_folder, table, tmp_path / "first", folds=0, num_train_epochs=1.0, keep_features=0))
    other = tmp_path / "other.csv"
    cases = [f"{words_of(n, [CLASSES[n % len(classes) % 3]])} {n},{classes[n % len(classes)]}" for n in range(60)]
    other.write_text("text,label\n" + "\n".join(cases) + "\n")
    out = train(make_config(first, other, tmp_path / "out", folds=0, num_train_epochs=1.0))
    assert line.format(first) in capsys.readouterr().out
    assert list(read_json(out / "config.json")["label2id"]) == classes


def test_a_head_that_cannot_be_kept(model_folder: Path, tmp_path: Path) -> None:
    table = write_rows(tmp_path / "my.csv", ["a", "b", "c"])
    with pytest.raises(
        InputError, match=r"--head keep: --model .* has no head to keep for this task; give --head probe"
    ):
        train(make_config(model_folder, table, tmp_path / "out", head="keep"))
    first = train(make_config(model_folder, table, tmp_path / "first", folds=0, num_train_epochs=1.0))
    others = tmp_path / "others.csv"
    others.write_text(re.sub(r",([abc])\n", r",\1\1\n", table.read_text()))
    with pytest.raises(
        InputError, match=r"--head keep: --model .* was not trained on 'aa', 'bb', 'cc'; give --head probe"
    ):
        train(make_config(first, others, tmp_path / "out", head="keep"))


@pytest.mark.parametrize(
    ("case", "words", "task"),
    [
        ("pair", "", "single_label"),
        ("joined", "--text_column_names title,body --text_column_delimiter |", "single_label"),
        ("columns", "--label_column_name card,money,app --metric_name f1", "multi_label"),
        ("lists", "--text_column_name text --label_column_name labels --metric_name f1", "multi_label"),
        ("scores", "--do_regression --metric_name mse", "regression"),
    ],
)
def test_the_scripts_own_commands(model_folder: Path, tmp_path: Path, case: str, words: str, task: str) -> None:
    """As in the READMEs of run_glue.py and run_classification.py, on files."""
    table = CASES[case].write(tmp_path / "train.csv")
    CASES[case].write(tmp_path / "dev.csv", 20)
    command = (
        f"--model_name_or_path {model_folder} --train_file {table} --validation_file {tmp_path / 'dev.csv'} --do_train "
        "--do_eval --max_seq_length 64 --per_device_train_batch_size 32 --learning_rate 2e-5 --num_train_epochs 1 "
        f"--overwrite_output_dir --output_dir {tmp_path / 'out'} --use_cpu {words}"
    )
    assert main(["train", *command.split()]) == 0
    assert read_json(tmp_path / "out" / "metrics.json")["task"] == task
    assert read_json(tmp_path / "out" / "metrics.json")["eval"]["rows"] == 20


def test_thresholds_of_a_fold_come_from_the_others(model_folder: Path, tmp_path: Path) -> None:
    """So no row is scored by a threshold that it has chosen, as none of the baseline is."""
    case = CASES["lists"]
    table = case.write(tmp_path / "my.csv", 90)
    out = train(make_config(model_folder, table, tmp_path / "out", folds=3, num_train_epochs=0.0, **case.options))
    rows, scores = ScoredRows.read(out), read_json(out / "metrics.json")["test"]
    folds = np.array([int(row["fold"]) for row in parse_rows(out / "predictions.csv")])
    probabilities, expected = sigmoid(rows.logits), np.zeros(rows.targets.shape, dtype=np.uint8)
    for fold in (1, 2, 3):
        others = folds != fold
        for label in range(rows.targets.shape[1]):
            (threshold,) = choose_thresholds(probabilities[others][:, [label]], rows.targets[others][:, [label]])
            expected[~others, label] = probabilities[~others, label] >= threshold
    assert scores["micro_f1"] == pytest.approx(f1_score(rows.targets, expected, average="micro", zero_division=0.0))
    assert scores["thresholds"] == "other folds"
    labels = sorted(scores["per_class"])
    written = [
        [label in row["predicted_labels"].split("|") for label in labels] for row in parse_rows(out / "predictions.csv")
    ]
    assert np.array_equal(written, expected)
    assert np.array_equal(rows.predicted, expected), "for the report and for comparisons"


def test_thresholds_chosen_on_the_scored_rows_are_noted(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES["lists"]
    table, validation = case.write(tmp_path / "my.csv"), case.write(tmp_path / "dev.csv", 40)
    words = ["train", "--data", str(table), "--eval-data", str(validation), "--model", str(model_folder), "--cpu"]
    assert main([*words, "--preset", "fast", "--output-dir", str(tmp_path / "out")]) == 0
    assert "the thresholds were chosen on the validation rows that are scored" in capsys.readouterr().out
    metrics = read_json(tmp_path / "out" / "metrics.json")
    assert (metrics["test"], metrics["eval"]["thresholds"]) == (None, "scored rows")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "40 validation rows, on which the thresholds were chosen, too" in page
