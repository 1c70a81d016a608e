"""What happens when a process fails: all stop soon, one line says why, nothing is left, and a restart goes on."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from classify.config.schema import TrainingConfig
from classify.distributed.group import _exchange
from classify.errors import DeviceError, InputError
from classify.launch.launch import Launch
from tests.support.processes import (
    ROOT,
    SCRIPT,
    forked_python,
    free_port,
    nproc_command,
    run,
    run_distributed_test,
    run_python,
    run_ranks,
    unlaunched,
)
from tests.support.runs import read_json
from tests.support.worlds import start_world

pytestmark = pytest.mark.distributed

TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]

# One rank fails in the middle of a step, for good: the draw of its dropout raises. The others wait for its gradients.
FAILING = """
import os, time

if os.environ.get("RANK") == {rank!r}:
    import numpy

    class SeedSequence(numpy.random.SeedSequence):
        calls = 0

        def __init__(self, *args):
            SeedSequence.calls += 1
            if SeedSequence.calls > 40:
                open({report!r}, "w").write(str(time.time()))
                raise {error}
            super().__init__(*args)

    numpy.random.SeedSequence = SeedSequence
"""


def words(table: Path, model: Path, *more: str) -> list[str]:
    return [
        "--data", str(table), "--model", str(model), "--cpu",
        "--contrastive-steps", "0", "--report-to", "none", *([] if "--batch-size" in more else ["--batch-size", "16"]),
        "--output-dir", "out", *more,
    ]  # fmt: skip


# What a rank prints whose peer has ended.
LOST = "error: another process of this run has ended, or made no progress (--ddp-timeout); its own error says why."
# What fails, and the whole line that tells it.
BROKEN = (
    'ValueError("the memory of this machine is broken")',
    r"error: internal error: ValueError: the memory of this machine is broken \(--debug shows where\)",
)
FULL = (
    'MemoryError("no room")',
    r"error: step \d+: rank 1 is out of memory \(no room\); continue with --resume and --gradient-accumulation-steps "
    r"2 or --gradient-checkpointing, or start over with --lora, --freeze-layers, a smaller --max-length, --precision "
    r"bf16 or a smaller --model\.",
)


@pytest.mark.parametrize(
    ("way", "rank", "failure"), [("torchrun", "0", BROKEN), ("nproc", "1", BROKEN), ("nproc", "1", FULL)]
)
def test_one_ranks_error_ends_all(
    table: Path, model_folder: Path, tmp_path: Path, way: str, rank: str, failure: tuple[str, str]
) -> None:
    """Within 15 seconds, with the first error as the one shown, and no process left."""
    (tmp_path / "spy").mkdir()
    report = tmp_path / "failed-at"
    (tmp_path / "spy" / "sitecustomize.py").write_text(FAILING.format(rank=rank, report=str(report), error=failure[0]))
    if way == "torchrun":
        start = [sys.executable, *TORCHRUN, "--master-port", str(free_port()), SCRIPT]
    else:
        start = nproc_command("--nproc", "2")
    path = os.pathsep.join([str(tmp_path / "spy"), str(ROOT)])
    process = subprocess.Popen(
        [*start, *words(table, model_folder, "--epochs", "500")],
        cwd=tmp_path,
        env={**unlaunched(), "PYTHONPATH": path, "PYTHON_EXEC": forked_python()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, err = process.communicate(timeout=90)
        ended = time.time()
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 1
    assert ended - float(report.read_text()) < 15
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    (cause,) = (line for line in errors if not line.startswith(LOST))
    assert re.fullmatch(failure[1], cause)
    assert read_json(tmp_path / "out" / "run.json")["status"] == "failed"


def test_ranks_that_nobody_ends_meet_the_same_fault(table: Path, model_folder: Path, tmp_path: Path) -> None:
    """As srun starts them, which lets the others run when one has left: none may wait for rank 0."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    message = run_ranks(2, "run_classify.py", *words(table, model_folder), folder=tmp_path, timeout=60, code=2)
    assert "the folder exists and is not empty" in message[0]
    assert message[1] == message[0]


def test_a_checkpoint_that_cannot_be_trusted_ends_all(table: Path, model_folder: Path, tmp_path: Path) -> None:
    """Rank 0 alone looks at it; nobody ends the others for it here."""
    bad = tmp_path / "out" / "checkpoints" / "step-00000001"
    bad.mkdir(parents=True)
    (bad / "manifest.json").write_text("{}")
    command = ["run_classify.py", *words(table, model_folder)]
    message = run_ranks(2, *command, "--resume", folder=tmp_path, timeout=60, code=3)
    assert message[0].splitlines()[-1].startswith("error: ")
    assert message[1] == message[0].splitlines(keepends=True)[-1]


def descendants(process: subprocess.Popen[str], rank: str) -> list[psutil.Process]:
    """Processes below this one that are the given rank."""
    result = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if child.environ().get("RANK") == rank:
                result.append(child)
        except psutil.Error:
            continue
    return result


RESTARTED = ("--epochs", "8", "--learning-rate", "1e-3", "--batch-size", "4")


@pytest.mark.slow
def test_a_restarted_job_resumes(table: Path, model_folder: Path, tmp_path: Path) -> None:
    """A rank is killed and torchrun restarts all; with --resume the end has the bits of an undisturbed run."""
    own = words(table, model_folder, *RESTARTED)
    other = ["whole" if word == "out" else word for word in own]
    undisturbed = run_python(tmp_path, *TORCHRUN, "--standalone", SCRIPT, *other, PYTHON_EXEC=forked_python())
    assert undisturbed.returncode == 0, undisturbed.stderr
    assert "destroy_process_group" not in undisturbed.stderr
    errors = tmp_path / "errors.txt"
    with errors.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, *TORCHRUN, "--standalone", "--max-restarts", "1", SCRIPT, *own, "--resume"],
            cwd=tmp_path,
            env={**os.environ, "PYTHON_EXEC": forked_python()},
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("epoch 2 "):
                descendants(process, "1")[0].kill()
                break
        out, _ = process.communicate(timeout=90)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "out: resuming from step-" in out
    for name in ("model.safetensors", "predictions.csv"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"MASTER_PORT": "taken"}, ["MASTER_PORT=", "address already in use", "free port"]),
        ({"MASTER_ADDR": "no.such.host.invalid"}, ["MASTER_ADDR=no.such.host.invalid", "not known"]),
        ({"MASTER_ADDR": None}, ["RANK=0", "WORLD_SIZE=2", "MASTER_ADDR"]),
        ({"LOCAL_RANK": None}, ["RANK=0", "LOCAL_RANK is not"]),
    ],
    ids=["busy port", "unknown address", "no address", "no local rank"],
)
def test_a_place_that_cannot_be_taken(
    command: Callable[..., Any], table: Path, model_folder: Path, change: dict[str, str | None], parts: list[str]
) -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501"}
        place = {key: value for key, value in {**place, **change}.items() if value is not None}
        if place["MASTER_PORT"] == "taken":
            place["MASTER_PORT"] = str(other.getsockname()[1])
        done = command("run_classify.py", *words(table, model_folder), **place)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    for part in parts:
        assert part in done.stderr


def test_sagemakers_library_is_missing(command: Callable[..., Any], table: Path, model_folder: Path) -> None:
    task = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    task |= {"MASTER_ADDR": "127.0.0.1", "PMIX_NAMESPACE": "1304035329", "SMDATAPARALLEL_USE_SINGLENODE": "1"}
    done = command("run_classify.py", "--data", str(table), "--model", str(model_folder), **task)
    assert done.returncode == 2
    assert "backend smddp: smdistributed" in done.stderr
    assert "or give another --ddp-backend" in done.stderr


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (["--nproc", "2", "--strategy", "dp"], "error: --strategy dp works in one process"),
        (["--nproc", "3", "--max-train-samples", "2"], "2 training rows cannot be split over 3 devices"),
    ],
)
def test_all_processes_say_the_same(
    command: Callable[..., Any], table: Path, model_folder: Path, more: list[str], line: str
) -> None:
    done = command("run_classify.py", *words(table, model_folder, *more))
    assert done.returncode == 2
    (message,) = set(done.stderr.splitlines())
    assert line in message


def exchange_and_leave() -> None:
    launch = Launch.read(os.environ)
    store, _, _ = next(torch.distributed.rendezvous("env://"))

    class SlowStore:
        set, wait = store.set, store.wait

        def multi_get(self, keys: list[str]) -> list[bytes]:
            time.sleep(launch.rank)
            return store.multi_get(keys)

    assert _exchange(SlowStore(), launch, {"rank": launch.rank}) == [{"rank": 0}, {"rank": 1}]  # type: ignore[arg-type]


def test_the_process_with_the_store_leaves_last() -> None:
    """All ranks may end on what they have read of each other, so one that reads late must still find the store."""
    run_distributed_test(exchange_and_leave, 2)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_that_never_comes(rank: str, table: Path, model_folder: Path, tmp_path: Path) -> None:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    flags = words(table, model_folder, "--ddp-timeout", "3")
    done = run(tmp_path, "run_classify.py", *flags, **place, MASTER_PORT=str(free_port()))
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"error: rank {rank} of 2: not all ranks came to 127.0.0.1:")
    assert "--ddp-timeout" in last


def interrupt_one_rank() -> None:
    """Ctrl-C reaches one rank alone where the others were started elsewhere."""
    world = start_world(TrainingConfig(use_cpu=True))

    @world.sync_errors()
    def work() -> None:
        if world.rank == 1:
            raise KeyboardInterrupt

    if world.rank == 1:
        with pytest.raises(KeyboardInterrupt):
            work()
    else:
        with pytest.raises(InputError, match="rank 1 on machine 0 stopped: KeyboardInterrupt"):
            work()
    world.close()


def test_an_interrupt_of_one_rank_ends_the_wait_of_the_others() -> None:
    run_distributed_test(interrupt_one_rank, 2, timeout=60)


def meet_on_two_kinds_of_devices() -> None:
    """Rank 1's GPU has failed: it takes the CPU, where it would wait for ever for a rank that waits under NCCL."""
    from classify.distributed import group

    plan = TrainingConfig(use_cpu=True)._setup_devices(Launch.read())
    if plan.launch.rank == 0:
        plan = replace(plan, device="cuda:0", n_gpu=1, backend="nccl")
        place = {**plan.place(), "host": "here", "kind": "cuda", "backend": "nccl", "identity": "a GPU"}
        group._describe_place = lambda plan: place
    with pytest.raises(DeviceError, match="rank 0 is on cuda with nccl, rank 1 on cpu with gloo"):
        group._form_group(plan, timedelta(seconds=30))


def test_ranks_on_two_kinds_of_devices_end_at_once() -> None:
    run_distributed_test(meet_on_two_kinds_of_devices, 2, timeout=60)
