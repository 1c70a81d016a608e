"""Where the time of a run goes: phases that add up."""

from __future__ import annotations

from pathlib import Path

import pytest

from classify.training import run
from classify.training.progress import Progress
from classify.training.terminal import Timeline
from tests.support.runs import make_config, read_json


def test_phases_add_up_to_the_time_since_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    timeline = Timeline(90.0)
    for passed, phase in ((5, "steps"), (2, "evaluation"), (3, "steps")):
        now[0] += passed
        timeline.end(phase)
    assert timeline.seconds == {"steps": 18.0, "evaluation": 2.0}
    assert timeline.elapsed == 20.0
    assert timeline.describe() == "20.0 s (steps 18.0, evaluation 2.0)"


def test_a_run_keeps_its_phases(model_folder: Path, table: Path, tmp_path: Path) -> None:
    timeline = Timeline()
    config = make_config(model_folder, table, tmp_path / "out", contrastive_steps=2)
    seconds = read_json(run.train(config, timeline=timeline) / "run.json")["seconds"]
    named = {"tokens", "model", "precision and packing", "contrastive steps", "head", "epochs", "evaluation"}
    assert named | {"checkpoints", "baseline", "files"} <= seconds.keys()
    written = read_json(tmp_path / "out" / "metrics.json")["wall_seconds"]
    assert written - 0.5 < sum(seconds.values()) <= timeline.elapsed


def test_a_model_that_recovers_is_better_than_the_collapsed_one() -> None:
    progress = Progress()
    for accuracy, collapsed in ((0.9, True), (0.91, True), (0.8, False), (0.95, True)):
        progress.step += 5
        progress.add_score({"loss": 0.5, "accuracy": accuracy}, progress.step / 5, "accuracy", collapsed=collapsed)
    assert progress.best is not None
    assert progress.best["epoch"] == 3
    assert progress.choose_kept("auto", "accuracy", "accuracy", 100)["epoch"] == 3
