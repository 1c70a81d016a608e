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


def given(container: dict[str, str]) -> list[str]:
    """The container's folders, as a command names them."""
    return ["--data", f"{container['SM_CHANNEL_TRAIN']}/tickets.csv", "--output-dir", container["SM_MODEL_DIR"]]


def test_two_processes_of_the_data_parallel_library(
    container: dict[str, str], model_folder: Path, tmp_path: Path
) -> None:
    """Started by MPI, as its launcher does; ranks are those that MPI gives."""
    log = tmp_path / "smddp.log"
    words = ["-m", "tests.distributed.sagemaker_task", "--model", str(model_folder), "--epochs", "1", *given(container)]
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
        tmp_path, "run_classify.py", "--model", str(model_folder), *given(container),
        **container, **variables, SMDATAPARALLEL_USE_SINGLENODE="1",
    )  # fmt: skip
    assert done.returncode == 2
    assert "backend smddp: smdistributed" in done.stderr
    assert "or give --ddp-backend nccl" in done.stderr
