"""The end of a run: the weights that are kept, their calibration, and the final scores; then its files are written."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from classify import evaluation, training
from classify.data.split_rows import cap_rows
from classify.data.tokenize import TokenizedSplit
from classify.distributed import sharding
from classify.modeling.kept_features import KeptFeatures, choose_rows
from classify.tasks.base import Task
from classify.training.callbacks import Evaluate
from classify.training.linear_probe import Learned
from classify.training.log import Log
from classify.training.result_files import WRITERS, Results
from classify.training.resume import load_step_weights
from classify.training.run_record import RunRecord
from classify.training.setup import TrainingContext
from classify.training.terminal import log
from classify.training.trainer import Trainer

Logits = npt.NDArray[np.float32]
# Rows whose features are computed to be kept, by the rows of an epoch: a forward pass takes a third of a step's time.
_KEPT_SHARE = 0.08


def finish(
    context: TrainingContext,
    trainer: Trainer,
    evaluate: Evaluate,
    train_log: Log,
    record: RunRecord,
    start_seconds: float,
    out_of_fold: Logits | None,
    taught: list[Logits],
    learned: Learned | None,
) -> None:
    """Restore the kept weights, calibrate, score, and write every file. A collective.

    `out_of_fold` are the logits of the validation split where it is the training split, and `taught` those of the rows
    to teach by each fold's model. `learned` are features of the final encoder, where no epochs followed its head.
    """
    splits, output, strategy, world = context.splits, context.output, context.strategy, context.world
    strategy.end_training()  # from here on the weights are scored that will be saved
    kept_epoch, step = _restore_kept_weights(context, trainer)
    rounded = context.classifier.precision.rounds_weights or context.classifier.has_adapters
    reuse = step == trainer.progress.step and not rounded
    context.classifier.merge_adapters()
    if context.refits_head:
        out_of_fold, learned = _refit_head(context, trainer.data, out_of_fold)
    validation = out_of_fold if out_of_fold is not None else evaluate.final_logits if reuse else None
    if validation is None:
        validation = context.compute_logits(splits.validation)
    before = validation if splits.test is None else context.compute_logits(splits.test)
    rescaling = _rescale_output_layer(context, validation)
    validation, scored = rescaling.apply(validation), rescaling.apply(before)
    task = context.inputs.task
    answers = task.answers.fitted(task.answers.probabilities(validation), splits.validation.targets)
    task = task.with_answers(answers)
    calibration = _describe_calibration(context, task, rescaling, splits.scored.targets, before, scored)
    if context.config.training.save_dtype != "float32":
        _round_weights(context)
        if splits.folds is None and not context.refits_on_validation:  # else other models have scored them
            validation = context.compute_logits(splits.validation)
        scored = validation if splits.test is None else context.compute_logits(splits.test)
    open_set = training.open_set.fit_scope(context)
    kept = _choose_kept_features(context, learned)
    unlabelled = {file: context.compute_logits(split) for file, split in splits.unlabelled.items()}
    taught = [rescaling.apply(logits) for logits in taught]
    if splits.to_teach is not None and not taught:
        taught = [context.compute_logits(splits.to_teach)]
    weights = strategy.stock_weights(keep=output.is_writer)
    train_log.finish()
    if context.config.training.save_on_each_node:
        world.close()  # with a process group transformers saves only on rank 0
    # No rank leaves before the files are written, so that a script that then loads the folder finds it. Where one
    # process of each machine writes, there is no group any more to wait in.
    with contextlib.nullcontext() if world.closed else world.sync_errors():
        if output.is_writer:
            results = Results(
                context=context,
                trainer=trainer,
                record=record,
                task=task,
                validation=validation,
                logits=scored,
                calibration=calibration,
                unlabelled=unlabelled,
                taught=taught,
                open_set=open_set,
                kept=kept,
                weights=weights,
                kept_epoch=kept_epoch,
                start_seconds=start_seconds,
            )
            _ = results.validation_scores  # computed here, they count as evaluation
            context.timeline.end("evaluation")
            for name, write in WRITERS:
                with output.writing(name):
                    write(results)
                context.timeline.end("files")


def _refit_head(
    context: TrainingContext, learned_rows: TokenizedSplit, out_of_fold: Logits | None
) -> tuple[Logits, Learned]:
    """Fit the head again; return logits of the validation rows by one that has not learned from them, and features."""
    splits, learns, begin = context.splits, context.refits_on_validation, time.perf_counter()
    data = context.with_label_texts(learned_rows)
    task, limit = context.inputs.task, training.linear_probe.row_limit(len(splits.labels), is_final=True)
    rows = cap_rows(task.targets.stratify_by(data.targets), limit, seed=context.config.training.seed)
    data = data.take(rows)
    held_out = context.data.of(splits.validation if out_of_fold is None else splits.validation.take(np.arange(0)))
    logits, learned = training.linear_probe.refit_head(
        context.strategy, data, held_out, context.inputs.task, context.inputs.kept, learns_held_out=learns
    )
    also = f", then of the {len(splits.validation):,} validation rows, too" if learns else ""
    log(
        f"head: fitted again on the features of {len(data.rows):,} texts{also} ({time.perf_counter() - begin:.1f} s; "
        "--head)"
    )
    return logits if out_of_fold is None else out_of_fold, Learned(rows, learned.features)


def _choose_kept_features(context: TrainingContext, learned: Learned | None) -> KeptFeatures | None:
    """The features that the folder keeps: of some training rows, and of those that the run began with. A collective.

    They are among those that the head has `learned` from; else they are computed, in a thirtieth of the epochs' time.
    None with --keep-features 0, and for tasks that cannot be extended by a class.
    """
    per_class, seed, task = context.config.training.keep_features, context.config.training.seed, context.inputs.task
    if not per_class or not task.targets.are_extended:
        return None
    train, before = context.splits.train, context.inputs.kept
    if learned is None:
        few = per_class
        if context.config.trains_epochs:
            limit = round(_KEPT_SHARE * len(train) * max(1.0, context.config.training.epochs))
            few = min(per_class, max(1, limit // len(task.labels)))
        rows = choose_rows(train.targets, few, seed=seed)
        features = context.compute_features(train.take(rows))
    else:
        is_train = learned.places < len(train)  # label names and sources follow
        rows, features = learned.places[is_train], learned.features[is_train]
    targets = train.targets[rows]
    if before is not None:
        features, targets = np.concatenate([before.features, features]), np.concatenate([before.targets, targets])
    chosen = choose_rows(targets, per_class, seed=seed)
    return KeptFeatures(tuple(task.labels), features[chosen].astype(np.float16), targets[chosen])


def _rescale_output_layer(context: TrainingContext, validation: Logits) -> evaluation.calibration.Rescaling:
    """Let the output layer compute the scale and shift that the task requires. A collective."""
    calibrate = context.config.training.calibrate == "auto"
    fitted = context.inputs.task.head.rescale(validation, context.splits.validation.targets, calibrate=calibrate)
    outputs = validation.shape[1]
    if fitted is None:
        return evaluation.calibration.Rescaling(np.ones(outputs, dtype=np.float32), np.zeros(outputs, dtype=np.float32))
    # One rank's values, so that all ranks' weights are the same bits.
    scale, shift = (np.array(context.world.broadcast(values.tolist()), dtype=np.float32) for values in fitted)
    head, factors = sharding.gather_full(context.strategy.weights.output_layer(), keep=True), torch.from_numpy(scale)
    context.strategy.weights.set_output_layer(
        head["weight"] * factors[:, None], head["bias"] * factors + torch.from_numpy(shift)
    )
    return evaluation.calibration.Rescaling(scale, shift)


def _describe_calibration(
    context: TrainingContext,
    task: Task,
    rescaling: evaluation.calibration.Rescaling,
    targets: npt.NDArray[Any],
    before: Logits,
    after: Logits,
    name: str = "",
) -> dict[str, Any] | None:
    """The entry of metrics.json: the rescaling, and the probabilities' scores before and after it; print them.

    Of several label columns there is one for each. None without --calibrate, and for tasks without probabilities.
    """
    if context.config.training.calibrate != "auto":
        return None
    if task.columns:
        entries: dict[str, Any] = {}
        for column in task.columns:
            rows, part = column.rows(targets), column.outputs
            own, logits = column.unpack(targets[rows]), (before[rows][:, part], after[rows][:, part])
            if len(rows):
                scaled, of_column = rescaling.take(part), f" of {column.name!r}"
                found = _describe_calibration(context, column.task, scaled, own, *logits, of_column)
                entries |= {} if found is None else {column.name: found}
        return {"columns": entries}
    splits, seed = context.splits, context.config.training.seed
    old, new = (task.scores.probability_scores(logits, targets, seed) for logits in (before, after))
    if old is None or new is None:
        return None
    temperature = rescaling.temperature
    fitted = "one scale and shift per label" if temperature is None else f"temperature {temperature:.3g}"
    fitted_on = "validation rows" if splits.method is None else f"rows of {splits.method}"
    scored = "test log loss" if splits.test is not None else "log loss on them"
    log(
        f"calibration{name}: {fitted} (fitted on {fitted_on}; {scored} "
        f"{old['log_loss']:.3f} before, {new['log_loss']:.3f} after; --calibrate)"
    )
    return {**rescaling.as_json(), "before": old, "after": new}


def _round_weights(context: TrainingContext) -> None:
    """Round the weights to --save-dtype, in fp32, so that all scores are those of the saved weights. A collective."""
    name = context.config.training.save_dtype
    context.strategy.weights.named()  # shards them again
    model = context.classifier.model
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point() and not tensor.is_meta:
                tensor.copy_(tensor.to(getattr(torch, name)))
    log(f"saved weights: {name} (scores are computed with them; --save-dtype)")


def _restore_kept_weights(context: TrainingContext, trainer: Trainer) -> tuple[float, int]:
    """Load the weights that --keep selects, and return their epoch and step."""
    progress, training, rows = trainer.progress, context.config.training, len(context.splits.validation)
    metric = context.selection_metric
    kept = progress.choose_kept(training.weights_kept, metric, context.inputs.task.scores.share, rows)
    epoch, step = kept["epoch"], int(kept["step"])
    if step != progress.step:
        if not load_step_weights(context.output, context.strategy, step):
            return trainer.epoch, progress.step
        log(
            f"keep: weights of epoch {epoch:g} (best on the validation split; --keep)"
            if step > 0
            else f"note: fine-tuning did not beat the {context.inputs.task.head.probe} it started from, whose weights "
            "are kept; try a lower --learning-rate, more --epochs or more rows"
        )
    elif progress.best is not None and progress.best["step"] != step and progress.best[metric] != kept[metric]:
        best, name = progress.best, evaluation.metrics.display_name(metric)
        earlier = f"epoch {best['epoch']:g}" if best["step"] else "the start"
        log(
            f"keep: last weights ({name} {kept[metric]:.3f} on {rows} validation rows; {earlier} had "
            f"{best[metric]:.3f}, which may be chance; --keep)"
        )
    return epoch, step
