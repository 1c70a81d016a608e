"""Trackers, the sinks of a run's numbers outside its log: TensorBoard, and those that Accelerate reaches.

TensorBoard is written directly, because a resumed run must cut what an interrupted one had written beyond its
checkpoint.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from classify.errors import InputError

# Names of --report-to, as Accelerate and transformers have them; each needs the package of that name.
PACKAGES = ("tensorboard", "wandb", "mlflow", "comet_ml", "clearml", "aim", "dvclive", "swanlab", "trackio")


def choose_trackers(report_to: str) -> tuple[str, ...]:
    """The trackers by name. Raises InputError for one that is unknown or not installed. Nothing is imported."""
    if report_to == "none":
        return ()
    if report_to == "auto":
        return ("tensorboard",) if _installed("tensorboard") else ()
    if report_to == "all":
        return tuple(name for name in PACKAGES if _installed(name))
    names = tuple(dict.fromkeys(name.strip() for name in report_to.split(",")))
    for name in names:
        if name not in PACKAGES:
            raise InputError(
                f"--report-to must be auto, none, or some of {', '.join(PACKAGES)}, with commas between. "
                f"Got {report_to!r} instead."
            )
        if not _installed(name):
            extra = " (extra tensorboard)" if name == "tensorboard" else ""
            raise InputError(
                f"--report-to {name}: the package {name}{extra} is not installed; pip install {name}, or give none."
            )
    return names


def _installed(name: str) -> bool:
    """Whether a package is installed; a folder of that name, as trackers write, has no code."""
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None


class Sink:
    """Where the numbers of a run go; `Log` opens, writes and closes it on one process."""

    def write(self, part: str, step: int, values: Mapping[str, float | None], epoch: float | None) -> None:
        """Write the scalars of a part ("train", "eval", "contrastive") at a step; None is no number."""
        raise NotImplementedError

    def write_text(self, name: str, text: str) -> None:
        """Write Markdown, where the sink shows it."""

    def close(self) -> None:
        raise NotImplementedError


class TensorBoard(Sink):
    """Each part is a run of its own with the same names, so that one chart shows both losses."""

    def __init__(self, folder: Path, after_step: int | None):
        self._folder, self._purge_step = folder, None if after_step is None else after_step + 1
        self._boards: dict[str, Any] = {}

    def write(self, part: str, step: int, values: Mapping[str, float | None], epoch: float | None) -> None:
        for name, value in values.items():
            if value is not None:
                self._board(part).add_scalar(name, value, step)

    def write_text(self, name: str, text: str) -> None:
        self._board("run").add_text(name, text)

    def _board(self, part: str) -> Any:
        if part not in self._boards:
            from torch.utils.tensorboard import SummaryWriter

            self._boards[part] = SummaryWriter(str(self._folder / part), purge_step=self._purge_step)
        return self._boards[part]

    def close(self) -> None:
        for board in self._boards.values():
            board.close()


class AccelerateTracker(Sink):
    """One of Accelerate's trackers, in a project called classify, with the run's settings.

    It has one axis, that of the optimizer steps, so contrastive steps are not written. A server that is gone does not
    end a training.
    """

    def __init__(self, name: str, folder: Path, settings: Mapping[str, Any]):
        from accelerate.state import PartialState
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        PartialState(cpu=True)  # does nothing where one exists; Accelerate's messages need it
        kind = LOGGER_TYPE_TO_CLASS[name]
        place = {"logging_dir": str(folder / name)} if kind.requires_logging_directory else {}
        self._tracker: Any = kind("classify", **place)
        self._tracker.main_process_only = False  # this process is the one; Accelerate would look for its own
        self._tracker.start()
        self._tracker.store_init_configuration({key: value for key, value in settings.items() if value is not None})

    def write(self, part: str, step: int, values: Mapping[str, float | None], epoch: float | None) -> None:
        if self._tracker is None or part == "contrastive":
            return
        numbers = {f"{part}/{name}": value for name, value in values.items() if value is not None}
        try:
            self._tracker.log(numbers, step=step)
        except Exception as error:
            line = f"note: {self._tracker.name} failed and is no longer written to ({_describe(error)})"
            print(line, file=sys.stderr, flush=True)
            self._tracker = None

    def close(self) -> None:
        if self._tracker is not None:
            with contextlib.suppress(Exception):
                self._tracker.finish()


def start_tracker(name: str, folder: Path, settings: Mapping[str, Any], after_step: int | None) -> Sink:
    """Start a tracker by its name in --report-to. Raises InputError where it cannot be started."""
    if name == "tensorboard":
        return TensorBoard(folder / name, after_step)
    try:
        return AccelerateTracker(name, folder, settings)
    except Exception as error:
        raise InputError(
            f"--report-to {name}: it cannot be started ({_describe(error)}); fix that, or leave it out."
        ) from None


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
