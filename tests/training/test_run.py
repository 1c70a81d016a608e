"""A whole run on a tiny model: the files of the contract, and what can be done with them."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
import transformers
from safetensors.torch import load_file

import classify
from classify.errors import ClassifyError, InputError
from classify.launch.launch import Launch
from classify.modeling.find import resolve_model
from classify.modeling.load import load_pretrained
from classify.prediction.inputs import check_out
from classify.prediction.pytorch import load_trained
from classify.training import checkpoint, linear_probe
from classify.training.output_dir import plan_output_dir
from classify.training.run import train
from tests.support import tiny
from tests.support.runs import EPOCHS, FILES, make_config, read_json, worse_in_the_end


@pytest.fixture(scope="module")
def finished(model_folder: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(make_config(model_folder, table, tmp_path_factory.mktemp("runs") / "one"))


def log_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "train_log.jsonl").read_text().splitlines()]


def evaluations(folder: Path) -> list[dict[str, Any]]:
    """The scores of each epoch."""
    return [line["eval"] for line in log_of(folder) if "eval" in line]


def test_the_folder_holds_what_the_contract_says(finished: Path) -> None:
    assert {path.name for path in finished.iterdir()} == FILES
    for folder in (finished / "checkpoints").iterdir():
        assert {path.name for path in folder.iterdir()} == {
            "model.safetensors",
            "optimizer.safetensors",
            "state.json",
            "manifest.json",
        }
        assert folder.name.startswith("step-000000")
    assert list((finished / "tensorboard").iterdir())


def test_metrics_are_whole_and_unrounded(finished: Path) -> None:
    result = read_json(finished / "metrics.json")
    assert set(result["train"]) == {
        "seconds", "rows_per_second", "tokens_per_second", "steps", "collapsed_epoch", "epochs",
        "loss",
    }  # fmt: skip
    assert result["train"]["steps"] == 6
    assert result["train"]["epochs"] == 2
    assert result["train"]["rows_per_second"] == pytest.approx(192 / result["train"]["seconds"])
    for part, rows in (("eval", 12), ("test", 12)):
        assert set(result[part]) >= {"accuracy", "macro_f1", "loss", "rows", "per_class"}
        assert result[part]["rows"] == rows
        assert set(result[part]["per_class"]) == {"app", "card", "money"}
        assert set(result[part]["per_class"]["app"]) == {"precision", "recall", "f1", "support"}
        low, high = result[part]["accuracy_interval"]
        assert low <= result[part]["accuracy"] <= high
    assert set(result["baseline"]) >= {"name", "accuracy", "macro_f1", "seconds"}
    assert result["baseline"]["name"] == "tfidf-logreg"
    assert result["majority"] == {"label": "app", "accuracy": pytest.approx(1 / 3), "macro_f1": pytest.approx(1 / 6)}
    assert set(result["probe"]) == {"accuracy", "macro_f1", "seconds"}
    assert result["wall_seconds"] > result["start_seconds"] + result["train"]["seconds"]


def test_run_json_tells_how_it_came_about(finished: Path, table: Path) -> None:
    result = read_json(finished / "run.json")
    assert result["status"] == "finished"
    assert set(result) >= {
        "command", "config", "guesses", "versions", "data", "seed", "topology", "strategy", "launcher", "precision",
    }  # fmt: skip
    assert result["data"]["path"] == str(table)
    assert (result["data"]["rows"], result["data"]["columns"]) == (120, ["text", "label"])
    assert len(result["data"]["sha256"]) == 64
    assert result["topology"] == [{"machine": 0, "rank": 0, "local_rank": -1, "device": "cpu", "rows_per_step": 32}]
    assert (result["strategy"], result["launcher"], result["precision"], result["seed"]) == ("none", "none", "fp32", 42)
    assert (result["parallel_mode"], result["n_gpu"]) == ("not_parallel", 0), "as in TrainingArguments"
    for guess in result["guesses"]:
        assert set(guess) == {"what", "value", "why", "flag"}
        assert guess["why"]
        assert guess["flag"].startswith("--")
    assert result["versions"]["torch"]


def test_the_log_has_exact_losses(finished: Path) -> None:
    lines = log_of(finished)
    steps = [line for line in lines if "loss" in line]
    assert [line["step"] for line in steps] == [3, 5, 6]
    assert [line["step"] for line in lines if "eval" in line] == [3, 6]
    assert all(math.isfinite(line["loss"]) and line["grad_norm"] > 0 for line in steps)


def test_predictions_repeat_the_table_in_its_order(finished: Path, table: Path) -> None:
    with (finished / "predictions.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["text", "label", "predicted_label", "confidence", "prob_app", "prob_card", "prob_money"]
    with table.open(newline="", encoding="utf-8") as file:
        order = {row["text"]: number for number, row in enumerate(csv.DictReader(file))}
    places = [order[row["text"]] for row in rows]
    assert places == sorted(places)
    assert len(rows) == 12
    right = sum(row["predicted_label"] == row["label"] for row in rows)
    assert right / 12 == read_json(finished / "metrics.json")["test"]["accuracy"]
    for row in rows:
        chances = {name: float(row[f"prob_{name}"]) for name in ("app", "card", "money")}
        assert sum(chances.values()) == pytest.approx(1, abs=1e-6)
        assert row["predicted_label"] == max(chances, key=lambda name: chances[name])
        assert float(row["confidence"]) == max(chances.values())


def test_transformers_loads_the_folder_with_the_same_probabilities(finished: Path) -> None:
    from transformers import AutoModelForSequenceClassification, pipeline

    model = AutoModelForSequenceClassification.from_pretrained(finished)
    assert type(model).__name__ == "BertForSequenceClassification"
    assert model.config.id2label == {0: "app", 1: "card", 2: "money"}
    classify = pipeline("text-classification", model=str(finished), top_k=None, device="cpu")
    with (finished / "predictions.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row, scores in zip(rows, classify([row["text"] for row in rows]), strict=True):
        for score in scores:
            assert score["score"] == pytest.approx(float(row[f"prob_{score['label']}"]), abs=1e-5)


@pytest.mark.parametrize(
    ("file", "content", "part"),
    [
        ("model.safetensors", b"\x00\x01", "model.safetensors is not a safetensors file, or is truncated; copy"),
        ("classify.json", b"{}", "must be of format 1. Got one without 'max_length' instead"),
        (
            "classify.json",
            b'{"format": 2, "task": "single_label", "text_column": "a", "max_length": 9}',
            "Got format 2",
        ),
        (
            "classify.json",
            b'{"format": 1, "task": "single_label", "text_column": "a", "max_length": 9}',
            "classify.json has no 'label_spelling'; restore the file",
        ),
    ],
)
def test_a_damaged_result_folder_is_told_in_a_line(
    finished: Path, table: Path, tmp_path: Path, command: Callable[..., Any], file: str, content: bytes, part: str
) -> None:
    folder = shutil.copytree(finished, tmp_path / "copied", ignore=shutil.ignore_patterns("checkpoints"))
    (folder / file).write_bytes(content)
    done = command("classify", "predict", "--model", "copied", "--data", str(table), "--cpu")
    assert done.returncode == 2
    assert part in done.stderr
    assert done.stderr.count("\n") == 1


def test_predict_gives_every_row_its_line(finished: Path, tmp_path: Path, command: Callable[..., Any]) -> None:
    rows = [('quoted, "text"\nwith lines', "1"), ("", "2"), ("carriage\rreturn", "3")]
    rows += [(text, str(number)) for number, (text, _) in enumerate(tiny.table_rows(25))]
    with (tmp_path / "new.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("text", "id"), *rows])
    done = command("classify", "predict", "--model", str(finished), "--data", "new.csv", "--out", "p.csv", "--cpu")
    assert done.returncode == 0, done.stderr
    first, second, *_ = done.stdout.splitlines()
    assert first.startswith("table: new.csv, 28 rows, texts in 'text'")
    assert second.startswith("p.csv: 28 rows")
    assert "note: new.csv line 4: the text is empty\n" in done.stdout
    with (tmp_path / "p.csv").open(newline="", encoding="utf-8") as file:
        result = list(csv.DictReader(file))
    assert [(row["text"], row["id"]) for row in result] == rows
    again = command("classify", "predict", "--model", str(finished), "--data", "p.csv", "--out", "q.csv")
    assert again.returncode == 0, again.stderr
    assert (
        "note: p.csv: in the predictions, column 'predicted_label' is named 'predicted_label_input', " in again.stdout
    )
    with (tmp_path / "q.csv").open(newline="", encoding="utf-8") as file:
        twice = list(csv.DictReader(file))
    assert [row["predicted_label_input"] for row in twice] == [row["predicted_label"] for row in result]
    assert [row["predicted_label"] for row in twice] == [row["predicted_label"] for row in result]


def test_an_unwritable_folder_is_told_before_the_work(
    finished: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sys.platform == "linux":  # nothing can be made in /proc, whoever asks
        with pytest.raises(InputError, match=r"--out /proc/p.csv: the folder /proc is not writable \(No such file"):
            check_out("/proc/p.csv", [str(table)], 1, 1, overwrite=False)
    monkeypatch.setattr("os.access", lambda *_: False)
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match=r"--output-dir .*out: not writable"):
        plan_output_dir(make_config(finished, table, tmp_path / "out"), Launch())


@pytest.mark.parametrize(
    ("texts", "line"),
    [
        ("my card", "texts must be a list of strings. Got the string 'my card' instead."),
        (["my card", None], "texts must be a list of strings. Got None at index 1 instead."),
        (pandas.DataFrame({"text": ["my card"]}), "texts must be a list of strings. Got a DataFrame instead."),
    ],
)
def test_what_is_no_text_is_told_in_a_line(finished: Path, texts: Any, line: str) -> None:
    with (
        classify.load_classifier(str(finished), use_cpu=True) as classifier,
        pytest.raises(TypeError, match=f"^{re.escape(line)}$"),
    ):
        classifier.probabilities(texts)


def test_texts_come_in_any_sequence(finished: Path) -> None:
    with classify.load_classifier(str(finished), use_cpu=True) as classifier:
        of_list = classifier.probabilities(["my card", "the app"])
        for texts in (("my card", "the app"), np.array(["my card", "the app"]), pandas.Series(["my card", "the app"])):
            np.testing.assert_array_equal(classifier.probabilities(texts), of_list)
        assert classifier.probabilities(np.array([], dtype=str)).shape == (0, 3)


def test_a_random_head_is_not_that_of_the_folder(finished: Path) -> None:
    trained = load_trained(finished, pad_token_id=0).model
    old = trained.classifier.weight
    names = ["one", "two", "three"]
    new, same = (
        load_pretrained(resolve_model(str(finished)), names, seed=3, pad_token_id=0).model.classifier.weight
        for _ in range(2)
    )
    assert not torch.equal(new, old)
    assert torch.equal(new, same)
    assert float(new.detach().std()) == pytest.approx(trained.config.initializer_range, rel=0.3)


def test_what_is_for_the_command_line_is_refused(model_folder: Path, table: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nproc is for the command line"):
        train(make_config(model_folder, table, tmp_path / "out", nproc=2))
    assert not (tmp_path / "out").exists()


def test_the_same_command_gives_the_same_bits(finished: Path, model_folder: Path, table: Path, tmp_path: Path) -> None:
    again = train(make_config(model_folder, table, tmp_path / "again"))
    for name in ("model.safetensors", "predictions.csv"):
        assert (again / name).read_bytes() == (finished / name).read_bytes()


def test_free_folders_are_numbered(
    model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "my-7").mkdir(parents=True)
    config = make_config(model_folder, table, Path("x"), num_train_epochs=1.0)
    config = config.replace(output_dir=None)
    assert train(config) == Path("runs/my-8")


def test_a_folder_in_use_is_refused_and_overwritten_on_demand(model_folder: Path, table: Path, tmp_path: Path) -> None:
    first = train(make_config(model_folder, table, tmp_path / "out", max_steps=2))
    (first / "checkpoints" / "stray").mkdir()
    with pytest.raises(InputError, match="not empty"):
        train(make_config(model_folder, table, tmp_path / "out", max_steps=2))
    train(make_config(model_folder, table, tmp_path / "out", max_steps=2, overwrite_output_dir=True))
    assert not (first / "checkpoints" / "stray").exists()


def test_only_evaluation_data_means_no_test(model_folder: Path, table: Path, tmp_path: Path) -> None:
    held_out = tiny.write_table(tmp_path / "held.csv", tiny.table_rows(17, seed=5))
    out = train(make_config(model_folder, table, tmp_path / "out", eval_data=str(held_out), num_train_epochs=1.0))
    result = read_json(out / "metrics.json")
    assert result["test"] is None
    assert result["eval"]["rows"] == 17
    assert len((out / "predictions.csv").read_text().splitlines()) == 18


@pytest.mark.parametrize("metric", ["macro_f1", "accuracy", "loss"])
def test_the_best_epoch_is_kept(
    model_folder: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], metric: str
) -> None:
    """Not the last epoch must be kept, but the best by the metric; of equal ones that of the lowest loss."""
    settings = {**worse_in_the_end(tmp_path), "metric_for_best_model": metric, "seed": 3, "precision": "fp32"}
    settings |= {"calibrate": "none"}
    out = train(make_config(model_folder, table, tmp_path / "out", **settings))
    losses = [scores["loss"] for scores in evaluations(out)]
    values = [scores[metric] for scores in evaluations(out)]
    scores = [(-value if metric == "loss" else value, -loss) for value, loss in zip(values, losses, strict=True)]
    best = scores.index(max(scores))
    assert best < EPOCHS - 1, "the test needs a run that gets worse"
    assert best == {"macro_f1": 4, "accuracy": 5, "loss": 6}[metric], "the test needs a run whose metrics disagree"
    result = read_json(out / "metrics.json")
    assert result["best_epoch"] == best + 1
    assert result["eval"][metric] == pytest.approx(values[best], rel=1e-5)
    assert result["eval"]["loss"] == pytest.approx(losses[best], rel=1e-5)
    assert f"keep: weights of epoch {best + 1} (best on the validation split; --keep)" in capsys.readouterr().out


def test_patience_ends_a_run_that_gets_no_better(
    model_folder: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends one epoch after the best, whose weights are kept, as a whole run had scored them; and it stays ended."""
    settings = {**worse_in_the_end(tmp_path), "keep": "auto"}
    whole = train(make_config(model_folder, table, tmp_path / "whole", **{**settings, "keep": "last"}))
    out = train(make_config(model_folder, table, tmp_path / "out", **settings, patience=1))
    ended = len(evaluations(out))
    assert evaluations(out) == evaluations(whole)[:ended]
    assert ended < EPOCHS, "the test needs a run that gets worse"
    result = read_json(out / "metrics.json")
    assert (result["train"]["epochs"], result["best_epoch"]) == (ended, ended - 1)
    assert f"stopped: no better macro F1 since epoch {ended - 1} (--patience)" in capsys.readouterr().out
    before = (out / "model.safetensors").read_bytes()
    train(make_config(model_folder, table, out, **settings, patience=1, resume_from_checkpoint=True))
    assert "A longer --patience would extend it" in capsys.readouterr().out
    assert (out / "model.safetensors").read_bytes() == before
    train(make_config(model_folder, table, out, **settings, patience=EPOCHS, resume_from_checkpoint=True))
    assert read_json(out / "metrics.json")["train"]["epochs"] == EPOCHS


def test_a_better_epoch_that_may_be_chance_is_not_kept(
    model_folder: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same run: on 30 evaluation rows 0.46 and 0.34 are not two standard errors apart."""
    out = train(make_config(model_folder, table, tmp_path / "out", **{**worse_in_the_end(tmp_path), "keep": "auto"}))
    result = read_json(out / "metrics.json")
    assert result["best_epoch"] == EPOCHS
    scores = [one["macro_f1"] for one in evaluations(out)]
    assert result["eval"]["macro_f1"] == pytest.approx(scores[-1])
    line = f"macro F1 {scores[-1]:.3f} on 30 validation rows; epoch {scores.index(max(scores)) + 1} had"
    assert f"keep: last weights ({line} {max(scores):.3f}, which may be chance; --keep)" in capsys.readouterr().out


@pytest.mark.parametrize("falls", [True, False], ids=["loss falls", "loss rises"])
def test_among_epochs_of_one_macro_f1_the_lowest_loss_is_the_best(
    model_folder: Path, table: Path, tmp_path: Path, falls: bool
) -> None:
    """On the rows that are learned the loss falls from epoch to epoch, with labels of other classes it rises."""
    rows = tiny.table_rows(120) if falls else tiny.crossed_rows(120)
    changes = {"eval_data": str(tiny.write_table(tmp_path / "eval.csv", rows)), "num_train_epochs": 3.0}
    changes |= {"learning_rate": 1e-6, "lr_scheduler_type": "constant", "dropout": 0.0, "keep": "best"}
    out = train(make_config(model_folder, table, tmp_path / "out", **changes))
    result = read_json(out / "metrics.json")
    scores = evaluations(out)
    losses = [score["loss"] for score in scores]
    assert {score["accuracy"] for score in scores} == {result["probe"]["accuracy"]}, "the test needs equal predictions"
    assert len(set(losses)) == 3
    assert losses == sorted(losses, reverse=falls)
    assert result["best_epoch"] == (3 if falls else 0)


def harmful(folder: Path) -> dict[str, Any]:
    """Settings of a run whose start is better than each of its epochs: steps so long that they undo the model."""
    rows = tiny.write_table(folder / "rows.csv", tiny.table_rows(120))
    return {"eval_data": str(rows), "dropout": 0.0, "learning_rate": 0.2, "lr_scheduler_type": "constant"}


@pytest.mark.parametrize(("limit", "resumed"), [(1, False), (2, True)])
def test_the_start_is_kept_where_no_epoch_beats_it(
    model_folder: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], limit: int, resumed: bool
) -> None:
    changes = {**harmful(tmp_path), "save_total_limit": limit, "calibrate": "none"}
    if resumed:
        train(make_config(model_folder, table, tmp_path / "out", **{**changes, "num_train_epochs": 1.0}))
        changes |= {"resume_from_checkpoint": True}
    out = train(make_config(model_folder, table, tmp_path / "out", **changes))
    result = read_json(out / "metrics.json")
    scores = [one["accuracy"] for one in evaluations(out)]
    assert len(scores) == 2
    assert max(scores) < result["probe"]["accuracy"], "the test needs a run that does harm"
    assert result["best_epoch"] == 0
    assert result["eval"]["accuracy"] == result["probe"]["accuracy"]
    assert result["train"]["epochs"] == 2
    assert "fine-tuning did not beat the logistic regression it started from" in capsys.readouterr().out
    kept = {path.name for path in (out / "checkpoints").iterdir()}
    assert kept == {"step-00000000", "step-00000008"}
    start = checkpoint.load(out / "checkpoints" / "step-00000000").model_tensors()
    assert torch.equal(load_file(out / "model.safetensors")["classifier.weight"], start["classifier.weight"])


def test_a_random_start_is_no_candidate(model_folder: Path, table: Path, tmp_path: Path) -> None:
    out = train(make_config(model_folder, table, tmp_path / "out", **harmful(tmp_path), head="random"))
    assert read_json(out / "metrics.json")["best_epoch"] > 0
    assert not (out / "checkpoints" / "step-00000000").exists()


def test_the_probe_looks_at_some_rows_of_each_class(
    model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(linear_probe, "FEWEST_ROWS", 10)
    monkeypatch.setattr(linear_probe, "ROWS_PER_CLASS", 7)
    train(make_config(model_folder, table, tmp_path / "some", max_steps=1))
    assert "logistic regression fitted on the features of 21 rows" in capsys.readouterr().out


def test_random_head_has_no_probe(model_folder: Path, table: Path, tmp_path: Path) -> None:
    out = train(make_config(model_folder, table, tmp_path / "out", head="random", max_steps=1, report_to="none"))
    assert read_json(out / "metrics.json")["probe"] is None
    assert not (out / "tensorboard").exists()


@pytest.mark.parametrize("pairs", [0, 5])
def test_a_diverging_run_says_so(model_folder: Path, table: Path, tmp_path: Path, pairs: int) -> None:
    steps = {"learning_rate": 1e30, "max_grad_norm": 0.0, "contrastive_steps": pairs}
    config = make_config(model_folder, table, tmp_path / "out", **steps)
    with pytest.raises(ClassifyError, match=r"diverged\. .*ower --learning-rate"):
        train(config)
    assert read_json(tmp_path / "out" / "run.json")["status"] == "failed"


def test_weights_that_are_not_finite_are_not_saved(model_folder: Path, table: Path, tmp_path: Path) -> None:
    """The loss of a step is that of the weights before it, so it does not show what the step did to them."""
    changes = {"learning_rate": 1e39, "save_steps": 1, "warmup_steps": 0, "contrastive_steps": 0}
    with pytest.raises(ClassifyError, match=r"step 1: some weights are not finite at .* lower --learning-rate"):
        train(make_config(model_folder, table, tmp_path / "out", **changes))
    assert [path.name for path in (tmp_path / "out" / "checkpoints").iterdir()] == ["step-00000000"]


def test_texts_without_words_have_no_baseline(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("!" * (1 + i % 7), "ab"[i % 2]) for i in range(40)]
    table = tiny.write_table(tmp_path / "marks.csv", [("?", "a"), *rows])
    out = train(make_config(model_folder, table, tmp_path / "out", max_steps=1, text_column="text"))
    assert read_json(out / "metrics.json")["baseline"] is None
    assert "note: the TF-IDF baseline cannot be fitted" in capsys.readouterr().out


def test_a_long_text_model_reads_512_tokens_unless_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(" ".join([text] * 80), label) for text, label in tiny.table_rows(30)]
    data = tiny.write_table(tmp_path / "long.csv", rows)
    model = tiny.make_model(tmp_path / "model", max_position_embeddings=2000)
    for wanted, length in ((None, 512), (600, 600)):
        config = make_config(model, data, tmp_path / str(length), max_steps=1, max_length=wanted)
        assert read_json(train(config) / "run.json")["max_length"] == length
        message = capsys.readouterr().out
        assert f"max length: {length} tokens (" in message
        assert ("512 is the default limit; --max-length" in message) is (wanted is None)


def test_weights_are_saved_in_half_and_scored_as_saved(
    model_folder: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is half as large, a stock model, and its predictions are those in predictions.csv."""
    whole = train(make_config(model_folder, table, tmp_path / "whole", max_steps=2))
    out = train(make_config(model_folder, table, tmp_path / "out", max_steps=2, save_dtype="bfloat16"))
    assert "saved weights: bfloat16 (" in capsys.readouterr().out
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (whole, out)]
    assert sizes[1] < 0.6 * sizes[0]
    assert {str(tensor.dtype) for tensor in load_file(out / "model.safetensors").values()} == {"torch.bfloat16"}
    with (out / "predictions.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with classify.load_classifier(str(out), use_cpu=True) as classifier:
        again = classifier.probabilities([row["text"] for row in rows])
        expected = [[float(row[f"prob_{label}"]) for label in classifier.labels] for row in rows]
    assert again.tolist() == [pytest.approx(row, abs=1e-5) for row in expected]
    stock = transformers.AutoModelForSequenceClassification.from_pretrained(out)
    assert stock.dtype == torch.float32


def test_an_encoder_with_nearly_constant_features_starts_with_a_random_head(
    table: Path, tmp_path: Path, capsys: Any
) -> None:
    """As a tiny random model, for smoke tests: dropout drowns the features of a probe, whose loss would be 200."""
    model = tiny.make_model(tmp_path / "flat", spread=0.02)
    out = train(make_config(model, table, tmp_path / "out"))
    assert "note: the head starts random" in capsys.readouterr().out
    assert max(line["loss"] for line in log_of(out) if "loss" in line) < 1.5
    assert read_json(out / "metrics.json")["probe"] is None
