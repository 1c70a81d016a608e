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
        label_columns as label_columns,
        losses as losses,
        multi_label as multi_label,
        registry as registry,
        regression as regression,
        single_label as single_label,
    )

__getattr__ = submodules(__name__)
