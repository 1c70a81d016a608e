"""More than one training under one launcher: a job that is started anew, a script that trains several times."""

from __future__ import annotations

import os
import socket

from classify.launch.launcher import whole_number

# Trainings that have ended in this process.
_ended = 0


def end_training() -> None:
    """Note that a training has ended in this process."""
    global _ended
    _ended += 1


def restarts() -> int:
    """How often the launcher has started this job anew (`torchrun --max-restarts`)."""
    return whole_number(os.environ, "TORCHELASTIC_RESTART_COUNT", 0)


def job_name() -> str | None:
    """A name that a job keeps when its launcher starts it anew, and that no other has; None behind other launchers.

    torchrun's --rdzv-id is "none", or whatever a person gives to job after job. What is unique is the folder that its
    agent makes for the errors of its processes: <random>/<id>_<random>/attempt_<n>/<local rank>/error.json. Each
    training of a script has its own name, by its number: a script that is started anew repeats them in order.
    """
    parts = os.environ.get("TORCHELASTIC_ERROR_FILE", "").split(os.sep)
    if len(parts) < 5:
        return None
    return f"{socket.gethostname()}:{parts[-5]}/{parts[-4]}" + (f"#{_ended}" if _ended else "")
