"""Tasks, one file each; `classify.tasks.base.Task` is their interface."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classify.lazy import submodules

if TYPE_CHECKING:
    from classify.tasks import (
        base as base,
        baseline as baseline,
        columns as columns,
        heads as heads,
        losses as losses,
        registry as registry,
    )

__getattr__ = submodules(__name__)
