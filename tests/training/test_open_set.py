"""--out-of-scope-label from the table to the predictions: such rows are not trained on, but scored and rejected."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import classify
from classify import load_classifier
from classify.cli import main
from classify.errors import InputError
from classify.files import read_json
from classify.serving.app import describe
from classify.tables.read import read_table
from classify.training.inputs import check
from classify.training.run import train
from tests.support import tiny
from tests.support.runs import make_config

ODD = ["zzz qqq xxx", "qqq zzz", "xxx xxx qqq vvv", "vvv zzz qqq"]


def write_rows(path: Path, rows: list[tuple[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return path


def odd_rows(count: int, label: str = "OOS") -> list[tuple[str, str]]:
    return [(f"{ODD[number % 4]} {'vvv ' * (number % 5)}{number}", label) for number in range(count)]


@pytest.fixture(scope="module")
def table_with_odd_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("data") / "all.csv", [*tiny.table_rows(120, seed=3), *odd_rows(30)])


@pytest.fixture(scope="module")
def trained(model_folder: Path, table_with_odd_rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "out"
    return train(make_config(model_folder, table_with_odd_rows, out, out_of_scope_label="oos"))


def test_a_run(trained: Path, table_with_odd_rows: Path) -> None:
    config, metrics = read_json(trained / "config.json"), read_json(trained / "metrics.json")
    assert "OOS" not in config["id2label"].values(), "the stock model knows the classes alone"
    predicted, outside = (read_table(str(trained / name)) for name in ("predictions.csv", "out_of_scope.csv"))
    assert "OOS" not in predicted.column("label")
    assert set(outside.column("label")) == {"OOS"}
    assert len(outside) == 15, "the other half fits the score"
    entry = metrics["in_scope"]
    assert entry["out_of_scope_rows"] == 15
    for table, share in ((predicted, 1 - entry["accepted"]), (outside, entry["recall"])):
        in_scope = np.array(table.column("in_scope"), dtype=float)
        is_rejected = np.array(table.column("predicted_label")) == "oos"
        assert is_rejected.mean() == pytest.approx(share)
        np.testing.assert_array_equal(is_rejected, in_scope < entry["threshold"])
    run = read_json(trained / "run.json")
    (decision,) = (guess for guess in run["guesses"] if guess["what"] == "out of scope")
    assert "15 rows to fit the score, 15 to score" in decision["why"]
    assert "rows rejected" in (trained / "report.html").read_text() if (trained / "report.html").exists() else True


def test_prediction_repeats_the_run(trained: Path, table_with_odd_rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "new.csv"
    flags = ["--model", str(trained), "--data", str(trained / "out_of_scope.csv"), "--cpu"]
    assert main(["predict", *flags, "--out", str(out), "--quiet"]) == 0
    before, now = read_table(str(trained / "out_of_scope.csv")), read_table(str(out))
    assert now.column("predicted_label") == before.column("predicted_label")
    np.testing.assert_allclose(
        np.array(now.column("in_scope"), dtype=float), np.array(before.column("in_scope"), dtype=float), atol=1e-5
    )
    assert main(["predict", *flags, "--out", str(out), "--overwrite", "--quiet", "--min-in-scope", "1"]) == 0
    assert set(read_table(str(out)).column("predicted_label")) == {"oos"}
    with load_classifier(str(trained), use_cpu=True) as classifier:
        assert classifier.probabilities(["card"]).shape == (1, len(classifier.labels)), "in scope is apart"


def test_evaluation(trained: Path, table_with_odd_rows: Path, tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "evaluation"
    flags = ["--model", str(trained), "--data", str(table_with_odd_rows), "--cpu", "--output-dir", str(folder)]
    assert main(["evaluate", *flags]) == 0
    entry = read_json(folder / "metrics.json")["in_scope"]
    assert (entry["rows"], entry["out_of_scope_rows"]) == (120, 30)
    assert len(read_table(str(folder / "out_of_scope.csv"))) == 30
    assert "'oos' rows rejected" in capsys.readouterr().out


def test_rows_to_label_are_in_scope(trained: Path, tmp_path: Path, capsys: Any) -> None:
    rows = [*tiny.table_rows(20, seed=9), *((f"{text} anew", label) for text, label in odd_rows(20))]
    data = write_rows(tmp_path / "new.csv", [(text, "") for text, _ in rows])
    flags = ["--model", str(trained), "--data", str(data), "--cpu", "--out"]
    assert main(["predict", *flags, str(tmp_path / "p.csv")]) == 0
    rejected = read_table(str(tmp_path / "p.csv")).column("predicted_label").count("oos")
    assert rejected
    capsys.readouterr()
    assert main(["suggest", *flags, str(tmp_path / "label.csv")]) == 0
    assert f"{rejected} out of scope" in capsys.readouterr().out


def test_the_test_table_is_scored(model_folder: Path, table: Path, tmp_path: Path) -> None:
    """Without such rows to learn from; the label is written in another case."""
    test = write_rows(tmp_path / "test.csv", [*tiny.table_rows(30, seed=5), *odd_rows(10)])
    config = make_config(model_folder, table, tmp_path / "out", test_data=str(test), out_of_scope_label="Oos")
    inputs = check(config)
    assert not inputs.splits.outside
    assert inputs.splits.outside_scored is not None
    assert len(inputs.splits.outside_scored) == 10
    assert read_json(train(config, inputs) / "metrics.json")["in_scope"]["out_of_scope_rows"] == 10


def test_rows_of_the_test_part_alone(model_folder: Path, tmp_path: Path) -> None:
    """None is left to fit on, so classes are left out; another spelling means the same, also where none was trained."""
    path, rows = tmp_path / "split.csv", tiny.table_rows(120, seed=3)
    parts = [(text, label, ("train", "validation", "test")[min(2, number % 4)]) for number, (text, label) in
             enumerate(rows)] + [(text, label, "test") for text, label in odd_rows(20)]  # fmt: skip
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label", "split"), *parts])
    config = make_config(model_folder, path, tmp_path / "out", out_of_scope_label="oos")
    assert check(config).splits.outside == ()
    folder = train(config)
    assert read_json(folder / "metrics.json")["in_scope"]["out_of_scope_rows"] == 20
    plain = write_rows(tmp_path / "plain.csv", rows)
    none = train(make_config(model_folder, plain, tmp_path / "none", out_of_scope_label="oos"))
    data = write_rows(tmp_path / "new.csv", [*rows[:9], *odd_rows(5, "oos"), *odd_rows(9, "Oos")[5:]])
    for trained in (folder, none):
        out = tmp_path / f"{trained.name}-evaluation"
        flags = ["--model", str(trained), "--cpu", "--output-dir", str(out), "--overwrite-output-dir"]
        assert main(["evaluate", *flags, "--data", str(data)]) == 0
        assert read_json(out / "metrics.json")["in_scope"]["out_of_scope_rows"] == 9
        assert (out / "out_of_scope.csv").exists()
        assert main(["evaluate", *flags, "--data", str(plain)]) == 0
        assert not (out / "out_of_scope.csv").exists(), "it was that of another table"


def test_every_way_to_predict_answers_alike(trained: Path, capsys: Any) -> None:
    table = read_table(str(trained / "out_of_scope.csv"))
    texts, expected = table.column("text"), table.column("predicted_label")
    assert "oos" in expected
    run = classify.load(trained, use_cpu=True)
    assert run.predict(texts) == expected
    assert run.predict([]) == []
    capsys.readouterr()
    place = expected.index("oos")
    assert main(["predict", "--model", str(trained), "--text", texts[place], "--cpu"]) == 0
    assert capsys.readouterr().out.startswith("oos (in scope 0.")
    with load_classifier(str(trained), use_cpu=True) as predictor:
        rows = np.column_stack(predictor.predict(texts))  # type: ignore[arg-type]
        answers = describe(predictor, rows, None, 0.0)
    assert [answer.prediction for answer in answers] == expected
    assert [answer.in_scope for answer in answers] == pytest.approx(list(map(float, table.column("in_scope"))))
    assert [answer.confidence for answer in answers] == pytest.approx(list(map(float, table.column("confidence"))))


def test_what_does_not_apply_is_refused(trained: Path, model_folder: Path, table: Path, tmp_path: Path) -> None:
    scores = write_rows(tmp_path / "s.csv", [(text, str(number / 7)) for number, (text, _) in
                                             enumerate(tiny.table_rows(60, seed=3))])  # fmt: skip
    with pytest.raises(InputError, match="--out-of-scope-label works with one label per row"):
        check(make_config(model_folder, scores, tmp_path / "out", task="regression", out_of_scope_label="oos"))
    with pytest.raises(InputError, match="--folds 3 and --out-of-scope-label oos contradict"):
        check(make_config(model_folder, table, tmp_path / "out", folds=3, out_of_scope_label="oos"))
    plain = train(make_config(model_folder, table, tmp_path / "plain"))
    with pytest.raises(InputError, match="trained without --out-of-scope-label"):
        main_errors(["predict", "--model", str(plain), "--data", str(table), "--min-in-scope", "0.5", "--cpu"])


def main_errors(arguments: list[str]) -> None:
    """Run a command whose refusal is raised."""
    from classify.commands.predict import run

    run(arguments[1:], "classify predict")


def test_an_upload_predicts_with_the_file_and_without_file_and_entry(trained: Path, tmp_path: Path) -> None:
    """The two ways of docs/quickstart.md to publish such a model."""
    names = ("model.safetensors", "config.json", "classify.json", "tokenizer.json", "tokenizer_config.json")
    for name in names:
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    with pytest.raises(InputError, match=r"in_scope\.safetensors is missing; 'oos' cannot be recognized without it"):
        load_classifier(str(tmp_path))
    settings = read_json(tmp_path / "classify.json")
    del settings["in_scope"]
    (tmp_path / "classify.json").write_text(json.dumps(settings))
    odd = [text for text, _ in odd_rows(30)]
    assert "oos" not in classify.load(str(tmp_path)).predict(odd)
    (tmp_path / "classify.json").write_bytes((trained / "classify.json").read_bytes())
    (tmp_path / "in_scope.safetensors").write_bytes((trained / "in_scope.safetensors").read_bytes())
    assert "oos" in classify.load(str(tmp_path)).predict(odd)
