"""A training run: inputs, loop, checkpoints, result folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classify.lazy import submodules

if TYPE_CHECKING:
    from classify.training import (
        callbacks as callbacks,
        checkpoint as checkpoint,
        contrastive as contrastive,
        curve as curve,
        finish as finish,
        folds as folds,
        inputs as inputs,
        linear_probe as linear_probe,
        log as log,
        open_set as open_set,
        optimizer as optimizer,
        output_dir as output_dir,
        parts as parts,
        progress as progress,
        result_files as result_files,
        resume as resume,
        run as run,
        run_record as run_record,
        setup as setup,
        stages as stages,
        table_report as table_report,
        terminal as terminal,
        trainer as trainer,
        weights as weights,
    )

__getattr__ = submodules(__name__)
