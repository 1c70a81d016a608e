"""20,000 steps in three processes; the short form, 250 in one."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import classify
from tests.support import tiny
from tests.support.processes import SCRIPT, unlaunched
from tests.support.runs import make_config

STEPS = 20_000


def words(table: Path, model: Path, *more: str) -> list[str]:
    return [
        "--data", str(table), "--model", str(model), "--cpu", "--contrastive-steps", "0", "--report-to", "none", *more,
    ]  # fmt: skip


class Watch(classify.TrainerCallback):
    """Memory and open files of this process, by step."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[int, int]] = {}

    def on_save(self, state: classify.StepState, folder: Path) -> None:
        gc.collect()
        process = psutil.Process()
        self.seen[state.step] = process.memory_full_info().uss, process.num_fds()


@pytest.mark.slow
def test_memory_and_files_stay_flat_in_one_process(model_folder: Path, tmp_path: Path) -> None:
    table, watch = tiny.write_table(tmp_path / "my.csv", tiny.table_rows(600)), Watch()
    config = make_config(
        model_folder, table, tmp_path / "out", max_steps=250, batch_size=4, save_steps=25, logging_steps=1_000
    )
    folder = classify.train(config, callbacks=[watch])
    first, last = watch.seen[100], watch.seen[250]
    assert last[0] < 1.05 * first[0], f"a step that keeps 200 kB is seen: {watch.seen}"
    assert last[1] < first[1] + 3, f"a file per checkpoint is seen: {watch.seen}"
    assert (folder / "train_log.jsonl").stat().st_size < 100_000


@pytest.mark.torture
@pytest.mark.timeout(1500)
def test_memory_and_files_stay_flat(model_folder: Path, tmp_path: Path, figure: Callable[[str], None]) -> None:
    """From a fifth of the steps on; each rank's own memory, open files, and the bytes of the log per step."""
    table = tiny.write_table(tmp_path / "my.csv", tiny.table_rows(1_200))
    more = ["--nproc", "3", "--max-steps", str(STEPS), "--save-steps", "1000", "--batch-size", "6"]
    more += ["--logging-steps", "1000", "--output-dir", "out"]
    with (tmp_path / "log.txt").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, SCRIPT, *words(table, model_folder, *more)],
            cwd=tmp_path,
            env=unlaunched(),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    seen: dict[int, list[tuple[int, int, int]]] = {}  # of each step: memory, open files, threads, over the ranks
    try:
        while process.poll() is None:
            time.sleep(2)
            steps = [int(path.name[5:]) for path in (tmp_path / "out" / "checkpoints").glob("step-*")]
            try:
                ranks = [
                    rank for rank in psutil.Process(process.pid).children(recursive=True) if rank.num_threads() > 1
                ]
                if steps and max(steps) not in seen:
                    seen[max(steps)] = [
                        (rank.memory_full_info().uss, rank.num_fds(), rank.num_threads()) for rank in ranks
                    ]
            except psutil.Error:
                continue
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, (tmp_path / "log.txt").read_text()[-2000:]
    middle = [step for step in sorted(seen) if STEPS / 5 <= step < STEPS]
    first, last = (seen[step] for step in (middle[0], middle[-1]))
    memory = [sum(rank[0] for rank in ranks) for ranks in (first, last)]
    assert len(first) == len(last) >= 3
    assert memory[1] < 1.02 * memory[0], seen
    assert [rank[1] for rank in first] == [rank[1] for rank in last], seen
    lines = (tmp_path / "out" / "train_log.jsonl").stat().st_size
    figure(
        f"{STEPS:,} steps of 3 ranks: memory {memory[0] / 2**20:.0f} and {memory[1] / 2**20:.0f} MiB at steps "
        f"{middle[0]:,} and {middle[-1]:,}, {last[0][1]} open files a rank, log {lines / 2**10:.0f} KiB"
    )
    assert lines < 100 * STEPS
