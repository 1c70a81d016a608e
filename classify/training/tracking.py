"""TensorBoard and other trackers, written by one process.

TensorBoard is written directly, because a resumed run must cut what an interrupted one had written beyond its
checkpoint. The others (Weights & Biases, MLflow, ...) are reached through Accelerate's trackers.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
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


class Tracker:
    """Write scalars by part ("train", "eval", "contrastive", "run"), name and step; other ranks have no trackers.

    In TensorBoard the parts are runs with the same names, so that one chart shows both losses.
    """

    def __init__(
        self,
        names: Sequence[str] = (),
        folder: Path = Path(),
        settings: Mapping[str, Any] | None = None,
        after_step: int | None = None,
    ):
        self._folder = folder
        # A resumed run replaces what an interrupted one had written beyond its checkpoint.
        self._purge_step = None if after_step is None else after_step + 1
        self._boards: dict[str, Any] | None = {} if "tensorboard" in names else None
        self._others = [_start(name, folder, settings or {}) for name in names if name != "tensorboard"]

    def log(self, part: str, step: int, values: Mapping[str, float], *, other_axis: bool = False) -> None:
        """Write scalars such as ("train", 10, {"loss": 0.7}).

        With `other_axis` steps are counted anew; trackers with a single axis, such as wandb, do not get them.
        """
        if self._boards is not None:
            for name, value in values.items():
                self._board(part).add_scalar(name, value, step)
        for tracker in [] if other_axis else list(self._others):
            try:
                tracker.log({f"{part}/{name}": value for name, value in values.items()}, step=step)
            except Exception as error:  # a server that is gone must not end a training
                self._others.remove(tracker)
                line = f"note: {tracker.name} failed and is no longer written to ({_words(error)})"
                print(line, file=sys.stderr, flush=True)

    def log_text(self, name: str, text: str) -> None:
        """Write Markdown to TensorBoard."""
        if self._boards is not None:
            self._board("run").add_text(name, text)

    def _board(self, part: str) -> Any:
        assert self._boards is not None
        if part not in self._boards:
            from torch.utils.tensorboard import SummaryWriter

            board = SummaryWriter(str(self._folder / "tensorboard" / part), purge_step=self._purge_step)
            self._boards[part] = board
        return self._boards[part]

    def close(self) -> None:
        """Flush and close; safe to call twice."""
        boards, others = self._boards or {}, self._others
        self._boards, self._others = None, []
        for tracker in others:
            with contextlib.suppress(Exception):
                tracker.finish()
        for board in boards.values():
            board.close()


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _start(name: str, folder: Path, settings: Mapping[str, Any]) -> Any:
    """Start one of Accelerate's trackers, in a project called classify, with the run's settings."""
    try:
        from accelerate.state import PartialState
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        PartialState(cpu=True)  # does nothing where one exists; Accelerate's messages need it
        kind = LOGGER_TYPE_TO_CLASS[name]
        place = {"logging_dir": str(folder / name)} if kind.requires_logging_directory else {}
        tracker = kind("classify", **place)
        tracker.main_process_only = False  # this process is the one; Accelerate would look for its own main process
        tracker.start()
        tracker.store_init_configuration({key: value for key, value in settings.items() if value is not None})
    except Exception as error:
        raise InputError(
            f"--report-to {name}: it cannot be started ({_words(error)}); fix that, or leave it out."
        ) from None
    return tracker
