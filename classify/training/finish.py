"""The end of a run: the weights that are kept, their calibration, and the final scores; then its files are written."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from classify.data.splits import Split
from classify.distributed import sharding
from classify.evaluation import metrics
from classify.evaluation.calibration import Rescaling
from classify.tasks.base import Task
from classify.training.callbacks import Evaluate
from classify.training.log import Log
from classify.training.open_set import fit_scope
from classify.training.result_files import WRITERS, Final, Results
from classify.training.resume import load_step_weights
from classify.training.run_record import RunRecord
from classify.training.setup import TrainingContext
from classify.training.strategies.base import Strategy
from classify.training.trainer import Trainer

Logits = npt.NDArray[np.float32]


def finish(
    context: TrainingContext,
    trainer: Trainer,
    evaluate: Evaluate,
    log: Log,
    record: RunRecord,
    start_seconds: float,
    out_of_fold: Logits | None,
) -> None:
    """Restore the kept weights, calibrate, score, and write every file. A collective.

    `out_of_fold` are the logits of the validation split where it is the training split.
    """
    splits, output, strategy = context.splits, context.output, context.strategy
    strategy.end_training()  # what is scored is what will be saved
    kept_epoch, step = _restore_kept_weights(context, trainer)
    reuse = not context.classifier.precision.rounds_weights and not context.classifier.has_adapters
    context.classifier.merge_adapters()
    final = _calibrate(context, evaluate.logits_at(step, reuse=reuse) if out_of_fold is None else out_of_fold)
    if context.config.training.save_dtype != "float32":
        final = _round_weights(context, final)
    task = final.task
    predicted = _predict(context, final.task, final.validation, splits.validation)
    validation_scores = context.score(task, final.validation, splits.validation, predicted)
    scores = validation_scores
    if splits.test is not None:
        predicted = _predict(context, final.task, final.scored, splits.test)
        scores = context.score(task, final.scored, splits.test, predicted)
    open_set = fit_scope(context)
    unlabelled = {file: context.compute_logits(split) for file, split in splits.unlabelled.items()}
    weights = strategy.stock_weights(keep=output.is_writer)
    log.finish()
    if context.config.training.save_on_each_node:
        context.world.close()  # with a process group transformers saves only on rank 0
    # No rank leaves before the files are written, so that a script that then loads the folder finds it. Where one
    # process of each machine writes, there is no group any more to wait in.
    with contextlib.nullcontext() if context.world.closed else context.world.sync_errors():
        if output.is_writer:
            seen = _find_seen(context)
            results = Results(
                context=context,
                final=final,
                predicted=predicted,
                trainer=trainer,
                record=record,
                weights=weights,
                unlabelled=unlabelled,
                open_set=open_set,
                validation_scores=validation_scores,
                scores=scores,
                seen=seen,
                unseen=_score_unseen(context, final, predicted, ~seen) if seen.any() and not seen.all() else None,
                kept_epoch=kept_epoch,
                start_seconds=start_seconds,
            )
            context.timeline.end("evaluation")
            for name, write in WRITERS:
                with output.writing(name):
                    write(results)
                context.timeline.end("files")


def _predict(context: TrainingContext, task: Task, logits: Logits, split: Split) -> npt.NDArray[Any]:
    probabilities, folds = task.answers.probabilities(logits), context.splits.folds
    predicted = task.answers.decide(probabilities)
    if folds is not None and split is context.splits.train:
        for number in range(context.splits.num_folds):  # no threshold is chosen on the rows that it decides
            own = folds == number
            fitted = task.answers.fitted(probabilities[~own], split.targets[~own])
            predicted[own] = fitted.decide(probabilities[own])
    return predicted


def _calibrate(context: TrainingContext, validation: Logits) -> Final:
    """Rescale the output layer by validation logits, and score with it. A collective."""
    splits, task = context.splits, context.inputs.task
    calibrate = context.config.training.calibrate == "auto"
    scored = validation if splits.test is None else context.compute_logits(splits.test)
    rescaling = _rescale_output_layer(context, validation, calibrate=calibrate)
    rescaled_validation, rescaled = rescaling.apply(validation), rescaling.apply(scored)
    probabilities = task.answers.probabilities(rescaled_validation)
    return Final(
        task=task.with_answers(task.answers.fitted(probabilities, splits.validation.targets)),
        validation=rescaled_validation,
        scored=rescaled,
        calibration=_describe_calibration(context, rescaling, scored, rescaled) if calibrate else None,
    )


def _rescale_output_layer(context: TrainingContext, validation_logits: Logits, *, calibrate: bool) -> Rescaling:
    """Let the output layer compute the scale and shift that the task requires. A collective."""
    fitted = context.inputs.task.head.rescale(validation_logits, context.splits.validation.targets, calibrate=calibrate)
    outputs = validation_logits.shape[1]
    if fitted is None:
        return Rescaling(np.ones(outputs, dtype=np.float32), np.zeros(outputs, dtype=np.float32))
    # One rank's values, so that all ranks' weights are the same bits.
    scale, shift = (np.array(context.world.broadcast(values.tolist()), dtype=np.float32) for values in fitted)
    head, factors = sharding.gather_full(context.strategy.weights.output_layer(), keep=True), torch.from_numpy(scale)
    context.strategy.weights.set_output_layer(
        head["weight"] * factors[:, None], head["bias"] * factors + torch.from_numpy(shift)
    )
    return Rescaling(scale, shift)


def _describe_calibration(
    context: TrainingContext, rescaling: Rescaling, before: Logits, after: Logits
) -> dict[str, Any] | None:
    """The entry of metrics.json: the rescaling, and the probabilities' scores before and after it; print them.

    None for tasks without probabilities.
    """
    splits, task, seed = context.splits, context.inputs.task, context.config.training.seed
    old, new = (task.scores.probability_scores(logits, splits.scored.targets, seed) for logits in (before, after))
    if old is None or new is None:
        return None
    temperature = rescaling.temperature
    fitted = "one scale and shift per label" if temperature is None else f"temperature {temperature:.3g}"
    rows = "validation rows" if splits.method is None else f"rows of {splits.method}"
    scored = "test log loss" if splits.test is not None else "log loss on them"
    context.output.log(
        f"calibration: {fitted} (fitted on {rows}; {scored} "
        f"{old['log_loss']:.3f} before, {new['log_loss']:.3f} after; --calibrate)"
    )
    return {**rescaling.as_json(), "before": old, "after": new}


@torch.no_grad()
def _round(strategy: Strategy, dtype: torch.dtype) -> None:
    """Round the weights and buffers that are on a device to `dtype`; they stay in fp32."""
    strategy.weights.named()  # shards them again
    model = strategy.classifier.model
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point() and not tensor.is_meta:
            tensor.copy_(tensor.to(dtype))


def _round_weights(context: TrainingContext, final: Final) -> Final:
    """Round the weights to --save-dtype, print by how much that changes probabilities; return the logits after it.

    Those of the folds' models, which are not saved, stay. A collective.
    """
    splits, task, name = context.splits, final.task, context.config.training.save_dtype
    scored_by_folds = splits.folds is not None and splits.test is None
    before = context.compute_logits(splits.scored) if scored_by_folds else final.scored
    _round(context.strategy, getattr(torch, name))
    after = context.compute_logits(splits.scored)
    old, new = task.answers.probabilities(before), task.answers.probabilities(after)
    changed, most = int((task.answers.decide(old) != task.answers.decide(new)).sum()), np.abs(new - old).max()
    context.output.log(
        f"saved weights: {name} (probabilities of {len(splits.scored)} rows change by at most {most:.2g}, "
        f"{changed} predictions change; --save-dtype)"
    )
    if scored_by_folds:
        return final
    if splits.folds is not None:
        return replace(final, scored=after)
    validation = after if splits.test is None else context.compute_logits(splits.validation)
    return replace(final, validation=validation, scored=after)


def _restore_kept_weights(context: TrainingContext, trainer: Trainer) -> tuple[float, int]:
    """Load the weights that --keep selects, and return their epoch and step."""
    progress, training, rows = trainer.progress, context.config.training, len(context.splits.validation)
    metric = context.selection_metric
    kept = progress.choose_kept(training.weights_kept, metric, context.inputs.task.scores.share, rows)
    epoch, step = kept["epoch"], int(kept["step"])
    if step != progress.step:
        if not load_step_weights(context.output, context.strategy, step):
            return trainer.epoch, progress.step
        context.output.log(
            f"keep: weights of epoch {epoch:g} (best on the validation split; --keep)"
            if step > 0
            else f"note: fine-tuning did not beat the {context.inputs.task.head.probe} it started from, whose weights "
            "are kept; try a lower --learning-rate, more --epochs or more rows"
        )
    elif progress.best is not None and progress.best["step"] != step and progress.best[metric] != kept[metric]:
        best, name = progress.best, metrics.display_name(metric)
        earlier = f"epoch {best['epoch']:g}" if best["step"] else "the start"
        context.output.log(
            f"keep: last weights ({name} {kept[metric]:.3f} on {rows} validation rows; {earlier} had "
            f"{best[metric]:.3f}, which may be chance; --keep)"
        )
    return epoch, step


def _find_seen(context: TrainingContext) -> npt.NDArray[np.bool_]:
    """(rows,) whether the text of each scored row is in the training split, too; never of folds."""
    splits = context.splits
    seen = np.zeros(len(splits.scored), dtype=bool)
    if splits.scored is not splits.train:
        seen[list(splits.in_training.get("test" if splits.test is not None else "validation", ()))] = True
    return seen


def _score_unseen(
    context: TrainingContext, final: Final, predicted: npt.NDArray[Any], unseen: npt.NDArray[np.bool_]
) -> metrics.Scores:
    """Score the `unseen` (rows,) of the scored rows."""
    scored = context.splits.scored
    part = Split(scored.table, scored.rows[unseen], scored.targets[unseen])
    return context.score(final.task, final.scored[unseen], part, predicted[unseen])
