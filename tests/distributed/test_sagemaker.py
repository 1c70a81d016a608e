"""A job in SageMaker's container, with a stand-in for its data parallel library: two real processes over "smddp"."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import ROOT, run, run_python_ranks
from tests.support.runs import read_json

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

STANDIN = ROOT / "tests" / "standins" / "sagemaker"


@pytest.fixture
def container(tmp_path: Path, table: Path) -> dict[str, str]:
    """The container's variables; the training channel holds the table."""
    channel = tmp_path / "ml" / "input" / "data" / "train"
    channel.mkdir(parents=True)
    (channel / "tickets.csv").write_bytes(table.read_bytes())
    return {
        "SM_MODEL_DIR": str(tmp_path / "ml" / "model"),
        "SM_CHANNEL_TRAIN": str(channel),
        "SM_HOSTS": '["algo-1"]',
        "SM_CURRENT_HOST": "algo-1",
    }


def test_one_machine_finds_its_table_and_its_folder(
    container: dict[str, str], model_folder: Path, tmp_path: Path
) -> None:
    """As with an estimator's hyperparameters: flags with values, no path among them."""
    words = ["--model", str(model_folder), "--epochs", "1", "--use-cpu", "True", "--report-to", "none"]
    done = run(tmp_path, "run_classify.py", *words, **container)
    assert done.returncode == 0, done.stderr
    assert "data: " in done.stdout
    assert "tickets.csv (from SM_CHANNEL_TRAIN; --data)" in done.stdout
    model = Path(container["SM_MODEL_DIR"])
    assert (model / "model.safetensors").exists()
    assert read_json(model / "run.json")["status"] == "finished"
    assert "from SM_MODEL_DIR" in json.dumps(read_json(model / "run.json")["guesses"])


def test_two_processes_of_the_data_parallel_library(
    container: dict[str, str], model_folder: Path, tmp_path: Path
) -> None:
    """Started by MPI, as its launcher does; ranks are those that MPI gives."""
    log = tmp_path / "smddp.log"
    words = ["-m", "tests.distributed.sagemaker_task", "--model", str(model_folder), "--epochs", "1"]
    run_python_ranks(
        2,
        *words,
        "--report-to",
        "none",
        folder=tmp_path,
        **container,
        SMDATAPARALLEL_USE_SINGLENODE="1",
        SMDDP_STANDIN_LOG=str(log),
        PYTHONPATH=os.pathsep.join([str(STANDIN), str(ROOT)]),
    )
    record: dict[str, Any] = read_json(Path(container["SM_MODEL_DIR"]) / "run.json")
    assert (record["launcher"], record["strategy"]) == ("smddprun", "ddp")
    assert [(place["rank"], place["local_rank"]) for place in record["topology"]] == [(0, 0), (1, 1)]
    made = sorted((json.loads(line) for line in log.read_text().splitlines()), key=lambda one: one["rank"])
    assert [(one["rank"], one["size"]) for one in made] == [(0, 2), (1, 2)]
    assert made[0]["allreduce"] == made[1]["allreduce"] >= 3  # the gradients of each step
    # What all ranks are asked in each step, and before the first.
    assert made[0]["allgather"] == made[1]["allgather"] > 3


def test_without_the_library_the_job_says_what_is_missing(
    container: dict[str, str], model_folder: Path, tmp_path: Path
) -> None:
    variables = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    variables |= {"MASTER_ADDR": "127.0.0.1", "PMIX_NAMESPACE": "1304035329"}
    done = run(
        tmp_path, "run_classify.py", "--model", str(model_folder),
        **container, **variables, SMDATAPARALLEL_USE_SINGLENODE="1",
    )  # fmt: skip
    assert done.returncode == 2
    assert "backend smddp: smdistributed" in done.stderr
    assert "or give --ddp-backend nccl" in done.stderr
