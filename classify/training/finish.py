"""The end of a run: the weights that are kept, the final scores, and every file of the output folder.

Each file has a writer in `WRITERS`; they share the `Results`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from classify.data import split_record
from classify.data.splits import Split, Splits
from classify.distributed import sharding
from classify.errors import SHOWN, list_some
from classify.evaluation import advice, metrics, scored_rows, suspects_file
from classify.evaluation.baseline import Baseline, MajorityBaseline, cross_validate_baseline
from classify.evaluation.calibration import Rescaling
from classify.evaluation.multi_label_metrics import OTHER_FOLDS, SCORED_ROWS
from classify.evaluation.predictions_file import EXACT, FOLD_COLUMN, FOR_EXCEL, write_predictions
from classify.evaluation.scored_rows import ScoredRows, sign_test
from classify.evaluation.suspects_file import write_suspects
from classify.files import write_json
from classify.modeling.result_folder import FORMAT, save_model
from classify.tables.formats.base import ReadOptions
from classify.tasks.base import Task
from classify.training.callbacks import Evaluate
from classify.training.resume import load_step_weights
from classify.training.run_record import RunRecord
from classify.training.setup import TrainingContext
from classify.training.strategies.base import Strategy
from classify.training.terminal import log_event
from classify.training.train_log import Log
from classify.training.trainer import Trainer

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Final:
    """The task of the finished model, its logits of two splits, and the entry of metrics.json on its calibration.

    `scored` are the logits of the test split, or of the validation split where there is none. With folds the validation
    split is the training split, whose logits are those of the folds' models.
    """

    task: Task
    validation: Logits
    scored: Logits
    calibration: dict[str, Any] | None


@dataclass(frozen=True)
class Results:
    """Results of a finished run, for the writers of its files.

    `predicted` are the predictions of the scored rows, in the form of the targets. `unlabelled` are the logits of rows
    without a label by file; `unseen` are the scores of test texts that are not in the training split.
    """

    context: TrainingContext
    final: Final
    predicted: npt.NDArray[Any]
    trainer: Trainer
    record: RunRecord
    weights: dict[str, Any]
    unlabelled: dict[str, Logits]
    validation_scores: metrics.Scores
    scores: metrics.Scores
    unseen: metrics.Scores | None
    majority: MajorityBaseline
    kept_epoch: float
    start_seconds: float

    @property
    def splits(self) -> Splits:
        return self.context.splits

    @property
    def task(self) -> Task:
        return self.final.task

    @functools.cached_property
    def baseline(self) -> Baseline | None:
        """Score the baseline on the same rows when first read: after the model is saved.

        None, with a note, for tables without words to count.
        """
        splits, task, seed = self.splits, self.task, self.context.config.training.seed
        train, scored = splits.train, splits.scored
        texts = train.texts(splits.columns.text)
        try:
            if scored is not train:
                held_out = scored.texts(splits.columns.text)
                return task.baseline(texts, train.targets, held_out, scored.targets, seed)
            assert splits.folds is not None
            return cross_validate_baseline(
                texts, train.targets, splits.folds, functools.partial(task.baseline, seed=seed), task.metrics
            )
        except (ValueError, MemoryError) as error:
            self.context.output.log(f"note: the TF-IDF baseline cannot be fitted: {error}")
            return None


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
    task, seed = final.task, context.config.training.seed
    predicted = _decide(context, final.task, final.validation, splits.validation)
    validation_scores = task.score(final.validation, splits.validation.targets, seed, predicted)
    scores = validation_scores
    if splits.test is not None:
        predicted = _decide(context, final.task, final.scored, splits.test)
        scores = task.score(final.scored, splits.test.targets, seed, predicted)
    unlabelled = {file: context.compute_logits(split) for file, split in splits.unlabelled.items()}
    weights = strategy.stock_weights(keep=output.is_writer)
    log.write_final(trainer, task, final.scored, splits.scored.targets)
    log.close_trackers()
    if context.config.training.save_on_each_node:
        context.world.close()  # with a process group transformers saves only on rank 0
    # No rank leaves before the files are written, so that a script that then loads the folder finds it. Where one
    # process of each machine writes, there is no group any more to wait in.
    with contextlib.nullcontext() if context.world.closed else context.world.sync_errors():
        if output.is_writer:
            results = Results(
                context=context,
                final=final,
                predicted=predicted,
                trainer=trainer,
                record=record,
                weights=weights,
                unlabelled=unlabelled,
                validation_scores=validation_scores,
                scores=scores,
                unseen=_score_unseen(context, final),
                majority=task.majority(splits.train.targets, splits.scored.targets),
                kept_epoch=kept_epoch,
                start_seconds=start_seconds,
            )
            for name, write in WRITERS:
                with output.writing(name):
                    write(results)


def _decide(context: TrainingContext, task: Task, logits: Logits, split: Split) -> npt.NDArray[Any]:
    """Return the predictions of a split, in the form of the targets."""
    probabilities, folds = task.probabilities(logits), context.splits.folds
    if folds is not None and split is context.splits.train:
        return task.decide_out_of_fold(probabilities, split.targets, folds)
    return task.decide(probabilities)


def _calibrate(context: TrainingContext, validation: Logits) -> Final:
    """Rescale the output layer by validation logits, and score with it. A collective."""
    splits, task = context.splits, context.inputs.task
    calibrate = context.config.training.calibrate == "auto"
    scored = validation if splits.test is None else context.compute_logits(splits.test)
    rescaling = _rescale_output_layer(context, validation, calibrate=calibrate)
    rescaled_validation, rescaled = rescaling.apply(validation), rescaling.apply(scored)
    return Final(
        task=task.finalize(rescaled_validation, splits.validation.targets),
        validation=rescaled_validation,
        scored=rescaled,
        calibration=_describe_calibration(context, rescaling, scored, rescaled) if calibrate else None,
    )


def _rescale_output_layer(context: TrainingContext, validation_logits: Logits, *, calibrate: bool) -> Rescaling:
    """Let the output layer compute the scale and shift that the task requires. A collective."""
    fitted = context.inputs.task.rescale(validation_logits, context.splits.validation.targets, calibrate=calibrate)
    outputs = validation_logits.shape[1]
    if fitted is None:
        return Rescaling(np.ones(outputs, dtype=np.float32), np.zeros(outputs, dtype=np.float32))
    # One rank's values, so that all ranks' weights are the same bits.
    scale, shift = (np.array(context.world.broadcast(values.tolist()), dtype=np.float32) for values in fitted)
    head, factors = sharding.gather_full(context.strategy.output_layer(), keep=True), torch.from_numpy(scale)
    context.strategy.set_output_layer(
        head["weight"] * factors[:, None], head["bias"] * factors + torch.from_numpy(shift)
    )
    return Rescaling(scale, shift)


def _describe_calibration(
    context: TrainingContext, rescaling: Rescaling, before: Logits, after: Logits
) -> dict[str, Any] | None:
    """Return the entry of metrics.json: the rescaling, and the probabilities' scores before and after it; print them.

    None for tasks without probabilities.
    """
    splits, task, seed = context.splits, context.inputs.task, context.config.training.seed
    old, new = (task.probability_scores(logits, splits.scored.targets, seed) for logits in (before, after))
    if old is None or new is None:
        return None
    temperature = rescaling.temperature
    fitted = "one scale and shift per label" if temperature is None else f"temperature {temperature:.3g}"
    scored = "test" if splits.test is not None else "validation" if splits.method is None else "out-of-fold"
    context.output.log(
        f"calibration: {fitted} (fitted on {splits.method or 'validation rows'}; {scored} log loss "
        f"{old['log_loss']:.3f} before, {new['log_loss']:.3f} after; --calibrate)"
    )
    return {**rescaling.as_json(), "before": old, "after": new}


@torch.no_grad()
def _round(strategy: Strategy, dtype: torch.dtype) -> None:
    """Round the weights and buffers that are on a device to `dtype`; they stay in fp32."""
    strategy.named_weights()  # shards them again
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
    old, new = task.probabilities(before), task.probabilities(after)
    changed, most = int((task.decide(old) != task.decide(new)).sum()), np.abs(new - old).max()
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
    kept = progress.choose_kept(training.weights_kept, metric, context.inputs.task.share, rows)
    epoch, step = kept["epoch"], int(kept["step"])
    if step != progress.step:
        if not load_step_weights(context.output, context.strategy, step):
            return trainer.epoch, progress.step
        context.output.log(
            f"keep: weights of epoch {epoch:g} (best on the validation split; --keep)"
            if step > 0
            else f"note: fine-tuning did not beat the {context.inputs.task.probe} it started from, whose weights are "
            "kept; try a lower --learning-rate, more --epochs or more rows"
        )
    elif progress.best is not None and progress.best["step"] != step and progress.best[metric] != kept[metric]:
        best, name = progress.best, metrics.display_name(metric)
        earlier = f"epoch {best['epoch']:g}" if best["step"] else "the start"
        context.output.log(
            f"keep: last weights ({name} {kept[metric]:.3f} on {rows} validation rows; {earlier} had "
            f"{best[metric]:.3f}, which may be chance; --keep)"
        )
    return epoch, step


def _score_unseen(context: TrainingContext, final: Final) -> metrics.Scores | None:
    """Score the test rows whose text is not in the training split; None if that holds for all rows or for none."""
    test, in_training = context.splits.test, context.splits.in_training.get("test", ())
    if test is None or not 0 < len(in_training) < len(test):
        return None
    unseen = np.ones(len(test), dtype=bool)
    unseen[list(in_training)] = False
    return final.task.score(final.scored[unseen], test.targets[unseen], context.config.training.seed)


def _write_model(results: Results) -> None:
    context = results.context
    settings = {
        "format": FORMAT,
        "task": results.task.name,
        **results.splits.columns.texts.as_settings(),
        "label_columns": list(results.splits.columns.labels),
        "reading": {
            "given": ReadOptions.from_settings(vars(context.config.data)).given,
            "found": dict(results.splits.tables[0].reading),
        },
        "max_length": context.data.max_length,
        "languages": context.inputs.languages.shares,
        "long_text": context.config.data.long_texts,
        **results.task.settings(),
    }
    dtype = getattr(torch, context.config.training.save_dtype)
    weights = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in results.weights.items()
    }
    save_model(context.output.folder, context.classifier.model, weights, context.data.tokenizer, settings)
    # Of a run that is extended: if a later writer fails they would be taken for scores of these weights.
    for name in ("metrics.json", scored_rows.FILE):
        (context.output.folder / name).unlink(missing_ok=True)


def _write_predictions(results: Results) -> None:
    task, context = results.task, results.context
    digits = FOR_EXCEL if context.config.training.excel_safe else EXACT
    files = {"predictions.csv": (results.splits.scored, results.final.scored)}
    files |= {file: (results.splits.unlabelled[file], logits) for file, logits in results.unlabelled.items()}
    for name, (split, logits) in files.items():
        columns, predicted = task.prediction_columns(), results.predicted if split is results.splits.scored else None
        fields = task.prediction_fields(task.probabilities(logits), digits, predicted)
        if split is results.splits.train:  # scored by the fold that did not train on the row
            assert results.splits.folds is not None
            columns = [*columns, FOLD_COLUMN]
            folds = (results.splits.folds + 1).tolist()
            fields = ([*row, str(fold)] for row, fold in zip(fields, folds, strict=True))
        write_predictions(
            context.output.folder / name,
            split.table,
            split.rows,
            columns,
            fields,
            for_excel=context.config.training.excel_safe,
        )


def _write_scored_rows(results: Results) -> None:
    scored, baseline = results.splits.scored, results.baseline
    hashes = scored.table.text_hashes(results.splits.columns.text)[scored.rows]
    others = None if baseline is None else baseline.predicted
    rows = ScoredRows(hashes, scored.targets, results.final.scored, results.predicted, others)
    rows.write(results.context.output.folder)


def _write_suspects(results: Results) -> None:
    """Write suspects.csv, where every row was scored by a fold that did not train on it."""
    split, splits, path = results.splits.train, results.splits, results.context.output.folder / suspects_file.FILE
    path.unlink(missing_ok=True)  # of an earlier run in this folder
    if splits.folds is None or splits.scored is not split:
        return
    probabilities = results.task.probabilities(results.final.scored)
    suspects = results.task.suspects(probabilities, split.targets)
    if suspects is not None and len(suspects.rows):
        columns = (splits.columns.text, splits.columns.labels[0])
        for_excel = results.context.config.training.excel_safe
        write_suspects(
            path, suspects, split.table, split.rows, columns, split.targets, probabilities, for_excel=for_excel
        )


def _write_split(results: Results) -> None:
    splits = results.splits
    if splits.assignment is not None:
        hashes = splits.train.table.text_hashes(splits.columns.text)
        split_record.write_record(results.context.output.folder, hashes, splits.assignment, splits.num_folds)


def _write_metrics(results: Results) -> None:
    progress = results.trainer.progress
    method = {} if results.splits.method is None else {"method": results.splits.method}
    thresholds = {}
    if results.task.has_thresholds:
        thresholds = {"thresholds": SCORED_ROWS if results.splits.folds is None else OTHER_FOLDS}
    validation, test = {**results.validation_scores.as_json(), **method, **thresholds}, None
    if results.splits.test is not None:
        unseen = {} if results.unseen is None else {"unseen": results.unseen.as_json()}
        test = {**results.scores.as_json(), **unseen}
    elif method:  # every row was scored by a model that had not seen it
        test = validation
    write_json(
        results.context.output.folder / "metrics.json",
        {
            "task": results.task.name,
            "train": {
                "seconds": progress.seconds,
                "rows_per_second": progress.position / progress.seconds if progress.step else 0.0,
                "tokens_per_second": progress.tokens / progress.seconds if progress.step else 0.0,
                "steps": progress.step,
                "epochs": progress.position / len(results.splits.train),
                "loss": progress.mean_loss if progress.step else None,
            },
            "eval": validation,
            "test": test,
            "calibration": results.final.calibration,
            "baseline": _describe_baseline(results),
            "majority": results.majority.as_json(),
            "probe": results.trainer.probe_metrics,
            "pairs": results.trainer.contrastive_metrics,
            "best_epoch": results.kept_epoch,
            "start_seconds": results.start_seconds,
            "wall_seconds": results.context.elapsed,
        },
    )


def _describe_baseline(results: Results) -> dict[str, Any] | None:
    """Return the baseline's scores, with the paired test of the model against it on the same rows."""
    baseline, task, targets = results.baseline, results.task, results.splits.scored.targets
    if baseline is None:
        return None
    compared = sign_test(task.row_scores(results.predicted, targets), task.row_scores(baseline.predicted, targets))
    return {**baseline.as_json(), "paired": asdict(compared)}


def _print_summary(results: Results) -> None:
    output, baseline = results.context.output, results.baseline
    name = "test" if results.splits.test is not None else results.splits.method or "validation"
    output.log("")
    output.log(metrics.table(results.scores))
    line = f"{name}: {metrics.format_metrics(results.scores.metrics)}"
    if baseline is not None:
        fitted = len(results.splits.train) if results.splits.folds is None else 0
        on = f", fitted on {baseline.rows} of {fitted} rows" if baseline.rows < fitted else ""
        line += f"; TF-IDF baseline: {metrics.format_metrics(baseline.metrics)} ({baseline.seconds:.1f} s{on})"
    output.log(line)
    for note in _notes(results, "cross-validated" if results.splits.method == name else name):
        output.log(f"note: {note}")
    output.log("")
    output.log(f"result: {output.folder}")
    if output.world.is_main:
        scores = {"test" if results.splits.test is not None else "eval": results.scores.as_json()}
        log_event("result", {"folder": str(output.folder), **scores})
    words = ["predict", "--model", str(output.folder), "--data", "new.csv", "--out", "predictions.csv"]
    output.log(f"next:   {shlex.join([*_program(), *words])}")


def _notes(results: Results, name: str) -> list[str]:
    progress = results.trainer.progress
    first, last = progress.first_loss, progress.mean_loss
    epochs = progress.position / len(results.splits.train)
    notes = advice.notes(
        results.scores,
        name,
        majority=results.majority,
        baseline=results.baseline,
        metric=results.task.primary,
        loss=advice.TrainingLoss(last if first is None else first, last, epochs, results.task.chance_loss),
        balanced=results.context.config.training.class_weights == "balanced",
    )
    if results.task.has_thresholds and results.splits.test is None and results.splits.folds is None:
        notes.append(
            "the thresholds were chosen on the validation rows that are scored, so F1 may be too high; give "
            "--test-data, or --folds 5"
        )
    suspects, counted = suspects_file.read_suspects(results.context.output.folder, SHOWN)
    if counted:
        unit = results.splits.train.table.unit
        shown = (f"{unit} {one['row']}: {one['label']!r}, suggested {one['suggested_label']!r}" for one in suspects)
        notes.append(
            f"{counted} of {len(results.splits.train)} labels may be wrong ({suspects_file.MEASURED}; suspects.csv): "
            f"{list_some([line.strip() for line in shown], counted)}"
        )
    if results.unseen is not None:
        notes.append(
            f"without the {len(results.splits.in_training['test'])} test texts that are also in the training split: "
            f"{metrics.format_metrics(results.unseen.metrics)}"
        )
    return notes


def _program() -> list[str]:
    """Return how to call this program from the working directory: `classify` may not be on the PATH."""
    if shutil.which("classify"):
        return ["classify"]
    python = os.path.relpath(sys.executable)
    return [sys.executable if python.startswith("..") else python, "-m", "classify"]


# What is written, for disk errors, and the function that writes it, in order.
WRITERS: tuple[tuple[str, Callable[[Results], None]], ...] = (
    ("the model", _write_model),
    ("predictions.csv", _write_predictions),
    (split_record.FILE, _write_split),
    (scored_rows.FILE, _write_scored_rows),
    (suspects_file.FILE, _write_suspects),
    ("metrics.json", _write_metrics),
    ("run.json", lambda results: results.record.write("finished")),
    ("the summary", _print_summary),
)
