"""TensorBoard files as TensorBoard reads them, and another tracker through Accelerate."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from classify.errors import InputError
from classify.training.inputs import PACKAGES, choose_trackers
from classify.training.log import TensorBoard
from tests.support.processes import run, run_ranks

# The public surface of dvclive that Accelerate uses. It computes nothing, so there is nothing to get wrong: every call
# goes to a file, with the process that made it.
DVCLIVE = """
import json, os

class Live:
    def __init__(self, **settings):
        self.step = 0
        self._note("begin")

    def _note(self, *call):
        with open("calls.jsonl", "a") as file:
            file.write(json.dumps([os.environ.get("RANK", "-"), *call]) + chr(10))

    def log_params(self, values):
        self._note("params", values)

    def log_metric(self, name, value):
        self._note("metric", self.step, name, value)

    def next_step(self):
        self.step += 1

    def end(self):
        self._note("end")
"""
PLOTS = """
class Metric:
    @staticmethod
    def could_log(value):
        return isinstance(value, (int, float))
"""


def install(folder: Path, code: str) -> str:
    """A package dvclive of that code; returns the folder to import it from."""
    package = folder / "packages" / "dvclive"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(code)
    (package / "plots.py").write_text(PLOTS)
    return str(package.parent)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a run: tag -> (step, value)."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def words(table: Path, model: Path, *more: str) -> list[str]:
    return [
        "run_classify.py", "--data", str(table), "--model", str(model), "--cpu",
        "--contrastive-steps", "0", "--epochs", "3",
        "--output-dir", "out", *more,
    ]  # fmt: skip


def logged(folder: Path, key: str) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in (folder / "train_log.jsonl").read_text().splitlines()]
    if key == "eval":
        return [(line["step"], line["eval"]["loss"]) for line in lines if "eval" in line]
    return [(line["step"], line[key]) for line in lines if key in line]


def test_both_losses_stand_in_one_chart(table: Path, model_folder: Path, tmp_path: Path) -> None:
    """TensorBoard puts scalars of one name from several runs into one chart."""
    run_ranks(2, *words(table, model_folder, "--report-to", "tensorboard"), folder=tmp_path)
    board = tmp_path / "out" / "tensorboard"
    assert sorted(path.name for path in board.iterdir()) == ["eval", "train"]
    assert all(len(list(part.iterdir())) == 1 for part in board.iterdir()), "one process writes"
    train, evaluation = scalars(board / "train"), scalars(board / "eval")
    assert set(train) == {"loss", "learning_rate", "grad_norm", "rows_per_second"}
    assert set(evaluation) == {"loss", "accuracy", "macro_f1", "weighted_f1", "balanced_accuracy", "mcc"}
    for got, wanted in (
        (train["loss"], logged(tmp_path / "out", "loss")),
        (evaluation["loss"], logged(tmp_path / "out", "eval")),
    ):
        assert [step for step, _ in got] == [step for step, _ in wanted]
        assert [value for _, value in got] == pytest.approx([value for _, value in wanted])


def test_a_resumed_run_draws_over_what_it_had_written_beyond_its_checkpoint(tmp_path: Path) -> None:
    first = TensorBoard(tmp_path, None)
    for step in range(1, 7):
        first.write("train", step, {"loss": 1.0}, None)
    first.close()
    time.sleep(1.1)  # TensorBoard reads files in the order of their names, which hold the second they were begun in
    second = TensorBoard(tmp_path, after_step=4)
    for step in range(5, 9):
        second.write("train", step, {"loss": 2.0}, None)
    second.close()
    assert scalars(tmp_path / "train")["loss"] == [(s, 1.0) for s in range(1, 5)] + [(s, 2.0) for s in range(5, 9)]


@pytest.mark.slow
def test_another_tracker_through_accelerate(table: Path, model_folder: Path, tmp_path: Path) -> None:
    packages = install(tmp_path, DVCLIVE)
    run_ranks(2, *words(table, model_folder, "--report-to", "dvclive"), folder=tmp_path, PYTHONPATH=packages)
    calls: list[list[Any]] = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert {call[0] for call in calls} == {"0"}, "one process speaks to it"
    assert [call[1] for call in calls if call[1] != "metric"] == ["begin", "params", "end"]
    assert calls[1][2]["learning_rate"] == 5e-5
    metrics = {name: (step, value) for _, kind, *rest in calls if kind == "metric" for step, name, value in [rest]}
    assert metrics["train/loss"] == tuple(logged(tmp_path / "out", "loss")[-1])
    assert metrics["eval/loss"] == tuple(logged(tmp_path / "out", "eval")[-1])
    assert not (tmp_path / "out" / "tensorboard").exists()


@pytest.mark.parametrize(
    ("line", "code", "note"),
    [
        ('self._note("begin")', 2, "error: --report-to dvclive: it cannot be started (OSError: no server)"),
        ('self._note("metric", self.step, name, value)', 0, "note: dvclive failed and is no longer written to (OSErr"),
    ],
)
def test_a_tracker_that_fails(table: Path, model_folder: Path, tmp_path: Path, line: str, code: int, note: str) -> None:
    """It cannot be used from the start, or its server is gone later, which is not a reason to end a training."""
    packages = install(tmp_path, DVCLIVE.replace(line, 'raise OSError("no server")'))
    done = run(tmp_path, *words(table, model_folder, "--report-to", "dvclive"), PYTHONPATH=packages)
    assert done.returncode == code, done.stderr
    assert done.stderr.count(note) == 1


def test_which_trackers_are_known() -> None:
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    assert set(PACKAGES) == set(LOGGER_TYPE_TO_CLASS)
    assert choose_trackers("none") == ()
    assert choose_trackers("auto") == choose_trackers("tensorboard, tensorboard") == ("tensorboard",)
    with pytest.raises(InputError, match="--report-to must be auto, none, or some of tensorboard, wandb"):
        choose_trackers("tensorboard,paper")
    with pytest.raises(InputError, match="the package wandb is not installed; pip install wandb"):
        choose_trackers("wandb")


def test_a_folder_is_not_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trackers write a folder of their name into the working directory."""
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="--report-to wandb"):
        choose_trackers("wandb")
    assert "wandb" not in choose_trackers("all")
