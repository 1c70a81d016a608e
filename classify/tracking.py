"""Where the numbers of a run go besides train_log.jsonl: TensorBoard, written by the main process alone."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from classify.errors import InputError


def choose_tracker(report_to: str) -> bool:
    """Whether to write TensorBoard files. Raises InputError for a tracker that is unknown or not installed."""
    installed = importlib.util.find_spec("tensorboard") is not None
    if report_to == "auto":
        return installed
    if report_to == "none":
        return False
    if report_to != "tensorboard":
        raise InputError(f"--report-to must be one of tensorboard, none, auto. Got {report_to!r} instead.")
    if not installed:
        raise InputError(
            "--report-to tensorboard: tensorboard is not installed; pip install tensorboard, or give none."
        )
    return True


class Tracker:
    """Scalars by step; does nothing where no folder is given (other ranks, tracking off)."""

    def __init__(self, folder: Path | None, first_step: int = 0):
        self._writer: Any = None
        if folder is not None:
            from torch.utils.tensorboard import SummaryWriter

            # A resumed run draws over what an interrupted one had written beyond its checkpoint.
            self._writer = SummaryWriter(str(folder), purge_step=first_step + 1 if first_step else None)

    def log(self, step: int, values: dict[str, float]) -> None:
        """Write scalars such as {"loss/train": 0.7}."""
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close the files."""
        if self._writer is not None:
            self._writer.close()
