"""Each way to start the program, for real: one output folder, written once, and the places that were given."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import classify
from classify.config.run_config import RunConfig
from classify.config.schema import DataConfig, ModelConfig, TrainingConfig
from tests.support import tiny
from tests.support.documents import DISTRIBUTED, commands, make_place, type_in
from tests.support.processes import (
    ROOT,
    Process,
    finish,
    forked_python,
    free_port,
    rank_environments,
    start,
    unlaunched,
)
from tests.support.runs import read_json

pytestmark = pytest.mark.distributed


def words(table: Path, model: Path) -> list[str]:
    return [
        "--data", str(table), "--model", str(model), "--cpu",
        "--contrastive-steps", "0", "--max-steps", "2", "--report-to", "none", "--output-dir", "out",
    ]  # fmt: skip


def places(folder: Path) -> list[tuple[int, int, int]]:
    run = json.loads((folder / "run.json").read_text())
    assert run["status"] == "finished"
    return [(entry["machine"], entry["rank"], entry["local_rank"]) for entry in run["topology"]]


TWO = [(0, 0, 0), (0, 1, 1)]

# Commands of docs/distributed.md that train for real: the launcher that run.json names, and the places.
TRAINED: dict[str, tuple[str, list[tuple[int, int, int]]]] = {
    "python run_classify.py --data my.csv": ("none", [(0, 0, -1)]),
    "python run_classify.py --data my.csv --nproc 2": ("nproc", TWO),
    "python run_classify.py --data my.csv --nproc 2 --strategy fsdp": ("nproc", TWO),
    "torchrun --nproc-per-node 2 run_classify.py --data my.csv": ("torchrun", TWO),
}
# Those of which each process prints how it reads its launch.
READ = [
    "torchrun --standalone --nproc-per-node 2 --max-restarts 3 run_classify.py --data my.csv --output-dir out --resume",
    "torchrun --nnodes 1:1 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:29511 run_classify.py "
    "--data my.csv",
    "python -m torch.distributed.launch --nproc-per-node 2 run_classify.py --data my.csv",
    "python -m torch.distributed.launch --use-env --nproc-per-node 2 run_classify.py --data my.csv",
]
EXPLAINING = {
    "classify devices": ["device: "],
    "classify devices --nnodes 2 --nproc-per-node 2 --device npu": ["1        3     1           npu:1", "hccl"],
    "classify devices --nproc-per-node 2,1": ["1        2     0           cuda:0", "world size: 3 processes on"],
}


@pytest.mark.parametrize(
    "command_line", [pytest.param(line, marks=[pytest.mark.slow] * ("torchrun" not in line)) for line in TRAINED]
)
def test_the_documented_commands(model_folder: Path, tmp_path: Path, command_line: str) -> None:
    """Typed as they stand: one folder, written once, and the places that were given."""
    assert command_line in commands(DISTRIBUTED)
    launcher, expected = TRAINED[command_line]
    environment = make_place(tmp_path, model_folder, forked_python())
    done = type_in(tmp_path, command_line, environment)
    assert done.returncode == 0, done.stderr
    assert "destroy_process_group" not in done.stderr
    assert places(tmp_path / "runs" / "my-1") == expected
    assert read_json(tmp_path / "runs" / "my-1" / "run.json")["launcher"] == launcher
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["my-1"]
    assert done.stdout.count("result: runs/my-1") == 1
    written = {path.name for path in (tmp_path / "runs" / "my-1").iterdir()}
    assert {"report.html", "README.md", "explanations.json"} <= written, done.stdout
    # One process needs no list of ranks.
    assert done.stdout.count("ranks: rank 0 = machine 0") == (len(expected) > 1)


@pytest.mark.slow
@pytest.mark.parametrize("command_line", READ)
def test_the_documented_launchers_are_read(tmp_path: Path, command_line: str) -> None:
    """Typed as they stand; each process finds its place, and the others, in what the launcher set."""
    assert command_line in commands(DISTRIBUTED)
    done = type_in(tmp_path, command_line, make_place(tmp_path, None, forked_python()))
    assert done.returncode == 0, done.stderr
    launches = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda one: one["rank"])
    assert [(one["machine"], one["rank"], one["local_rank"]) for one in launches] == TWO
    for one in launches:
        assert (one["launcher"], one["world_size"], one["local_world_size"]) == ("torchrun", 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("command_line", EXPLAINING)
def test_the_documented_explanations(model_folder: Path, tmp_path: Path, command_line: str) -> None:
    """They print their plan and train nothing."""
    assert command_line in commands(DISTRIBUTED)
    environment = make_place(tmp_path, model_folder, forked_python())
    if command_line == "classify devices":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    done = type_in(tmp_path, command_line, environment)
    assert done.returncode == 0, done.stderr
    for part in EXPLAINING[command_line]:
        assert part in done.stdout
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_script_that_trains_twice(
    python: Callable[..., Any], table: Path, model_folder: Path, tmp_path: Path
) -> None:
    """One configuration, two seeds, under torchrun: two folders, whole on every rank when `train` returns.

    The processes meet anew each time, to predict too.
    """
    (tmp_path / "mine.py").write_text(
        "import json\n"
        "import classify\n"
        "from classify.config import DataConfig, ModelConfig, RunConfig, TrainingConfig\n"
        "training = TrainingConfig(use_cpu=True, max_steps=2, report_to='none')\n"
        f"model = ModelConfig(model={str(model_folder)!r}, head='random')\n"
        f"config = RunConfig(DataConfig(data={str(table)!r}), model, training)\n"
        "for seed in (1, 2):\n"
        "    folder = classify.train(config.replace(seed=seed))\n"
        "    assert json.loads((folder / 'run.json').read_text())['status'] == 'finished', 'not yet written'\n"
        "for _ in range(2):\n"
        "    with classify.load_classifier('runs/my-1', use_cpu=True, distributed=True) as classifier:\n"
        "        assert classifier.probabilities(['card']).shape == (1, 3)\n"
    )
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = python(*torchrun, "mine.py", PYTHONPATH=str(ROOT), PYTHON_EXEC=forked_python())
    assert done.returncode == 0, done.stderr
    runs = [json.loads((tmp_path / "runs" / f"my-{n}" / "run.json").read_text()) for n in (1, 2)]
    assert [run["seed"] for run in runs] == [1, 2]
    assert [run["status"] for run in runs] == ["finished", "finished"]
    assert [len(run["topology"]) for run in runs] == [2, 2]


def train_in_a_spawned_process(rank: int, port: int, table: Path, model: Path) -> None:
    """What a script hands to `torch.multiprocessing.spawn`."""
    training = TrainingConfig(output_dir="out", use_cpu=True, max_steps=2, report_to="none")
    config = RunConfig(DataConfig(data=str(table)), ModelConfig(model=str(model)), training)
    classify.train(config, rank=rank, world_size=2, init_method=f"tcp://127.0.0.1:{port}")


@pytest.mark.slow
def test_spawned_processes_through_the_api(table: Path, model_folder: Path, tmp_path: Path) -> None:
    port = free_port()
    processes = [
        Process(train_in_a_spawned_process, (rank, port, table, model_folder), tmp_path, unlaunched())
        for rank in (0, 1)
    ]
    done = [process.finish(90) for process in processes]
    assert [one.returncode for one in done] == [0, 0], done
    assert places(tmp_path / "out") == TWO


@pytest.mark.parametrize("what", ["arguments", "data", "class weights", "model"])
def test_ranks_that_were_started_differently_do_not_train(model_folder: Path, tmp_path: Path, what: str) -> None:
    """Hashes are compared before the first step; each process says it, and nothing is written."""
    processes = []
    for rank, place in enumerate(rank_environments(2)):
        shared = tmp_path / f"here-{rank}"
        shared.mkdir()
        tiny.write_table(shared / "my.csv", tiny.table_rows(60, seed=rank if what == "data" else 0))
        shutil.copytree(model_folder, shared / "model")
        if what == "model" and rank:  # another order of the vocabulary: other token ids for the same weights
            tokenizer = json.loads((shared / "model" / "tokenizer.json").read_text())
            words_of = tokenizer["model"]["vocab"]
            first, second = list(words_of)[-2:]
            words_of[first], words_of[second] = words_of[second], words_of[first]
            (shared / "model" / "tokenizer.json").write_text(json.dumps(tokenizer))
        more = ["--seed", str(rank)] if what == "arguments" else []
        if what == "class weights":
            weights = {"card": 1.0, "money": 1.0, "app": 1.0 + rank}
            (shared / "weights.json").write_text(json.dumps(weights))
            more = ["--class-weights", "weights.json"]
        processes.append(start(shared, "run_classify.py", *words(Path("my.csv"), Path("model")), *more, **place))
    for output in finish(processes, 90, [2, 2]):
        (error,) = (line for line in output.splitlines() if line.startswith("error: "))
        assert error.startswith(f"error: rank 1: expected the same {what} as on rank 0")
    assert not list(tmp_path.glob("here-*/out"))
