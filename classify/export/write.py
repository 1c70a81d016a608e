"""Write an exported folder: the model, what prediction needs beside it, and the check that it passed."""

from __future__ import annotations

import functools
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from classify.data import split_record
from classify.errors import ClassifyError, InputError, list_some
from classify.evaluation import scope, scored_rows
from classify.export.base import Check, Sample, Target, draw_sample
from classify.export.onnx_fp32 import ONNX
from classify.export.onnx_int8 import ONNXInt8
from classify.files import atomic_path, make_folders, read_json, write_json
from classify.modeling.result_folder import EXPORTED, LABELS_SEEN, read_settings
from classify.prediction.predictor import load_classifier
from classify.versions import versions

# The targets of `classify export`, by their value of --to.
TARGETS: dict[str, Target] = {target.name: target for target in (ONNX(), ONNXInt8())}
CHECKS = "export.json"
# Copied as they are; of the last two `suggest` reads the texts of the run, the report of an evaluation its scores.
_COPIED = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    split_record.FILE,
    "metrics.json",
)
# All that an export writes; only a folder of these is replaced.
_WRITTEN = {*_COPIED, scored_rows.FILE, "classify.json", EXPORTED, CHECKS}


def export_model(model: str, target: Target, out: Path) -> Check:
    """Export a result folder, check the new model against it, and return the check.

    An earlier export in `out` is replaced. Nothing is written where the check fails. Raises InputError for a folder
    that cannot be exported, or an `out` with other files, and ClassifyError where the exported model predicts something
    else.
    """
    run = Path(model)
    others = sorted(path.name for path in out.iterdir() if path.name not in _WRITTEN) if out.exists() else []
    if others:
        raise InputError(f"--out {out}: it holds {list_some(others)}, which no export wrote; give another folder.")
    if (run / EXPORTED).exists():
        raise InputError(f"--model {model}: it is an exported model; give the folder that it was exported from.")
    if read_settings(model).get(LABELS_SEEN) == 0:
        raise InputError(f"--model {model}: no labelled row can check the export; train on some labels first.")
    if not (run / "tokenizer.json").exists():
        raise InputError(f"--model {model}: no tokenizer.json in it; train with a --model that has a fast tokenizer.")
    with load_classifier(model, use_cpu=True, precision="fp32") as predictor:
        sample = draw_sample(predictor)
        make_folders(out.parent)
        remove = functools.partial(shutil.rmtree, out, ignore_errors=True)
        with atomic_path(out, before_replacing=remove) as made:
            made.mkdir()
            for name in _COPIED:
                if (run / name).exists():
                    shutil.copyfile(run / name, made / name)
            settings = {**predictor.settings, "export": {"target": target.name}}
            settings.pop(scope.COLUMN, None)  # needs the features, which the graph does not return
            write_json(made / "classify.json", settings)
            recorded = target.write(predictor, made, sample)
            with load_classifier(str(made)) as exported:
                logits = exported.outputs(*sample.texts)
            check = Check.compare(predictor.task, sample, logits)
            _write_scored_rows(run, made, sample, logits)
            if (fault := target.find_fault(check, predictor.task)) is not None:
                raise ClassifyError(f"{out}: nothing was written, since the exported model fails its check: {fault}.")
            size = (made / EXPORTED).stat().st_size
            write_json(
                made / CHECKS,
                {
                    "model": str(run.resolve()),
                    "target": target.name,
                    **recorded,
                    "bytes": size,
                    "share_of_size": round(size / (run / "model.safetensors").stat().st_size, 4),
                    "check": asdict(check),
                    "versions": versions(),
                },
            )
    return check


def _write_scored_rows(run: Path, made: Path, sample: Sample, logits: npt.NDArray[np.float32]) -> None:
    """Write the rows by which `predict` finds thresholds and sets, with the outputs of the exported model itself.

    With folds the final model was trained on them, so the scores of the folds' models say more.
    """
    metrics = read_json(run / "metrics.json")
    if (metrics["test"] or metrics["eval"]).get("folds"):
        shutil.copyfile(run / scored_rows.FILE, made / scored_rows.FILE)
    else:
        replace(sample.scored, logits=logits[: len(sample.scored.targets)], predicted=None).write(made)
