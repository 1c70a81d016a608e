"""Memory and open files of a long run stay flat."""

from __future__ import annotations

import gc
from pathlib import Path

import psutil
import pytest

import classify
from tests.support import tiny
from tests.support.runs import make_config


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
