"""When the baseline of a run is fitted: at its end, or beside the training where devices leave cores idle."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Self

from classify.distributed.world import World
from classify.evaluation.baseline import Baseline
from classify.launch.launcher import available_cores
from classify.tasks.baseline_job import BaselineJob, RunningJob
from classify.training.inputs import RunInputs


class BaselineFit:
    """Fits the baseline in another process while the block runs if `beside`, else in this one when it is wanted."""

    def __init__(self, inputs: RunInputs, *, beside: bool):
        self._inputs, self._beside = inputs, beside
        self._running: RunningJob | None = None

    def __enter__(self) -> Self:
        if self._beside:
            with contextlib.suppress(OSError):  # no room for the texts, or for a process
                self._running = _make_job(self._inputs).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running is not None:
            self._running.end()

    def result(self) -> Baseline:
        """Return the baseline, once. Raises ValueError if the training texts have no words, and MemoryError."""
        return _make_job(self._inputs).result() if self._running is None else self._running.result()


def has_idle_cores(world: World) -> bool:
    """Return whether this machine has cores that no process trains on."""
    return not world.accelerator.synchronous and available_cores() > world.plan.launch.local_world_size


def _make_job(inputs: RunInputs) -> BaselineJob:
    splits, text = inputs.splits, inputs.splits.columns.text
    has_folds = splits.scored is splits.train
    return BaselineJob(
        task=inputs.task,
        texts=splits.train.texts(text),
        targets=splits.train.targets,
        scored_texts=[] if has_folds else splits.scored.texts(text),
        scored_targets=splits.scored.targets,
        folds=splits.folds if has_folds else None,
        seed=inputs.config.training.seed,
    )
