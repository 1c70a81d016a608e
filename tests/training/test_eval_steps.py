"""--eval-steps evaluates within epochs; --max-eval-samples validates on a sample of the rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classify.errors import Interrupted
from classify.files import read_json
from classify.training import run
from classify.training.inputs import check
from tests.support.runs import make_config, stop_at, worse_in_the_end


def evaluations(folder: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (folder / "train_log.jsonl").read_text().splitlines())
    return [line for line in lines if "eval" in line and line["step"]]


def test_scores_within_an_epoch(model_folder: Path, table: Path, tmp_path: Path) -> None:
    """Training is the same; the best of these scores is kept, though it lies within an epoch."""
    settings = {**worse_in_the_end(tmp_path), "keep": "best", "seed": 3, "precision": "fp32"}
    plain = run.train(make_config(model_folder, table, tmp_path / "plain", **{**settings, "keep": "last"}))
    out = run.train(make_config(model_folder, table, tmp_path / "out", **settings, eval_steps=2))
    last = run.train(make_config(model_folder, table, tmp_path / "last", **{**settings, "keep": "last"}, eval_steps=2))
    assert (plain / "model.safetensors").read_bytes() == (last / "model.safetensors").read_bytes()
    scored, at_epochs = evaluations(out), [line["step"] for line in evaluations(plain)]
    steps = [line["step"] for line in scored]
    assert steps == sorted({*range(2, at_epochs[-1] + 1, 2), *at_epochs})
    assert [line for line in scored if line["step"] in at_epochs] == evaluations(plain)
    best = max(scored, key=lambda line: (line["eval"]["macro_f1"], -line["eval"]["loss"]))
    assert best["step"] not in at_epochs, "the test needs a best score within an epoch"
    metrics = read_json(out / "metrics.json")
    assert metrics["best_epoch"] == pytest.approx(best["epoch"])
    assert metrics["eval"]["macro_f1"] == pytest.approx(best["eval"]["macro_f1"])


def test_patience_counts_evaluations(
    model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two in a row within an epoch end the run; interrupted between them and resumed, at the same step."""
    settings = {**worse_in_the_end(tmp_path), "keep": "auto", "patience": 2, "eval_steps": 2, "seed": 3}
    whole = run.train(make_config(model_folder, table, tmp_path / "whole", **settings))
    ended = [line["step"] for line in evaluations(whole)]
    assert "(--patience)" in capsys.readouterr().out
    assert ended[-1] == read_json(whole / "metrics.json")["train"]["steps"]
    with monkeypatch.context() as patch:
        stop_at(ended[-2] + 1, patch)
        with pytest.raises(Interrupted):
            run.train(make_config(model_folder, table, tmp_path / "out", **settings))
    out = run.train(make_config(model_folder, table, tmp_path / "out", resume_from_checkpoint=True, **settings))
    assert [line["step"] for line in evaluations(out)] == ended
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    before = (out / "metrics.json").read_bytes()
    run.train(make_config(model_folder, table, out, resume_from_checkpoint=True, **settings))
    assert (out / "metrics.json").read_bytes() == before, "it is finished"


def test_a_sample_of_the_validation_rows(model_folder: Path, table: Path, tmp_path: Path) -> None:
    """Training and test rows stay; the sample has each class, and is the same each time."""
    plain = check(make_config(model_folder, table, tmp_path / "a", seed=3)).splits
    config = make_config(model_folder, table, tmp_path / "b", seed=3, max_eval_samples=4)
    inputs = check(config)
    splits = inputs.splits
    assert len(splits.validation) == 4 < len(plain.validation)
    assert set(splits.validation.rows) < set(plain.validation.rows)
    assert set(splits.validation.targets) == set(plain.validation.targets)
    np.testing.assert_array_equal(splits.train.rows, plain.train.rows)
    assert splits.test is not None
    assert plain.test is not None
    np.testing.assert_array_equal(splits.test.rows, plain.test.rows)
    np.testing.assert_array_equal(splits.validation.rows, check(config).splits.validation.rows)
    (said,) = (line for finding in inputs.findings if (line := finding.line()).startswith("split:"))
    assert f"validation 4 of {len(plain.validation)} (--max-eval-samples)" in said
    assert read_json(run.train(config, inputs) / "metrics.json")["eval"]["rows"] == 4
