"""A training run: inputs, loop, checkpoints, result folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classify.lazy import submodules

if TYPE_CHECKING:
    from classify.training import (
        checkpoint as checkpoint,
        curve as curve,
        inputs as inputs,
        linear_probe as linear_probe,
        open_set as open_set,
        output_dir as output_dir,
        parts as parts,
        run as run,
        setup as setup,
        stages as stages,
        terminal as terminal,
        trainer as trainer,
    )

__getattr__ = submodules(__name__)
