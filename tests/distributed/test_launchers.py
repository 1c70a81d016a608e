"""Each way to start the program, for real: one output folder, written once, and the places that were given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import tiny
from tests.conftest import ROOT
from tests.distributed.processes import free_port

pytestmark = pytest.mark.distributed

SCRIPT = str(ROOT / "run_classify.py")
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
    run = json.loads((folder / "out" / "run.json").read_text())
    assert run["status"] == "finished"
    return [(entry["machine"], entry["rank"], entry["local_rank"]) for entry in run["topology"]]


LAUNCHES = {
    "torch.distributed.launch": ["-m", "torch.distributed.launch", "--nproc-per-node", "2"],
    "torch.distributed.launch --use-env": ["-m", "torch.distributed.launch", "--use-env", "--nproc-per-node", "2"],
    "torchrun static": ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "PORT"],
    "torchrun c10d": [
        "-m", "torch.distributed.run", "--nnodes", "1:1", "--nproc-per-node", "2", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", "127.0.0.1:PORT", "--rdzv-id", "job",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", LAUNCHES)
def test_torchs_launchers(
    command: Callable[..., Any], table: Path, model_folder: Path, tmp_path: Path, name: str
) -> None:
    start = [word.replace("PORT", str(free_port())) for word in LAUNCHES[name]]
    if name.startswith("torch.distributed.launch"):
        start += ["--master-port", str(free_port())]
    done = command(*start, SCRIPT, *words(table, model_folder))
    assert done.returncode == 0, done.stderr
    assert places(tmp_path) == [(0, 0, 0), (0, 1, 1)]
    assert done.stdout.count("result: out") == 1


def run_two(words_and_places: list[tuple[list[str], dict[str, str]]], folder: Path) -> None:
    """Start one process a (command words, variables) and wait for all; none is left behind."""
    clean = {key: value for key, value in os.environ.items() if key != "LOCAL_RANK"}
    processes = [
        subprocess.Popen([sys.executable, SCRIPT, *own], cwd=folder, env={**clean, **place})
        for own, place in words_and_places
    ]
    try:
        assert [process.wait(timeout=90) for process in processes] == [0] * len(processes)
    finally:
        for process in processes:
            process.kill()


def test_the_flag_of_old_launchers_alone(table: Path, model_folder: Path, tmp_path: Path) -> None:
    """RANK and WORLD_SIZE in the environment, the local rank as a flag only."""
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    own = words(table, model_folder)
    run_two([([*own, "--local_rank", rank], {**place, "RANK": rank}) for rank in ("0", "1")], tmp_path)
    assert places(tmp_path) == [(0, 0, 0), (0, 1, 1)]


def test_spawned_processes_through_the_api(
    command: Callable[..., Any], table: Path, model_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "spawn.py").write_text(SPAWN.format(root=str(ROOT)))
    done = command("spawn.py", str(free_port()), str(table), str(model_folder))
    assert done.returncode == 0, done.stderr
    assert places(tmp_path) == [(0, 0, 0), (0, 1, 1)]


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_the_variables_of_srun_and_open_mpi(table: Path, model_folder: Path, tmp_path: Path, launcher: str) -> None:
    """The launchers themselves are not needed: two processes get the variables they would set, and nothing else."""
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
    run_two([(words(table, model_folder), variables(rank)) for rank in ("0", "1")], tmp_path)
    assert places(tmp_path) == [(0, 0, 0), (0, 1, 1)]
    assert json.loads((tmp_path / "out" / "run.json").read_text())["launcher"] == launcher


def test_accelerate_launch_on_cpu_is_one_process(
    command: Callable[..., Any], table: Path, model_folder: Path, tmp_path: Path
) -> None:
    start = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines", "1"]
    start += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    done = command(*start, SCRIPT, *words(table, model_folder))
    assert done.returncode == 0, done.stderr
    assert places(tmp_path) == [(0, 0, -1)]


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
