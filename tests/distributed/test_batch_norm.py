"""BatchNorm over ranks: 2 processes with 2 rows each have the statistics, and the weights, of 1 process with 4."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import tiny
from tests.distributed.processes import run_group

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Weights, buffers and logits by "way-processes-rows of a step"."""
    folder = tmp_path_factory.mktemp("norms")
    model = tiny.make_model(folder / "model", spread=0.1)
    for way, world in (("alone", 1), ("alone", 2), ("synchronised", 2), ("synchronised", 4)):
        worker = ["-m", "tests.distributed.batch_norm_worker", str(model), str(folder), way]
        run_group(world, worker, cwd=folder)
    return {path.stem: dict(np.load(path)) for path in folder.glob("*.npz")}


STATISTICS = ("classifier.0.running_mean", "classifier.0.running_var", "classifier.0.num_batches_tracked", "logits")


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference of two runs: of all weights together, of each statistic, and of the logits."""
    assert set(one) == set(other)
    parts = [[name for name in one if name not in STATISTICS], *([name] for name in STATISTICS)]
    joined = [[np.concatenate([run[name].ravel() for name in part]) for part in parts] for run in (one, other)]
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(*joined, strict=True))


@pytest.mark.parametrize("world", [2, 4])
def test_synchronised_processes_are_one(results: dict[str, dict[str, Any]], world: int) -> None:
    """Of a step of three rows the ranks have different numbers, and with four ranks one has none."""
    # Six steps divide by the small variances of three rows each, which enlarges rounding.
    for rows, bound in ((8, 1e-5), (4, 1e-5), (3, 1e-4)):
        assert difference(results[f"synchronised-{world}-{rows}"], results[f"alone-1-{rows}"]) < bound


def test_without_it_each_rank_has_its_own_statistics(results: dict[str, dict[str, Any]]) -> None:
    assert difference(results["alone-2-8"], results["alone-1-8"]) > 1e-3
