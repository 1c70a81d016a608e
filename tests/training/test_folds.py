"""Cross-validation: each row is scored by a model that has not seen it, and the final model is trained on all rows."""

from __future__ import annotations

import csv
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import classify.training.run as run
from classify.cli import main
from classify.errors import InputError, Interrupted
from classify.evaluation.scored_rows import ScoredRows
from classify.tasks.base import FitRows
from classify.tasks.registry import trained_task
from classify.training import folds as folds_module, linear_probe
from classify.training.inputs import check
from tests.support import tiny
from tests.support.runs import make_config, read_json
from tests.support.tasks import CASES

FOLDS = 3


def folded(model: Path, table: Path, out: Path, **changes: Any) -> Any:
    """Settings of a run in three folds, pairs and an epoch each, without calibration."""
    settings = {"folds": FOLDS, "num_train_epochs": 1.0, "contrastive_steps": 2, "calibrate": "none", "dropout": 0.0}
    return make_config(model, table, out, **{**settings, **changes})


def predictions(folder: Path) -> list[dict[str, str]]:
    with (folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def probabilities(rows: list[dict[str, str]]) -> np.ndarray:
    return np.array([[float(value) for name, value in row.items() if name.startswith("prob_")] for row in rows])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_table(tmp_path_factory.mktemp("small") / "my.csv", tiny.table_rows(60))


@pytest.fixture(scope="module")
def whole(model_folder: Path, small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run.train(folded(model_folder, small, tmp_path_factory.mktemp("folds") / "whole"))


def test_every_row_is_predicted_by_a_run_on_the_other_folds(
    whole: Path, model_folder: Path, small: Path, tmp_path: Path
) -> None:
    """A fold is the same as a run on the rows of the other folds alone, to the rounding of fp32."""
    rows = predictions(whole)
    assert [row["fold"] for row in rows if row["fold"] not in {"1", "2", "3"}] == []
    assert len(rows) == 60
    for fold in ("1", "3"):
        others = [(row["text"], row["label"]) for row in rows if row["fold"] != fold]
        held_out = [row for row in rows if row["fold"] == fold]
        train = tiny.write_table(tmp_path / f"train{fold}.csv", others)
        scored = tiny.write_table(tmp_path / f"held{fold}.csv", [(row["text"], row["label"]) for row in held_out])
        alone = folded(model_folder, train, tmp_path / fold, folds=None, eval_data=str(scored), keep="last")
        expected = probabilities(predictions(run.train(alone)))
        np.testing.assert_allclose(probabilities(held_out), expected, atol=2e-5)


@pytest.mark.parametrize("name", ["lists", "one class"])
def test_folds_of_a_probe_share_features_and_penalty(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each row is predicted by a fit on the other folds, with what is chosen on all rows, and computed twice in all."""
    table, computed, real = tmp_path / "my.csv", [], linear_probe.compute_logits
    CASES[name].write(table) if name in CASES else tiny.write_table(table, tiny.table_rows(60))

    def count(classifier: Any, tokens: Any, rows: Any, *rest: Any, **more: Any) -> Any:
        found = real(classifier, tokens, rows, *rest, **more)
        computed.append(found)
        return found

    monkeypatch.setattr(linear_probe, "compute_logits", count)
    plain = {"num_train_epochs": 0.0, "contrastive_steps": 0, "label_texts": "none"}
    out = run.train(folded(model_folder, table, tmp_path / "out", **plain))
    assert [len(features) for features in computed] == [60, 60], "for the folds, and for the final model"
    np.testing.assert_array_equal(*computed)
    rows, scored = predictions(out), ScoredRows.read(out)
    folds = np.array([int(row["fold"]) for row in rows])
    fitter, features = trained_task(str(out)).head, computed[0]
    penalty = fitter.choose_penalty(FitRows(features, scored.targets))
    for fold in (1, 2, 3):
        learned, held_out = folds != fold, folds == fold
        weight, bias = fitter.fit(FitRows(features[learned], scored.targets[learned]), penalty)
        np.testing.assert_allclose(scored.logits[held_out], features[held_out] @ weight.T + bias, atol=2e-3)


@pytest.mark.parametrize("opt_level", [None, "O2"])
def test_the_final_model_is_trained_on_all_rows_from_the_same_start(
    model_folder: Path, small: Path, tmp_path: Path, opt_level: str | None
) -> None:
    """To the last bit, also where the folds before it trained half weights."""
    out = run.train(folded(model_folder, small, tmp_path / "folds", opt_level=opt_level))
    alone = folded(model_folder, small, tmp_path / "alone", opt_level=opt_level, folds=None, eval_data=str(small))
    plain = run.train(alone.replace(keep="last"))
    assert (out / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()


def test_scores_are_of_all_rows(whole: Path) -> None:
    metrics, rows = read_json(whole / "metrics.json"), predictions(whole)
    assert metrics["test"]["method"] == f"{FOLDS}-fold cross-validation"
    assert metrics["test"] == metrics["eval"]
    assert metrics["test"]["rows"] == 60
    right = np.mean([row["label"] == row["predicted_label"] for row in rows])
    assert metrics["test"]["accuracy"] == pytest.approx(right)
    assert metrics["train"]["steps"] == 2
    assert metrics["train"]["epochs"] == 1.0


def test_a_resumed_run_trains_no_finished_fold_again(
    whole: Path, model_folder: Path, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And ends with the same files to the last bit."""
    trained: list[str] = []
    fit = folds_module.stages.fit

    def counted(*arguments: Any, **settings: Any) -> None:
        if len(arguments) == 4:  # of a fold
            trained.append(arguments[-1][3:14])
            if len(trained) == 2:
                raise Interrupted("stopped in the second fold", signal.SIGTERM)
        fit(*arguments, **settings)

    monkeypatch.setattr(folds_module.stages, "fit", counted)
    config = folded(model_folder, small, tmp_path / "out")
    with pytest.raises(Interrupted, match="stopped in the second fold"):
        run.train(config)
    # Settings that change no logits of a fold do not make its training void.
    out = run.train(config.replace(resume_from_checkpoint=True, keep="last"))
    assert trained == ["fold 1 of 3", "fold 2 of 3", "fold 2 of 3", "fold 3 of 3"]
    for name in ("model.safetensors", "predictions.csv", "split.parquet"):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name


@pytest.mark.parametrize(("damage", "again"), [("other settings", [1, 2, 3]), ("cut short", [2])])
def test_a_fold_of_other_settings_or_a_damaged_one_is_trained_again(
    whole: Path,
    model_folder: Path,
    small: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: str,
    again: list[int],
) -> None:
    """In the folder of a run that was killed after its folds."""
    out = shutil.copytree(whole, tmp_path / "out")
    (out / "run.json").unlink()
    for step in (out / "checkpoints").glob("step-*"):
        shutil.rmtree(step)
    changes: dict[str, Any] = {"resume_from_checkpoint": True}
    if damage == "cut short":
        file = out / "checkpoints" / "fold-2.safetensors"
        file.write_bytes(file.read_bytes()[:-8])
    else:
        changes["weight_decay"] = 0.5
    trained: list[str] = []
    fit = folds_module.stages.fit
    monkeypatch.setattr(
        folds_module.stages,
        "fit",
        lambda *a, **settings: (trained.append(a[3][3:14]) if len(a) == 4 else None, fit(*a, **settings)),
    )
    run.train(folded(model_folder, small, out, **changes))
    assert trained == [f"fold {number} of 3" for number in again]


def test_few_rows_are_cross_validated_by_themselves(
    model_folder: Path, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is held out where the recipe trains no epochs, and a later run can have the same folds."""
    settings = {"num_train_epochs": None, "contrastive_steps": 1}
    out = run.train(make_config(model_folder, small, tmp_path / "out", **settings))
    printed = capsys.readouterr().out
    assert "split: train 60, 5 folds, test 0" in printed
    assert "fold 5 of 5: accuracy" in printed
    assert "5-fold cross-validation: accuracy" in printed
    more = tiny.write_table(tmp_path / "more.csv", [*tiny.table_rows(60), *tiny.table_rows(2, seed=9)])
    again = run.train(make_config(model_folder, more, tmp_path / "again", split_like=str(out), **settings))
    before, after = predictions(out), predictions(again)
    assert [row["fold"] for row in after[:60]] == [row["fold"] for row in before]
    assert len(after) == 62
    alike = f"train --data {more} --model {model_folder} --cpu --output-dir {tmp_path / 'no'} --split-like {out}"
    for flags, fault in (
        ("--patience 2", "its 5 folds and --patience 2 contradict each other"),
        ("--max-minutes 5", "with its 5 folds and --max-minutes 5 contradict"),
        ("--folds 0", "has 5 folds, and --folds 0 holds rows out"),
    ):
        assert main([*alike.split(), *flags.split()]) == 2
        assert fault in capsys.readouterr().err
    own = tmp_path / "own.csv"
    own.write_text("text,label,fold\n" + "".join(f"{text},{label},1\n" for text, label in tiny.table_rows(60)))
    findings = check(make_config(model_folder, own, tmp_path / "no", split_like=str(out), **settings)).findings
    assert any("in the predictions, column 'fold' is named 'fold_input'" in one.text for one in findings)


def test_given_test_rows_are_tested_and_no_more_is_taken_from_the_table(
    model_folder: Path, small: Path, tmp_path: Path
) -> None:
    test = tiny.write_table(tmp_path / "test.csv", tiny.table_rows(20, seed=5))
    settings = {"num_train_epochs": None, "contrastive_steps": 1, "test_data": str(test)}
    metrics = read_json(run.train(make_config(model_folder, small, tmp_path / "out", **settings)) / "metrics.json")
    assert metrics["test"]["rows"] == 20
    assert "method" not in metrics["test"]
    assert metrics["eval"]["rows"] == 60
    assert metrics["eval"]["method"] == "5-fold cross-validation"


def test_groups_share_a_fold(model_folder: Path, tmp_path: Path) -> None:
    rows = [(f"{text} {number}", label) for number, (text, label) in enumerate(tiny.table_rows(48))]
    lines = ["text,label,customer", *(f'"{text}",{label},c{number // 4}' for number, (text, label) in enumerate(rows))]
    path = tmp_path / "my.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    out = run.train(folded(model_folder, path, tmp_path / "out", group_column="customer", num_train_epochs=0.0))
    fold_of: dict[str, set[str]] = {}
    for row in predictions(out):
        fold_of.setdefault(row["customer"], set()).add(row["fold"])
    assert len(fold_of) == 12
    assert all(len(one) == 1 for one in fold_of.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"folds": 1}, "--folds must be a whole number from 2 to 100, or 0"),
        ({"max_minutes": 1.0}, "--folds 3 and --max-minutes 1 contradict"),
        ({"patience": 2}, "--folds 3 and --patience 2 contradict"),
        ({"eval_data": "my.csv"}, "--folds 3 and --eval-data my.csv contradict"),
    ],
)
def test_what_folds_cannot_do_is_refused(
    model_folder: Path, small: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        run.train(folded(model_folder, small, tmp_path / "out", **changes))


def test_labels_in_several_columns_have_no_suspects(model_folder: Path, tmp_path: Path) -> None:
    """One label each, marked in its column: suspects.csv, and what it changes, is for one column of names."""
    names, path = ["card", "money", "app"], tmp_path / "my.csv"
    rows = [",".join([text, *("x" * (name == label) for name in names)]) for text, label in tiny.table_rows(60)]
    path.write_text("\n".join([",".join(["text", *names]), *rows]) + "\n", encoding="utf-8")
    out = run.train(folded(model_folder, path, tmp_path / "out", label_column=",".join(names)))
    assert read_json(out / "metrics.json")["task"] == "single_label"
    assert not (out / "suspects.csv").exists()


def test_a_column_with_validation_rows_and_folds_contradict_each_other(model_folder: Path, tmp_path: Path) -> None:
    parts = ["train", "train", "train", "validation"]
    lines = [f'"{text}",{label},{parts[n % 4]}' for n, (text, label) in enumerate(tiny.table_rows(40))]
    path = tmp_path / "my.csv"
    path.write_text("\n".join(["text,label,split", *lines]) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"--folds 3: column 'split' .* validation rows; add --split-column none"):
        run.train(folded(model_folder, path, tmp_path / "out"))


def test_the_temperature_is_in_the_output_layer(model_folder: Path, small: Path, tmp_path: Path, whole: Path) -> None:
    """No label changes, and the saved weights are those without calibration, the output layer's divided."""
    out = run.train(folded(model_folder, small, tmp_path / "out", calibrate="auto"))
    calibration = read_json(out / "metrics.json")["calibration"]
    temperature = calibration["temperature"]
    assert temperature != pytest.approx(1.0, abs=0.01)
    assert calibration["after"]["log_loss"] < calibration["before"]["log_loss"]
    assert calibration["before"]["log_loss"] == pytest.approx(read_json(whole / "metrics.json")["eval"]["loss"])
    assert calibration["after"]["log_loss"] == pytest.approx(read_json(out / "metrics.json")["eval"]["loss"])
    assert read_json(whole / "metrics.json")["calibration"] is None
    calibrated, plain = (load_file(folder / "model.safetensors") for folder in (out, whole))
    for name, tensor in plain.items():
        factor = 1 / temperature if name.startswith("classifier.") else 1.0
        torch.testing.assert_close(calibrated[name], tensor * factor, msg=name)
    assert [r["predicted_label"] for r in predictions(out)] == [r["predicted_label"] for r in predictions(whole)]


def test_rounded_weights_change_no_score_of_folds(
    whole: Path, model_folder: Path, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scores are those of the folds' own models."""
    out = run.train(folded(model_folder, small, tmp_path / "out", save_dtype="float16"))
    assert "saved weights: float16 (" in capsys.readouterr().out
    assert (out / "predictions.csv").read_bytes() == (whole / "predictions.csv").read_bytes()
    assert {tensor.dtype for tensor in load_file(out / "model.safetensors").values()} == {torch.float16}


def test_names_of_labels_are_training_texts(
    model_folder: Path, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where no epochs are trained: a row per class is added to those that the model learns from, in folds, too."""
    few = {"num_train_epochs": 0.0}
    with_names = run.train(folded(model_folder, small, tmp_path / "names", **few))
    assert "label texts: 3, such as 'this is about app' (fewer than 300 labelled rows; " in capsys.readouterr().out
    without = run.train(folded(model_folder, small, tmp_path / "none", **few, label_texts="none"))
    assert "label texts" not in capsys.readouterr().out
    named, bare = (load_file(out / "model.safetensors")["classifier.weight"] for out in (with_names, without))
    assert not torch.equal(named, bare)
    assert not np.array_equal(probabilities(predictions(with_names)), probabilities(predictions(without)))
    assert len(predictions(with_names)) == 60
    more = tiny.write_table(tmp_path / "more.csv", tiny.table_rows(63))
    epochs = run.train(folded(model_folder, more, tmp_path / "epochs"))
    assert "label texts" not in capsys.readouterr().out
    assert read_json(epochs / "metrics.json")["train"]["steps"] > 0
