"""Whole runs on vendors' accelerators: each stand-in is a real torch device, so all but the chip is the real thing.

On NPUs one process, two machines with two each, too little memory, half precision, layers spread over two of them; on
CUDA devices two processes, and DataParallel.
"""

from __future__ import annotations

import csv
import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from classify.prediction.predictor import load_classifier
from tests.support.comparison import SETTINGS, difference, drift
from tests.support.processes import SCRIPT, run, run_python, run_python_ranks
from tests.support.runs import read_json
from tests.support.standins import needs_compiler, standin_environment, standin_python

pytestmark = [pytest.mark.distributed, needs_compiler, pytest.mark.slow]


Trained = tuple[Path, str, list[dict[str, Any]]]


@pytest.fixture
def train(model_folder: Path, table: Path, tmp_path: Path) -> Callable[..., Trained]:
    """Train in the test's folder, see `train_in`."""
    return functools.partial(train_in, tmp_path, model_folder, table)


@pytest.fixture(scope="module")
def alone(model_folder: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """What a process by itself, with all the memory it likes, comes to on an NPU; it imports torch itself."""
    return train_in(tmp_path_factory.mktemp("npu"), model_folder, table, "one", interpreter=sys.executable)


def train_in(
    place: Path,
    model_folder: Path,
    table: Path,
    name: str,
    *flags: str,
    kind: str = "npu",
    processes: int = 0,
    machines: int = 1,
    interpreter: str | None = None,
    **environment: str,
) -> Trained:
    """Train; returns the output folder, what was printed, and what each process asked of which device."""
    (place / "settings.yaml").write_text(SETTINGS)
    log = place / f"{name}.log"
    words = [SCRIPT, "--config", "settings.yaml", "--data", str(table), "--model", str(model_folder), "--epochs", "1"]
    words += ["--output-dir", name, "--verbose", *flags]
    environment = {**standin_environment(kind), "STANDIN_LOG": str(log), **environment}
    interpreter = interpreter or standin_python(kind)
    if processes:
        printed = "".join(
            run_python_ranks(processes, *words, folder=place, machines=machines, interpreter=interpreter, **environment)
        )
    else:
        done = run_python(place, *words, interpreter=interpreter, **environment)
        assert done.returncode == 0, done.stderr
        printed = done.stdout
    calls = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return place / name, printed, calls


@pytest.fixture(scope="module")
def on_cpu(model_folder: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run on the CPU."""
    tmp_path = tmp_path_factory.mktemp("cpu")
    (tmp_path / "settings.yaml").write_text(SETTINGS)
    words = ["--data", str(table), "--model", str(model_folder), "--epochs", "1", "--output-dir", "cpu", "--cpu"]
    done = run(tmp_path, "run_classify.py", "--config", "settings.yaml", *words)
    assert done.returncode == 0, done.stderr
    return tmp_path / "cpu"


def test_one_process_takes_one_and_says_so(alone: Trained, on_cpu: Path) -> None:
    folder, printed, calls = alone
    assert "device: npu:0 (" in printed
    assert "one of 2 npu devices is used; --nproc 2" in printed
    assert [place["device"] for place in read_json(folder / "run.json")["topology"]] == ["npu:0"]
    (work,) = calls
    assert work["operations"][0] > 1000
    assert work["operations"][1] == 0
    assert difference(folder, on_cpu) < 1e-5


def test_two_machines_with_two_npus_each(train: Callable[..., Any], on_cpu: Path) -> None:
    """npu:LOCAL_RANK and hccl, chosen as on the real machines; weights as on one CPU."""
    folder, printed, calls = train("four", processes=4, machines=2)
    assert "4 processes with DistributedDataParallel over hccl" in printed
    record = read_json(folder / "run.json")
    places = [(place["machine"], place["local_rank"], place["device"]) for place in record["topology"]]
    assert places == [(0, 0, "npu:0"), (0, 1, "npu:1"), (1, 0, "npu:0"), (1, 1, "npu:1")]
    assert len(calls) == 4
    for work in calls:
        own = int(work["LOCAL_RANK"])
        assert work["operations"][own] > 1000
        assert work["operations"][1 - own] == 0
    assert difference(folder, on_cpu) < 1e-5


def test_two_processes_on_cuda_devices(train: Callable[..., Any], on_cpu: Path) -> None:
    folder, printed, calls = train("two", kind="cuda", processes=2)
    assert "2 processes with DistributedDataParallel over nccl" in printed
    devices = ["cuda:0", "cuda:1"]
    assert [place["device"] for place in read_json(folder / "run.json")["topology"]] == devices
    used = {int(work["LOCAL_RANK"]): work["operations"] for work in calls}
    assert sorted(used) == [0, 1]
    assert all(used[rank][int(devices[rank][-1])] > 1000 for rank in used)
    assert difference(folder, on_cpu) < 1e-5


# As SLURM starts tasks with --gpus-per-task=1: each sees one device, whatever its local rank.
BOUND = """
import os, runpy, sys
if sys.argv[1] == "bound":
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]
del sys.argv[:2]  # this script, and that word
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(("bound", "code"), [("bound", 0), ("free", 2)])
def test_tasks_that_see_one_device_each(model_folder: Path, table: Path, tmp_path: Path, bound: str, code: int) -> None:
    """It is theirs, unless it is the same one for two of them: then they say so before NCCL does in its own way."""
    flags = ["--data", str(table), "--model", str(model_folder), "--max-steps", "2", "--report-to", "none"]
    (tmp_path / "bound.py").write_text(BOUND)
    words = ["bound.py", bound, SCRIPT, *flags, "--output-dir", "out"]
    environment = {**standin_environment("cuda"), "STANDIN_DEVICES": "1"}
    outputs = run_python_ranks(
        2, *words, folder=tmp_path, timeout=90, code=code, interpreter=standin_python("cuda"), **environment
    )
    if code == 0:
        record = read_json(tmp_path / "out" / "run.json")
        assert [place["device"] for place in record["topology"]] == ["cuda:0", "cuda:0"]
        return
    (line,) = {line for output in outputs for line in output.splitlines() if line.startswith("error: ")}
    assert line.startswith(
        "error: rank 0 and rank 1 are on the same device (cuda:0 of one machine), which nccl refuses"
    )
    assert "--ddp-backend gloo" in line
    assert not (tmp_path / "out").exists()


def test_data_parallel_on_two_cuda_devices(train: Callable[..., Any], on_cpu: Path) -> None:
    """One process, local rank -1: torch's own DataParallel copies the model to both, where it is asked to."""
    folder, printed, (work,) = train("both", "--strategy", "dp", kind="cuda")
    assert "device: cuda:0, 2 devices with DataParallel (local_rank is -1" in printed
    assert "precision: fp32 (full precision, the default on cuda" in printed  # of the Turing generation
    assert min(work["operations"]) > 500
    assert difference(folder, on_cpu) < 1e-5


def test_short_steps_are_computed_on_one_of_two_cuda_devices(train: Callable[..., Any], on_cpu: Path) -> None:
    folder, printed, (work,) = train("one", kind="cuda")
    assert "device: cuda:0 (local_rank is -1; one of 2 cuda devices, since a step has about " in printed
    assert "note: one of 2 cuda devices is used; --nproc 2 (or torchrun) uses all" in printed
    assert "CUDA graphs: off (no flash attention in fp32 " in printed
    assert len([count for count in work["operations"] if count]) == 1
    assert difference(folder, on_cpu) < 1e-5


def test_tf32_on_one_cuda_device(train: Callable[..., Any], on_cpu: Path) -> None:
    folder, printed, (work,) = train("tf32", "--precision", "tf32", kind="cuda", STANDIN_DEVICES="1")
    assert "precision: tf32 (as requested" in printed
    assert work["operations"][0] > 1000
    assert len(work["operations"]) == 1, "there is one device"
    # torch's word for TensorFloat32, in training; the report's explanations are in fp32.
    assert work["products"][0] == "tf32"
    assert difference(folder, on_cpu) < 1e-5


def test_half_precision_with_a_gradient_scaler(train: Callable[..., Any], on_cpu: Path, model_folder: Path) -> None:
    """fp16 exists on devices alone, so this is where its scaler is at work: autocast, and fp32 masters."""
    for level, name in (("O1", "fp16"), ("O2", "fp16 weights, fp32 masters")):
        folder, printed, _ = train(level, "--opt-level", level)
        assert f"precision: {name} (--opt-level {level}" in printed
        scale = read_json(max((folder / "checkpoints").iterdir()) / "state.json")["scaler"]["scale"]
        assert scale >= 1024
        assert 0 < drift(folder, on_cpu, model_folder) < 0.01
        with (folder / "predictions.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        with load_classifier(str(folder), use_cpu=True) as classifier:  # in full precision, as the run's scores are
            given = classifier.probabilities([row["text"] for row in rows])
        assert given.max(axis=1) == pytest.approx([float(row["confidence"]) for row in rows], abs=1e-5)


def test_too_little_memory_cuts_the_micro_batches(train: Callable[..., Any], alone: Trained, on_cpu: Path) -> None:
    _, _, (plenty,) = alone
    folder, printed, (little,) = train("little", STANDIN_MEMORY=str(int(0.8 * plenty["peaks"][0])))
    assert little["peaks"][0] < plenty["peaks"][0]
    assert "out of memory; continuing with 2 micro-batches per step" in printed
    assert difference(folder, on_cpu) < 1e-5


def test_layers_spread_over_two_npus(train: Callable[..., Any], on_cpu: Path) -> None:
    """One process, half of the pieces on each device."""
    folder, printed, (work,) = train("spread", "--strategy", "model")
    assert "device: npu:0, 2 devices with model parallelism" in printed
    assert " on npu:0, " in printed
    assert min(work["operations"]) > 500
    assert difference(folder, on_cpu) < 1e-5
