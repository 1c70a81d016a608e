"""Cross-validation: the whole recipe is trained once per fold, and predicts the held-out fold.

Tokens are shared between folds; weights are not: each fold starts from the weights that the run starts from. Where the
head alone is trained, folds share the features, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors
import torch
from safetensors.torch import save_file

from classify.config.run_config import fields_that_affect
from classify.data.splits import Split
from classify.evaluation.metrics import format_metrics
from classify.files import atomic_path, make_folders
from classify.training import linear_probe, stages
from classify.training.setup import TrainingContext
from classify.training.terminal import log
from classify.training.trainer import make_trainer

Logits = npt.NDArray[np.float32]


def cross_validate(context: TrainingContext) -> tuple[Logits, list[Logits]]:
    """Compute the out-of-fold logits (rows, outputs) of the training rows, in their order; the same on every rank.

    Beside them are the logits of the rows to teach by the model of each fold, if there are such rows.

    Finished folds are kept in the output folder, where a resumed run finds them. The model's weights are restored at
    the end. A collective. Raises Interrupted where any rank received a signal.
    """
    split, folds, count = context.splits.train, context.splits.folds, context.splits.num_folds
    assert folds is not None
    # Where the head alone is trained, on no more rows than memory holds features of, folds share the features.
    limit = linear_probe.row_limit(len(context.inputs.task.labels), is_final=True)
    trains_encoder = context.config.model.head != "probe" or context.config.training.trains_encoder
    to_teach, taught = context.splits.to_teach, list[Logits]()
    learns_alike = to_teach is None and not any(source.by_fold for source in context.splits.sources)
    if not trains_encoder and len(split) <= limit and learns_alike:
        return _cross_validate_probe(context, folds), taught
    logits = np.zeros((len(split), context.classifier.output_layer.out_features), dtype=np.float32)
    initial: dict[str, torch.Tensor] = {}
    for number in range(count):
        held_out = folds == number
        scored = Split(split.table, split.rows[held_out], split.targets[held_out])
        begin = time.perf_counter()
        stored, took = _load(context, number), "taken from the resumed run"
        if stored is None:
            if not initial:
                context.strategy.setup()
                weights, *_ = context.strategy.state_dict(keep=True)
                initial = {name: tensor.clone() for name, tensor in weights.items()}
            rows = context.rows_to_learn(number)
            trainer = make_trainer(context.strategy, context.inputs.task, rows, context.inputs.parts)
            trainer.strategy.setup(initial)
            stages.fit_head(context, trainer)
            stages.fit(context, trainer, [], f"in fold {number + 1} of {count}; the folds before it are saved")
            if context.refits_head:
                learned = context.with_label_texts(rows)
                fold_logits, _ = linear_probe.refit_head(
                    context.strategy,
                    learned,
                    context.data.of(scored),
                    context.inputs.task,
                    context.inputs.kept,
                    learns_held_out=False,
                )
            else:
                fold_logits = context.compute_logits(scored)
            stored = {"logits": fold_logits}
            if to_teach is not None:
                stored["taught"] = context.compute_logits(to_teach)
            context.timeline.end("evaluation")
            _save(context, number, stored)
            took = f"{time.perf_counter() - begin:.1f} s"
        logits[held_out] = stored["logits"]
        taught += [stored["taught"]] if to_teach is not None else []
        _log_score(context, number, stored["logits"], scored.targets, took)
    if initial:
        context.strategy.setup(initial)
    return logits, taught


def _cross_validate_probe(context: TrainingContext, folds: npt.NDArray[np.int64]) -> Logits:
    """Compute the out-of-fold logits of a run that trains the output layer alone. A collective."""
    split, begin = context.splits.train, time.perf_counter()
    context.strategy.setup()
    data = context.with_label_texts(context.rows_to_learn())
    logits = linear_probe.probe_folds(context.strategy, data, context.inputs.task, folds, context.inputs.kept)
    context.timeline.end("head")
    took = f"all in {time.perf_counter() - begin:.1f} s"
    for number in range(context.splits.num_folds):
        held_out = folds == number
        _log_score(context, number, logits[held_out], split.targets[held_out], took)
    return logits


def _log_score(context: TrainingContext, number: int, logits: Logits, targets: npt.NDArray[Any], took: str) -> None:
    score = context.inputs.task.scores.score(logits, targets, context.config.training.seed)
    log(
        f"fold {number + 1} of {context.splits.num_folds}: {format_metrics(score.metrics)} on {len(targets)} rows "
        f"({took}; --folds)"
    )


def _stored(context: TrainingContext, number: int) -> tuple[Path, dict[str, str]]:
    """The file of a fold's logits, and its metadata: a digest of all settings that they depend on."""
    settings = context.settings
    learning = {name: settings[name] for name in fields_that_affect("start", "later steps")}
    to_teach = context.splits.to_teach
    taught = None if to_teach is None else to_teach.table.digest(context.splits.columns.text)
    values = json.dumps({**context.identity, **learning, "taught": taught}, sort_keys=True, default=str)
    file = context.output.checkpoints / f"fold-{number + 1}.safetensors"
    return file, {"identity": hashlib.sha256(values.encode()).hexdigest()}


def _load(context: TrainingContext, number: int) -> dict[str, Logits] | None:
    """Load the logits of a fold that was finished under the same settings, if there is one. A collective."""
    world, stored = context.world, {}
    if world.is_main and context.output.plan.resume:
        path, metadata = _stored(context, number)
        with contextlib.suppress(OSError, safetensors.SafetensorError), safetensors.safe_open(path, "pt") as file:
            if file.metadata() == metadata:
                stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    stored = world.broadcast_tensors(stored if world.is_main else None)
    return {name: tensor.cpu().numpy() for name, tensor in stored.items()} or None


def _save(context: TrainingContext, number: int, logits: dict[str, Logits]) -> None:
    output = context.output
    with output.world.sync_errors(), output.writing(f"the predictions of fold {number + 1}"):
        if output.is_writer:
            path, metadata = _stored(context, number)
            make_folders(output.checkpoints)
            with atomic_path(path) as temporary:
                save_file({name: torch.from_numpy(part) for name, part in logits.items()}, temporary, metadata=metadata)
