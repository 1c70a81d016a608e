"""Write an exported folder: the model, what prediction needs beside it, and the check that it passed."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from classify.data import split_record
from classify.errors import ClassifyError, DiskError, InputError, disk_refusal
from classify.evaluation import scope, scored_rows
from classify.export.base import Check, Target, draw_sample
from classify.files import atomic_path, make_folders, write_json
from classify.modeling.result_folder import EXPORTED
from classify.prediction.predictor import load_classifier
from classify.versions import versions

CHECKS = "export.json"
# Copied as they are; of the last three `suggest` reads the texts of the run, `predict` the scores of its held-out rows,
# and the report of an evaluation the run's scores.
_COPIED = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    split_record.FILE,
    scored_rows.FILE,
    "metrics.json",
)


def export_model(model: str, target: Target, out: Path) -> Check:
    """Export a result folder, check the new model against it, and return the check.

    An earlier export in `out` is replaced. Nothing is written where the check fails. Raises InputError for a folder
    that cannot be exported, and ClassifyError where the exported model predicts something else.
    """
    run = Path(model)
    if (run / EXPORTED).exists():
        raise InputError(f"--model {model}: it is an exported model; give the folder that it was exported from.")
    if not (run / "tokenizer.json").exists():
        raise InputError(f"--model {model}: no tokenizer.json in it; train with a --model that has a fast tokenizer.")
    with load_classifier(model, use_cpu=True, precision="fp32") as predictor:
        sample = draw_sample(predictor)
        make_folders(out.parent)
        with _naming(out), atomic_path(out, before_replacing=lambda: shutil.rmtree(out, ignore_errors=True)) as made:
            made.mkdir()
            for name in _COPIED:
                if (run / name).exists():
                    shutil.copyfile(run / name, made / name)
            settings = {**predictor.settings, "export": {"target": target.name}}
            settings.pop(scope.COLUMN, None)  # needs the features, which the graph does not return
            write_json(made / "classify.json", settings)
            recorded = target.write(predictor, made, sample)
            with load_classifier(str(made)) as exported:
                check = Check.compare(predictor.task, sample, exported.compute_logits(sample.tokens))
            if (fault := target.find_fault(check, predictor.task)) is not None:
                raise ClassifyError(f"{out}: nothing was written, since the exported model fails its check: {fault}.")
            size = (made / EXPORTED).stat().st_size
            write_json(made / CHECKS, _record(model, target, recorded, check, size))
    return check


@contextlib.contextmanager
def _naming(out: Path) -> Iterator[None]:
    """Raise DiskError, which names the folder, where the disk refuses a file in this block."""
    try:
        yield
    except Exception as error:
        reason = disk_refusal(error)
        if reason is None:
            raise
        raise DiskError(f"--out {out}: nothing was written: {reason}; give another one, or see to that.") from error


def _record(model: str, target: Target, recorded: dict[str, Any], check: Check, size: int) -> dict[str, Any]:
    weights = (Path(model) / "model.safetensors").stat().st_size
    return {
        "model": str(Path(model).resolve()),
        "target": target.name,
        **recorded,
        "bytes": size,
        "share_of_size": float(np.round(size / weights, 4)),
        "check": asdict(check),
        "versions": versions(),
    }
