"""Fit a run's baseline, here or in another process.

The other process gets the job as JSON by its standard input and answers in JSON; nothing is unpickled. It imports no
torch, and the script that trains is not imported again.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from classify.evaluation.baseline import Baseline, cross_validate_baseline
from classify.launch.spawn import make_parent_death_hook
from classify.tasks.base import Task
from classify.tasks.registry import task_of

_ROOT = Path(__file__).resolve().parent.parent.parent
# The package is looked for last, and nothing in the working folder.
_PROGRAM = f"import sys; sys.path.append({str(_ROOT)!r}); from classify.tasks.baseline_job import main; main()"


@dataclass(frozen=True)
class BaselineJob:
    """What the baseline is fitted on and scored by: further rows or, with `folds` (rows,), each row by the others."""

    task: Task
    texts: list[str]
    targets: npt.NDArray[Any]
    scored_texts: list[str]
    scored_targets: npt.NDArray[Any]
    folds: npt.NDArray[np.int64] | None
    seed: int

    def result(self) -> Baseline:
        """Fit and score, in this process. Raises ValueError if the training texts have no words, and MemoryError."""
        fit = functools.partial(self.task.baseline, seed=self.seed)
        if self.folds is not None:
            return cross_validate_baseline(self.texts, self.targets, self.folds, fit, self.task.metrics)
        return fit(self.texts, self.targets, self.scored_texts, self.scored_targets)

    def start(self) -> RunningJob:
        """Run in another process from now on, which ends with this one."""
        task = {"name": self.task.name, "labels": self.task.labels, "settings": self.task.settings()}
        with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
            _write({**vars(self), "task": task}, file)
            file.seek(0)
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM],
                stdin=file,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=make_parent_death_hook(),
            )
        return RunningJob(process)


@dataclass(frozen=True)
class RunningJob:
    """A job in another process."""

    process: subprocess.Popen[bytes]

    def result(self) -> Baseline:
        """Wait for the baseline. Raises what `BaselineJob.result` raises; MemoryError where the process was killed."""
        output, errors = self.process.communicate()
        if self.process.returncode < 0:
            raise MemoryError(f"its process was ended by signal {-self.process.returncode}")
        if self.process.returncode:
            raise RuntimeError(f"the process of the baseline failed:\n{errors.decode(errors='replace')}")
        found = _read(json.loads(output))
        if "error" in found:
            raise ValueError(found["error"])
        return Baseline(**found)

    def end(self) -> None:
        """End the process if it still runs."""
        self.process.kill()
        self.process.communicate()


def _write(values: dict[str, Any], file: IO[str]) -> None:
    """Write values as JSON, arrays as their type and a list; floats keep every bit."""
    lists = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}
    types = {name: value.dtype.str for name, value in values.items() if isinstance(value, np.ndarray)}
    json.dump({**lists, "types": types}, file)


def _read(values: dict[str, Any]) -> dict[str, Any]:
    types = values.pop("types")
    return values | {name: np.array(values[name], dtype=kind) for name, kind in types.items()}


def main() -> None:
    """Run the job on standard input; write the baseline, or its error, to standard output."""
    values = _read(json.load(sys.stdin))
    job = BaselineJob(**{**values, "task": task_of(**values["task"])})
    try:
        found = dataclasses.asdict(job.result())
    except ValueError as error:
        found = {"error": str(error)}
    _write(found, sys.stdout)
