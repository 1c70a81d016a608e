"""Each way to start the program, for real: one output folder, written once, and the places that were given."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import tiny
from tests.conftest import ROOT
from tests.distributed.processes import free_port, run_group
from tests.documents import DISTRIBUTED, commands, make_place, type_in

pytestmark = pytest.mark.distributed

SCRIPT = str(ROOT / "run_classify.py")
TICKETS = ROOT / "data" / "tickets.csv"
SPAWN = """
import sys
sys.path.insert(0, {root!r})
import torch.multiprocessing as mp

def work(rank, port, table, model):
    import classify
    from classify.config import DataConfig, ModelConfig, RunConfig, TrainingConfig
    training = TrainingConfig(output_dir="out", use_cpu=True, max_steps=2, report_to="none")
    config = RunConfig(DataConfig(data=table), ModelConfig(model=model), training)
    classify.train(config, rank=rank, world_size=2, init_method=f"tcp://127.0.0.1:{{port}}")
    assert training.process_index == rank and training.world_size == 2

if __name__ == "__main__":
    mp.spawn(work, args=(int(sys.argv[1]), sys.argv[2], sys.argv[3]), nprocs=2)
"""


def words(table: Path, model: Path) -> list[str]:
    return [
        "--data", str(table), "--model", str(model), "--cpu", "--max-steps", "2", "--report-to", "none",
        "--output-dir", "out",
    ]  # fmt: skip


def places(folder: Path) -> list[tuple[int, int, int]]:
    run = json.loads((folder / "run.json").read_text())
    assert run["status"] == "finished"
    return [(entry["machine"], entry["rank"], entry["local_rank"]) for entry in run["topology"]]


TWO = [(0, 0, 0), (0, 1, 1)]

# Commands of docs/distributed.md that one machine runs: the launcher that run.json names, the places, the strategy.
DOCUMENTED: dict[str, tuple[str, list[tuple[int, int, int]], str]] = {
    "python run_classify.py --data my.csv": ("none", [(0, 0, -1)], "none"),
    "python run_classify.py --data my.csv --nproc 2": ("nproc", TWO, "ddp"),
    "python run_classify.py --data my.csv --nproc 2 --strategy fsdp": ("nproc", TWO, "fsdp"),
    "torchrun --nproc-per-node 2 run_classify.py --data my.csv": ("torchrun", TWO, "ddp"),
    "torchrun --standalone --nproc-per-node 2 --max-restarts 3 run_classify.py --data my.csv": ("torchrun", TWO, "ddp"),
    "torchrun --nnodes 1:1 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:29511 run_classify.py "
    "--data my.csv": ("torchrun", TWO, "ddp"),
    "python -m torch.distributed.launch --nproc-per-node 2 run_classify.py --data my.csv": ("torchrun", TWO, "ddp"),
    "python -m torch.distributed.launch --use-env --nproc-per-node 2 run_classify.py --data my.csv": (
        "torchrun", TWO, "ddp",
    ),
}  # fmt: skip
EXPLAINING = {
    "classify devices": ["local rank is -1"],
    "classify devices --nnodes 2 --nproc-per-node 2 --device npu": ["1        3     1           npu:1", "hccl"],
    "classify devices --nproc-per-node 2,1": ["1        2     0           cuda:0", "3 processes on 2 machines"],
    "python run_classify.py --data my.csv --nproc 2 --plan": ["0        1     1           cpu", "2 processes"],
}


@pytest.mark.parametrize("command_line", DOCUMENTED)
def test_the_documented_commands(model_folder: Path, tmp_path: Path, command_line: str) -> None:
    """Typed as they stand: one folder, written once, and the places that were given."""
    assert command_line in commands(DISTRIBUTED)
    launcher, wanted, strategy = DOCUMENTED[command_line]
    environment = make_place(tmp_path, model_folder)
    done = type_in(tmp_path, command_line, environment)
    assert done.returncode == 0, done.stderr
    assert "destroy_process_group" not in done.stderr
    assert places(tmp_path / "runs" / "my-1") == wanted
    run = json.loads((tmp_path / "runs" / "my-1" / "run.json").read_text())
    assert (run["launcher"], run["strategy"]) == (launcher, strategy)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["my-1"]
    assert done.stdout.count("result: runs/my-1") == 1
    assert done.stdout.count("ranks: rank 0 = machine 0") == 1


@pytest.mark.parametrize("command_line", EXPLAINING)
def test_the_documented_explanations(model_folder: Path, tmp_path: Path, command_line: str) -> None:
    """They print their plan and train nothing."""
    assert command_line in commands(DISTRIBUTED)
    environment = make_place(tmp_path, model_folder)
    if command_line == "classify devices":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    done = type_in(tmp_path, command_line, environment)
    assert done.returncode == 0, done.stderr
    for part in EXPLAINING[command_line]:
        assert part in done.stdout
    assert not (tmp_path / "runs").exists()


def run_two(words_and_places: list[tuple[list[str], dict[str, str]]], folder: Path) -> None:
    """Start one process a (command words behind python, variables) and wait for all; none is left behind."""
    clean = {key: value for key, value in os.environ.items() if key != "LOCAL_RANK"}
    processes = [
        subprocess.Popen([sys.executable, *own], cwd=folder, env={**clean, **place}) for own, place in words_and_places
    ]
    try:
        assert [process.wait(timeout=90) for process in processes] == [0] * len(processes)
    finally:
        for process in processes:
            process.kill()


def test_the_flag_of_old_launchers_alone(model_folder: Path, tmp_path: Path) -> None:
    """RANK and WORLD_SIZE in the environment, the local rank as a flag only, with a space or an equals sign.

    (`--local-rank=N` is what torch.distributed.launch itself hands over.)
    """
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    own = words(TICKETS, model_folder)
    flags = {"0": ["--local_rank", "0"], "1": ["--local_rank=1"]}
    run_two([([SCRIPT, *own, *flags[rank]], {**place, "RANK": rank}) for rank in flags], tmp_path)
    assert places(tmp_path / "out") == [(0, 0, 0), (0, 1, 1)]


def test_a_script_that_trains_twice(
    command: Callable[..., Any], table: Path, model_folder: Path, tmp_path: Path
) -> None:
    """One configuration, two seeds, behind torchrun: two folders, whole on every rank when `train` returns.

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
        "    training.seed = seed\n"
        "    folder = classify.train(config)\n"
        "    assert json.loads((folder / 'run.json').read_text())['status'] == 'finished', 'not yet written'\n"
        "for _ in range(2):\n"
        "    with classify.load_classifier('runs/my-1', use_cpu=True) as classifier:\n"
        "        assert classifier.probabilities(['card']).shape == (1, 3)\n"
    )
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = command(*torchrun, "mine.py", PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    runs = [json.loads((tmp_path / "runs" / f"my-{n}" / "run.json").read_text()) for n in (1, 2)]
    assert [run["seed"] for run in runs] == [1, 2]
    assert [run["status"] for run in runs] == ["finished", "finished"]
    assert [len(run["topology"]) for run in runs] == [2, 2]


def test_spawned_processes_through_the_api(command: Callable[..., Any], model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "spawn.py").write_text(SPAWN.format(root=str(ROOT)))
    done = command("spawn.py", str(free_port()), str(TICKETS), str(model_folder))
    assert done.returncode == 0, done.stderr
    assert places(tmp_path / "out") == [(0, 0, 0), (0, 1, 1)]


def test_a_device_asked_for_before_training(table: Path, model_folder: Path, tmp_path: Path) -> None:
    """The group that this makes gives its port back to the next, also where rank 0 itself listens there."""
    (tmp_path / "early.py").write_text(
        "from classify.config import DataConfig, ModelConfig, RunConfig, TrainingConfig\n"
        "training = TrainingConfig(output_dir='out', use_cpu=True, max_steps=2, report_to='none')\n"
        "assert training.device.type == 'cpu' and training.world_size == 2\n"
        "import classify\n"
        f"model = ModelConfig(model={str(model_folder)!r}, head='random')\n"
        f"config = RunConfig(DataConfig(data={str(table)!r}), model, training)\n"
        "for _ in range(2):\n"
        "    classify.train(config)\n"
        "    training.overwrite_output_dir = True\n"
    )
    run_group(2, ["early.py"], cwd=tmp_path)
    assert places(tmp_path / "out") == [(0, 0, 0), (0, 1, 1)]


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_the_variables_of_srun_and_open_mpi(table: Path, model_folder: Path, tmp_path: Path, launcher: str) -> None:
    """Two processes get the variables that the launcher would set; test_schedulers.py has the launchers themselves."""
    if shutil.which(launcher) is not None and os.geteuid() == 0:
        pytest.skip(f"{launcher} is here and runs for real in test_schedulers.py")
    job = str(os.getpid())
    variables = {
        "srun": lambda rank: {
            "SLURM_JOB_ID": job, "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1",
            "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "here", "SLURM_NODEID": "0",
            "SLURM_PROCID": rank, "SLURM_LOCALID": rank,
        },
        "mpirun": lambda rank: {
            "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_LOCAL_RANK": rank,
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": job,
        },
    }[launcher]  # fmt: skip
    run_two([([SCRIPT, *words(table, model_folder)], variables(rank)) for rank in ("0", "1")], tmp_path)
    assert places(tmp_path / "out") == [(0, 0, 0), (0, 1, 1)]
    assert json.loads((tmp_path / "out" / "run.json").read_text())["launcher"] == launcher


@pytest.mark.parametrize("several", [False, True], ids=["one process", "several by the variables"])
def test_accelerate_launch(model_folder: Path, tmp_path: Path, several: bool) -> None:
    """On CPUs it starts one process, whatever --num_processes says; variables make it one of several."""
    start = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines", "1"]
    start += ["--mixed_precision", "no", "--dynamo_backend", "no", SCRIPT, *words(TICKETS, model_folder)]
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [{**common, "RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1")] if several else [{}]
    run_two([(start, place) for place in ranks], tmp_path)
    assert places(tmp_path / "out") == (TWO if several else [(0, 0, -1)])


def test_fewer_rows_than_ranks(command: Callable[..., Any], table: Path, model_folder: Path) -> None:
    more = ["--max-train-samples", "2", "--nproc", "3"]
    done = command(SCRIPT, *words(table, model_folder), *more)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert "2 training rows are fewer than the 3 devices" in done.stderr


@pytest.mark.parametrize("what", ["arguments", "data"])
def test_ranks_that_were_started_differently_do_not_train(model_folder: Path, tmp_path: Path, what: str) -> None:
    """Hashes are compared before the first step; the main process says it once, and nothing is written."""
    port = str(free_port())
    processes = []
    for rank in (0, 1):
        mine = tiny.write_table(tmp_path / f"my-{rank}.csv", tiny.table_rows(60, seed=rank if what == "data" else 0))
        shared = tmp_path / f"here-{rank}"
        shared.mkdir()
        mine.rename(shared / "my.csv")
        place = {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }  # fmt: skip
        more = ["--seed", str(rank)] if what == "arguments" else []
        processes.append(
            subprocess.Popen(
                [sys.executable, SCRIPT, *words(Path("my.csv"), model_folder), *more],
                cwd=shared,
                env={**os.environ, **place},
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        errors = [process.communicate(timeout=90)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [2, 2]
    assert errors[0].startswith(f"error: rank 1 was started with other {what} than rank 0")
    assert errors[0].count("\n") == 1
    assert errors[1] == ""
    assert not list(tmp_path.glob("here-*/out"))
