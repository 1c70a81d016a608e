"""A process that calls the library is left as it was found."""

from __future__ import annotations

import contextlib
import csv
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import classify
from classify.errors import DeviceError
from tests.support import tiny
from tests.support.processes import free_port, run_distributed_test
from tests.support.runs import make_config

TEXTS = [text for text, _ in tiny.table_rows(8, seed=5)]


@pytest.fixture(scope="module")
def trained(model_folder: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("own") / "out"
    return classify.train(make_config(model_folder, table, out, max_steps=1))


@pytest.fixture
def _unusual_settings() -> Iterator[None]:
    """Settings that somebody chose, each other than the default."""
    longest, threads = csv.field_size_limit(4_000), torch.get_num_threads()
    products = torch.backends.cuda.matmul.fp32_precision
    torch.set_num_threads(threads + 1)
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # after which get_float32_matmul_precision raises
    transformers.utils.logging.set_verbosity_info()
    transformers.utils.logging.enable_progress_bar()
    yield
    csv.field_size_limit(longest)
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.fp32_precision = products


def settings() -> dict[str, Any]:
    logging = transformers.utils.logging
    return {
        # scikit-learn sets KMP_... when it is imported.
        "environment": {name: value for name, value in os.environ.items() if not name.startswith("KMP_")},
        "longest field": csv.field_size_limit(),
        "threads": torch.get_num_threads(),
        "products": (torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision),
        "verbosity": logging.get_verbosity(),
        "bars": logging.is_progress_bar_enabled(),
        "random numbers": torch.get_rng_state().tolist(),
    }


@pytest.mark.usefixtures("_unusual_settings")
def test_a_training_and_a_prediction_restore_all_settings(model_folder: Path, table: Path, tmp_path: Path) -> None:
    before = settings()
    place = {"rank": 0, "world_size": 1, "init_method": f"tcp://127.0.0.1:{free_port()}"}
    folder = classify.train(make_config(model_folder, table, tmp_path / "out", max_steps=1), **place)
    assert settings() == before
    with classify.load(folder, use_cpu=True) as run:
        run.predict(TEXTS)
    assert settings() == before


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


MODES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


@pytest.fixture(scope="module")
def by_precision(model_folder: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs in torch's own modes."""
    folder = tmp_path_factory.mktemp("modes")
    return {
        name: classify.train(make_config(model_folder, table, folder / name, max_steps=6, precision=name))
        for name in ("fp32", "bf16")
    }


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("mode", list(MODES))
def test_the_callers_modes_change_nothing(
    mode: str, precision: str, by_precision: dict[str, Path], model_folder: Path, table: Path, tmp_path: Path
) -> None:
    config = make_config(model_folder, table, tmp_path / "out", max_steps=6, precision=precision)
    with MODES[mode]():
        before = torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_autocast_enabled("cpu")
        folder = classify.train(config)
        with classify.load(folder, use_cpu=True) as run:
            probabilities = run.predict_proba(TEXTS)
        assert (torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_autocast_enabled("cpu")) == before
    with classify.load(by_precision[precision], use_cpu=True) as run:
        assert np.array_equal(run.predict_proba(TEXTS), probabilities)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_training_leaves_the_random_numbers_of_a_gpu(model_folder: Path, table: Path, tmp_path: Path) -> None:
    torch.cuda.manual_seed(7)
    before = torch.cuda.get_rng_state()
    classify.train(make_config(model_folder, table, tmp_path / "out", max_steps=1, use_cpu=False))
    assert torch.equal(torch.cuda.get_rng_state(), before)


def predict_on_one_rank(folder: Path) -> None:
    """In a job whose default group is somebody's: one rank predicts, the others do not wait for it."""
    torch.distributed.init_process_group("gloo")
    group = torch.distributed.group.WORLD
    if torch.distributed.get_rank() == 1:
        with classify.load(folder, use_cpu=True) as run:
            assert len(run.predict(TEXTS)) == len(TEXTS)
        with pytest.raises(DeviceError, match="already in a process group"):
            classify.load(folder, use_cpu=True, distributed=True).predict(TEXTS)
    assert torch.distributed.group.WORLD is group
    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    assert total.item() == 2
    torch.distributed.destroy_process_group()


def test_a_prediction_in_somebodys_job_is_local(trained: Path) -> None:
    run_distributed_test(predict_on_one_rank, 2, trained)


def predict_in_a_fork(run: classify.Run, results: Any) -> None:
    results.put(run.predict(TEXTS * 20)[: len(TEXTS)])


def train_in_a_fork(model: Path, table: Path, out: Path, results: Any) -> None:
    results.put(classify.train(make_config(model, table, out, max_steps=2)))


def predict_and_fork(trained: Path, model: Path, table: Path, out: Path) -> None:
    """In a process with several threads: what it has computed must not stop its forks."""
    torch.set_num_threads(4)
    context = multiprocessing.get_context("fork")
    with classify.load(trained, use_cpu=True) as run:
        expected = run.predict(TEXTS * 20)[: len(TEXTS)]
        for target, arguments in ((predict_in_a_fork, (run,)), (train_in_a_fork, (model, table, out))):
            results = context.Queue()
            child = context.Process(target=target, args=(*arguments, results), daemon=True)
            child.start()
            try:
                assert results.get(timeout=60) in (expected, out)
                child.join(30)
                assert child.exitcode == 0
            finally:
                child.kill()
        assert run.predict(TEXTS) == expected, "the parent computes as before"


@pytest.mark.skipif(sys.platform == "win32", reason="fork(2)")
def test_a_fork_of_a_process_that_has_predicted(trained: Path, model_folder: Path, table: Path, tmp_path: Path) -> None:
    run_distributed_test(predict_and_fork, 1, trained, model_folder, table, tmp_path / "out")


class Stream:
    """What a notebook or a service may put in the place of a standard stream."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text


@pytest.mark.parametrize("out", [None, Stream()])
def test_standard_streams_may_be_replaced_or_missing(
    out: Stream | None, model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", out)
    classify.train(make_config(model_folder, table, tmp_path / "out", max_steps=1))
    assert out is None or "result:" in out.text
