"""A rank that stalls is named, with the step and the place, and the run ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from classify.distributed.watchdog import _FOREIGN, _OWN, _WAITS, Watchdog, _Watch
from classify.launch.launcher import Launch
from tests.support.processes import ROOT, SCRIPT, forked_python, free_port, nproc_command, run_python, unlaunched
from tests.support.runs import read_json

pytestmark = pytest.mark.distributed

SECONDS = 3
# One rank stalls in the middle of a step, at the draw of its dropout.
STALLING = """
import os

places = [os.environ.get(name) for name in ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")]
if next((place for place in places if place), "0") == {rank!r}:
    import ctypes, signal, time
    import numpy

    class SeedSequence(numpy.random.SeedSequence):
        calls = 0

        def __init__(self, *args):
            SeedSequence.calls += 1
            if SeedSequence.calls == 40:
                open({report!r}, "w").write(str(time.time()))
                wait_for_nothing()
            super().__init__(*args)

    def wait_for_nothing():
        {stall}

    numpy.random.SeedSequence = SeedSequence
"""
WAYS = {
    "sleep": "time.sleep(1000)",
    "loop": "exec('while True: pass')",
    "lock": "ctypes.PyDLL(None).sleep(1000)",  # without releasing the interpreter's lock
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
}


def train(
    start: list[str], table: Path, model: Path, folder: Path, rank: str, way: str, *more: str, **environment: str
) -> tuple[int, str, float]:
    """Exit code, errors, and the seconds from the stall to the end of a run of which one rank stalls."""
    (folder / "spy").mkdir()
    report = folder / "stalled-at"
    code = STALLING.format(rank=rank, report=str(report), stall=WAYS[way])
    (folder / "spy" / "sitecustomize.py").write_text(code)
    words = [
        "--data", str(table), "--model", str(model), "--cpu", "--contrastive-steps", "0", "--report-to", "none",
        "--batch-size", "16", "--epochs", "500", "--output-dir", "out", "--stall-seconds", str(SECONDS), *more,
    ]  # fmt: skip
    process = subprocess.Popen(
        [*start, *words],
        cwd=folder,
        env={
            **unlaunched(),
            "PYTHONPATH": os.pathsep.join([str(folder / "spy"), str(ROOT)]),
            "PYTHON_EXEC": forked_python(),
            **environment,
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, err = process.communicate(timeout=120)
        ended = time.time()
        assert not processes_in(folder)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, err, ended - float(report.read_text())


def processes_in(folder: Path) -> list[psutil.Process]:
    """Processes whose working folder this is: workers lead sessions of their own."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(folder):
                found.append(process)
    return found


@pytest.mark.parametrize(
    ("rank", "way"),
    [
        ("1", "loop"),
        *(
            pytest.param(rank, way, marks=pytest.mark.slow)
            for rank in ("0", "1")
            for way in WAYS
            if (rank, way) != ("1", "loop")
        ),
    ],
)
def test_a_rank_that_stalls_is_named(table: Path, model_folder: Path, tmp_path: Path, rank: str, way: str) -> None:
    code, err, seconds = train(nproc_command("--nproc", "2"), table, model_folder, tmp_path, rank, way)
    assert code == 1, err
    assert err.count("\n") == 1, err
    if (rank, way) == ("0", "stopped"):
        assert err.startswith("error: rank 0 has stalled: the store that it serves does not answer")
    else:
        assert re.match(rf"error: rank {rank} has stalled in step \d+: ", err), err
        why = {"lock": "holds the interpreter's lock: ", "stopped": "does not respond"}.get(way, "")
        assert why in err
        if way != "stopped":
            assert re.search(r"wait_for_nothing \(sitecustomize.py:\d+\) < __init__ ", err), err
        if rank == "1":
            assert read_json(tmp_path / "out" / "run.json")["status"] == "failed"
    assert f"(no progress for {SECONDS} s; --stall-seconds); continue with --resume." in err
    assert SECONDS - 1 < seconds < SECONDS + 25  # of which the launcher gives a stopped process 15


@pytest.mark.slow
def test_a_restarted_job_survives_a_rank_that_stalls_once(table: Path, model_folder: Path, tmp_path: Path) -> None:
    """torchrun starts all again; the step at which rank 1 stalled is not reached by a count that begins anew."""
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    more = ["--resume", "--save-steps", "10", "--max-steps", "60"]
    code, err, _ = train(
        [*start, "--master-port", str(free_port()), SCRIPT], table, model_folder, tmp_path, "1", "loop", *more
    )
    assert code == 0, err
    assert len(re.findall(r"^error: rank 1 has stalled in step \d+: ", err, re.MULTILINE)) == 1
    assert read_json(tmp_path / "out" / "run.json")["status"] == "finished"


@pytest.mark.slow
def test_one_process_watches_itself(table: Path, model_folder: Path, tmp_path: Path) -> None:
    start = [sys.executable, SCRIPT]
    code, err, seconds = train(start, table, model_folder, tmp_path, "0", "sleep")
    assert code == 1
    assert re.fullmatch(r"error: the run has stalled in step \d+: wait_for_nothing .* continue with --resume.\n", err)
    assert SECONDS - 1 < seconds < SECONDS + 5


@pytest.mark.slow
def test_a_suspended_job_continues(table: Path, model_folder: Path, tmp_path: Path) -> None:
    """Ctrl-Z, or a scheduler that suspends jobs, stops all processes for longer than the limit."""
    words = [
        "--data", str(table), "--model", str(model_folder), "--cpu", "--contrastive-steps", "0", "--report-to", "none",
        "--max-steps", "150", "--output-dir", "out", "--stall-seconds", str(SECONDS), "--nproc", "2",
    ]  # fmt: skip
    with (tmp_path / "log.txt").open("w") as log:
        process = subprocess.Popen(
            nproc_command(*words), cwd=tmp_path, env=unlaunched(), stdout=log, stderr=log, start_new_session=True
        )
    try:
        while "epoch 2 " not in (tmp_path / "log.txt").read_text():
            assert process.poll() is None, (tmp_path / "log.txt").read_text()
            time.sleep(0.05)
        everything = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for one in everything:
            one.suspend()
        time.sleep(2 * SECONDS)
        for one in everything:
            one.resume()
        assert process.wait(120) == 0, (tmp_path / "log.txt").read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert "stalled" not in (tmp_path / "log.txt").read_text()


def test_what_is_slow_has_not_stalled(tmp_path: Path) -> None:
    """Steps within the limit, a first one of more, and what comes between steps; a step without end has."""
    program = (
        "import time\n"
        "from classify.distributed.watchdog import Watchdog\n"
        "from classify.launch.process_settings import prepare_process\n"
        "prepare_process()\n"
        "watchdog = Watchdog(2)\n"
        "for step in range(3):\n"
        "    with watchdog.watch('step', step):\n"
        "        time.sleep(0.5 if step else 3)\n"
        "        watchdog.beat()\n"
        "        time.sleep(0.5)\n"
        "    time.sleep(3 if step == 1 else 0)\n"
        "print('done', flush=True)\n"
        "with watchdog.watch('step', 3):\n"
        "    time.sleep(60)\n"
    )
    (tmp_path / "slow.py").write_text(program)
    done = run_python(tmp_path, str(tmp_path / "slow.py"), PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stdout) == (1, "done\n"), done.stderr
    assert done.stderr.startswith("error: the run has stalled in step 3: <module> (slow.py:"), done.stderr


@pytest.mark.parametrize(
    ("ages", "waits", "named"),
    [
        ((9, 9), (_WAITS, _OWN), "1"),
        ((9, 9), (_FOREIGN, _OWN), "0"),
        ((9, 9), (_WAITS, _WAITS), "01"),
        ((9, 4), (_OWN, _WAITS), None),  # one waits for a result of its device, and the other computes
        ((9, 4), (_WAITS, _FOREIGN), None),
        ((9, None), (_WAITS, None), "1"),
    ],
)
def test_who_has_stalled(ages: tuple[int | None, ...], waits: tuple[int | None, ...], named: str | None) -> None:
    watchdog = Watchdog(5, Launch(world_size=2))
    watchdog.seconds = 5  # it is 0 outside the program
    watch = _Watch(watchdog, 0, threading.Event())
    answers: dict[int, Any] = {
        rank: {"tick": 1, "phase": f"step {rank}", "age": age, "waits": wait, "held": False, "stack": ["f (a.py:1)"]}
        for rank, (age, wait) in enumerate(zip(ages, waits, strict=True))
        if age is not None
    }
    message = watch._describe(answers, [rank for rank, age in enumerate(ages) if age is None])
    assert re.findall(r"rank (\d) has stalled", message or "") == list(named or "")
    assert watch._describe({rank: answer | {"held": True} for rank, answer in answers.items()}, []) is None


def test_a_late_store_says_nothing_of_a_rank() -> None:
    """A call that ends in a later tick is not that tick's, and one that fails is none."""
    watch = _Watch(Watchdog(5, Launch(world_size=2)), 0, threading.Event())
    watch.silence = 0.05
    go_on = threading.Event()
    assert not watch._within_time(go_on.wait)
    go_on.set()
    assert not watch._within_time(lambda: None)  # the first one ends, this one was not made
    assert watch._within_time(lambda: None)

    def fail() -> None:
        raise RuntimeError("connection reset")

    assert not watch._within_time(fail)
    assert watch._describe({}, [0, 1]) is None


def test_no_thread_where_nobody_watches() -> None:
    watchdog = Watchdog(0)
    with watchdog.watch("step", 1):
        watchdog.beat()
    assert watchdog._thread is None
