"""Whole runs on NPUs: torch_npu's stand-in is a real torch device, so that everything but the chip is the real thing.

One process, two machines with two NPUs each, too little memory, half precision, layers spread over two of them.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.comparison import SETTINGS, difference
from tests.conftest import run_command
from tests.distributed.processes import ROOT, run_group
from tests.train.test_run import read_json

# With the commands of this environment, of which ninja may be one.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(
        not (shutil.which("g++") and shutil.which("ninja", path=PATH)),
        reason="compiling the stand-in takes g++ and ninja",
    ),
]

STANDIN = ROOT / "tests" / "standins" / "npu"


@pytest.fixture(scope="session")
def extensions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the compiled stand-in lies; the first import makes it, before several processes would wait for it."""
    folder = tmp_path_factory.mktemp("extensions")
    found = run_command(folder, "-c", "import torch; print(torch.accelerator.current_accelerator())",
                        timeout=400, TORCH_EXTENSIONS_DIR=str(folder), PYTHONPATH=str(STANDIN), PATH=PATH)  # fmt: skip
    assert found.stdout == "npu\n", found.stderr
    return folder


@pytest.fixture
def train(
    extensions: Path, model_folder: Path, table: Path, tmp_path: Path
) -> Callable[..., tuple[Path, str, list[dict[str, Any]]]]:
    """Train in a folder; returns it, what was printed, and what each process asked of which device."""
    (tmp_path / "settings.yaml").write_text(SETTINGS)

    def run(name: str, *flags: str, processes: int = 0, machines: int = 1, **environment: str) -> Any:
        log = tmp_path / f"{name}.log"
        words = ["--data", str(table), "--model", str(model_folder), "--epochs", "1", "--output-dir", name, *flags]
        words = [str(ROOT / "run_classify.py"), "--config", "settings.yaml", *words]
        environment = {
            "TORCH_EXTENSIONS_DIR": str(extensions),
            "NPU_STANDIN_LOG": str(log),
            "PATH": PATH,
            "PYTHONPATH": os.pathsep.join([str(STANDIN), str(ROOT)]),
            **environment,
        }
        if processes:
            printed = "".join(run_group(processes, words, cwd=tmp_path, machines=machines, **environment))
        else:
            done = run_command(tmp_path, *words, **environment)
            assert done.returncode == 0, done.stderr
            printed = done.stdout
        calls = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return tmp_path / name, printed, calls

    return run


@pytest.fixture(scope="module")
def on_cpu(model_folder: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run on the CPU."""
    tmp_path = tmp_path_factory.mktemp("cpu")
    (tmp_path / "settings.yaml").write_text(SETTINGS)
    words = ["--data", str(table), "--model", str(model_folder), "--epochs", "1", "--output-dir", "cpu", "--cpu"]
    done = run_command(tmp_path, str(ROOT / "run_classify.py"), "--config", "settings.yaml", *words)
    assert done.returncode == 0, done.stderr
    return tmp_path / "cpu"


def test_one_process_takes_one_and_says_so(train: Callable[..., Any], on_cpu: Path) -> None:
    folder, printed, calls = train("one")
    assert "device: npu:0: " in printed
    assert "one of 2 npu devices is used; --nproc 2" in printed
    assert [place["device"] for place in read_json(folder / "run.json")["topology"]] == ["npu:0"]
    (work,) = calls
    assert work["operations"][0] > 1000
    assert work["operations"][1] == 0
    assert difference(folder, on_cpu) < 1e-5


def test_two_machines_with_two_npus_each(train: Callable[..., Any], on_cpu: Path) -> None:
    """npu:LOCAL_RANK and hccl, chosen as on the real machines; weights as on one CPU."""
    folder, printed, calls = train("four", processes=4, machines=2)
    assert "4 processes (DistributedDataParallel, hccl)" in printed
    record = read_json(folder / "run.json")
    places = [(place["machine"], place["local_rank"], place["device"]) for place in record["topology"]]
    assert places == [(0, 0, "npu:0"), (0, 1, "npu:1"), (1, 0, "npu:0"), (1, 1, "npu:1")]
    assert len(calls) == 4
    for work in calls:
        own = int(work["LOCAL_RANK"])
        assert work["operations"][own] > 1000
        assert work["operations"][1 - own] == 0
    assert difference(folder, on_cpu) < 1e-5


def test_half_precision_with_a_gradient_scaler(train: Callable[..., Any], on_cpu: Path) -> None:
    """fp16 exists on devices alone, so this is where its scaler is at work: autocast, and fp32 masters."""
    for level, name in (("O1", "fp16"), ("O2", "fp16 weights, fp32 masters")):
        folder, printed, _ = train(level, "--opt-level", level)
        assert f"precision: {name} - --opt-level {level}" in printed
        scale = read_json(next((folder / "checkpoints").iterdir()) / "state.json")["scaler"]["scale"]
        assert scale >= 1024
        assert 0 < difference(folder, on_cpu) < 0.02


def test_too_little_memory_cuts_the_micro_batches(train: Callable[..., Any], on_cpu: Path) -> None:
    _, _, (plenty,) = train("plenty")
    folder, printed, (little,) = train("little", NPU_STANDIN_MEMORY=str(int(0.8 * plenty["peaks"][0])))
    assert little["peaks"][0] < plenty["peaks"][0]
    assert "out of memory with the rows of a step at once; they are cut into" in printed
    assert difference(folder, on_cpu) < 1e-5


def test_layers_spread_over_two_npus(train: Callable[..., Any], on_cpu: Path) -> None:
    """One process, half of the pieces on each device; together they hold what one alone could not."""
    _, _, (alone,) = train("alone")
    room = str(int(0.8 * alone["peaks"][0]))
    folder, printed, (work,) = train(
        "spread", "--strategy", "model", "--device-memory", "0.002", NPU_STANDIN_MEMORY=room
    )
    assert "device: npu:0, npu:1 (model parallel)" in printed
    assert " on npu:0, " in printed
    assert min(work["operations"]) > 500
    assert difference(folder, on_cpu) < 1e-5
