"""The end of a run: the best epoch's weights, the test score, and every file of the output folder."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.data import split_record
from classify.data.files import write_json
from classify.data.splits import Split, Splits
from classify.evaluation import advice, metrics
from classify.evaluation.baseline import Baseline
from classify.evaluation.inference import logits_of
from classify.evaluation.predictions_file import write_predictions
from classify.modeling.lora import merge_adapters
from classify.modeling.result_folder import FORMAT, save_model
from classify.training.callbacks import Evaluate
from classify.training.progress import Progress
from classify.training.resume import take_weights
from classify.training.run_record import RunRecord
from classify.training.setup import Run
from classify.training.train_log import Log
from classify.training.trainer import Trainer


def finish(run: Run, trainer: Trainer, evaluate: Evaluate, log: Log, record: RunRecord, start_seconds: float) -> None:
    """Go back to the weights that are kept, score the test part, write every file, say where they lie."""
    progress, splits = trainer.progress, run.splits
    metric = run.config.training.metric_for_best_model
    kept = progress.kept(run.config.training.weights_kept, metric, run.checked.task.share, len(splits.validation))
    best_epoch, step = kept["epoch"], int(kept["step"])
    run.strategy.end_training()  # what is scored is what will be saved
    if step != progress.step:
        if take_weights(run.output, run.strategy, step):
            run.output.say(_kept(best_epoch, step))
        else:
            best_epoch, step = progress.position / len(splits.train), progress.step
    elif progress.best is not None and progress.best[metric] != kept[metric]:
        run.output.say(_last(progress.best, kept, metric, len(splits.validation)))
    adapted, precision = run.loaded.adapted, run.model.classifier.precision
    if adapted is not None:
        merge_adapters(adapted)
    part = splits.test or splits.validation
    logits, score = run.predict(part)
    eval_score = score
    if part is not splits.validation:
        eval_score = evaluate.score_of(step, as_scored=not precision.rounds_weights and adapted is None)
    unlabelled = {
        file: logits_of(run.model, run.loaded.tokens[part.table.path], part.rows, run.world)
        for file, part in splits.unlabelled.items()
    }
    weights = run.strategy.stock_weights(keep=run.output.is_writer)
    log.close_trackers()
    if run.config.training.save_on_each_node:
        run.world.close()  # while there is a group transformers saves on rank 0 alone
    # Nobody leaves before the files are written, so that a script that goes on to load the folder finds it. Where one
    # process of each machine writes, there is no group any more to wait in.
    with contextlib.nullcontext() if run.world.closed else run.world.sync_errors():
        if run.output.is_writer:
            training = {"best_epoch": best_epoch, "start_seconds": start_seconds}
            outcome = _Outcome(weights, logits, unlabelled, eval_score, score, _unseen(run, logits))
            _write(run, trainer, record, outcome, training)


def _unseen(run: Run, logits: npt.NDArray[np.float32]) -> metrics.Scores | None:
    """The score of the test rows whose text is not in the training part, where some are and some are not."""
    splits = run.splits
    if splits.test is None or not 0 < len(splits.in_training["test"]) < len(splits.test):
        return None
    unseen = np.ones(len(splits.test), dtype=bool)
    unseen[list(splits.in_training["test"])] = False
    return run.checked.task.score(logits[unseen], splits.test.targets[unseen], run.config.training.seed)


def _kept(epoch: float, step: int) -> str:
    """The line on weights that are not the last ones."""
    if step > 0:
        return f"the weights of epoch {epoch:g} are kept: they scored best on the evaluation part"
    return (
        "note: fine-tuning did not improve on the logistic regression that it began with, so the weights before it are "
        "kept; try a lower --learning-rate, more --epochs or more rows"
    )


def _last(best: dict[str, float], last: dict[str, float], metric: str, rows: int) -> str:
    """The line on weights that are kept though earlier ones scored higher."""
    what = f"epoch {best['epoch']:g}" if best["step"] else "the start"
    name = metrics.display_name(metric)
    return (
        f"note: the last weights are kept: {name} {last[metric]:.3f} on {rows} validation rows, "
        f"and {what} had {best[metric]:.3f}, which may be chance (--keep to change)"
    )


@dataclass(frozen=True)
class _Outcome:
    """What a run ends with: weights, logits of the scored part and of the rows without a label by file, scores."""

    weights: dict[str, Any]
    logits: npt.NDArray[np.float32]
    unlabelled: dict[str, npt.NDArray[np.float32]]
    eval: metrics.Scores
    score: metrics.Scores
    unseen: metrics.Scores | None


def _write(run: Run, trainer: Trainer, record: RunRecord, outcome: _Outcome, training: dict[str, float]) -> None:
    """Every file of the output folder."""
    progress, splits, task = trainer.progress, run.splits, run.checked.task
    part, score, weights = splits.test or splits.validation, outcome.score, outcome.weights
    if run.loaded.vocabulary is not None:
        weights = run.loaded.vocabulary.expand(weights)
    with run.output.writing("the model"):
        save_model(run.output.folder, run.model.stock, weights, run.tokenized.tokenizer, _settings(run))
    predicted = {"predictions.csv": (part, outcome.logits)}
    predicted |= {file: (splits.unlabelled[file], logits) for file, logits in outcome.unlabelled.items()}
    for name, (of, logits) in predicted.items():
        with run.output.writing(name):
            fields = task.prediction_fields(task.probabilities(logits))
            guarded = run.config.training.excel_safe
            columns = task.prediction_columns()
            write_predictions(run.output.folder / name, of.table, of.rows, columns, fields, guarded=guarded)
    if splits.assignment is not None:
        copies = splits.train.table.text_hashes(splits.text_column)
        with run.output.writing(split_record.FILE):
            split_record.write_record(run.output.folder, copies, splits.assignment)
    rival = _baseline(run, part)
    majority = task.majority(splits.train.targets, part.targets)
    with run.output.writing("metrics.json"):
        write_json(
            run.output.folder / "metrics.json",
            {
                "task": task.name,
                "train": _train_metrics(run, progress),
                "eval": outcome.eval.as_json(),
                "test": _test_metrics(splits, outcome),
                "baseline": None if rival is None else rival.as_json(),
                "majority": majority.as_json(),
                "probe": trainer.probe_metrics,
                **training,
                "wall_seconds": run.elapsed,
            },
        )
    with run.output.writing("run.json"):
        record.write("finished")
    name = "test" if splits.test is not None else "evaluation"
    notes = advice.notes(
        score,
        name,
        majority=majority,
        baseline=rival,
        metric=task.primary,
        loss=_training_loss(run, progress),
        balanced=run.config.training.class_weights == "balanced",
    )
    if outcome.unseen is not None:
        unseen = outcome.unseen
        notes.append(
            f"without the {len(splits.in_training['test'])} test texts that are also in the training split: "
            f"{metrics.format_metrics(unseen.metrics)}"
        )
    _summary(run, score, rival, name, notes)


def _test_metrics(splits: Splits, outcome: _Outcome) -> dict[str, Any] | None:
    """The score of the test part; `unseen` is that of its texts which are not in the training part, too."""
    if splits.test is None:
        return None
    unseen = {} if outcome.unseen is None else {"unseen": outcome.unseen.as_json()}
    return {**outcome.score.as_json(), **unseen}


def _baseline(run: Run, part: Split) -> Baseline | None:
    """The baseline's score on the same rows, or None with the reason said: some tables have no words to count."""
    splits = run.splits
    try:
        return run.checked.task.baseline(
            splits.train.texts(splits.text_column),
            splits.train.targets,
            part.texts(splits.text_column),
            part.targets,
            run.config.training.seed,
        )
    except (ValueError, MemoryError) as error:
        run.output.say(f"note: the TF-IDF baseline cannot be fitted: {error}")
        return None


def _settings(run: Run) -> dict[str, Any]:
    """classify.json: what prediction must repeat."""
    return {
        "format": FORMAT,
        "task": run.checked.task.name,
        "text_column": run.splits.text_column,
        "max_length": run.tokenized.max_length,
        "long_text": "truncate",
        "temperature": 1.0,
    }


def _train_metrics(run: Run, progress: Progress) -> dict[str, Any]:
    return {
        "seconds": progress.seconds,
        "rows_per_second": progress.position / progress.seconds if progress.step else 0.0,
        "tokens_per_second": progress.tokens / progress.seconds if progress.step else 0.0,
        "steps": progress.step,
        "epochs": progress.position / len(run.splits.train),
        "loss": progress.mean_loss,
    }


def _training_loss(run: Run, progress: Progress) -> advice.TrainingLoss:
    last, epochs = progress.mean_loss, progress.position / len(run.splits.train)
    return advice.TrainingLoss(last if progress.first_loss is None else progress.first_loss, last, epochs)


def _summary(run: Run, score: metrics.Scores, rival: Baseline | None, part: str, notes: list[str]) -> None:
    run.output.say("")
    run.output.say(metrics.table(score))
    line = f"{part}: {metrics.format_metrics(score.metrics)}"
    if rival is not None:
        fitted = len(run.splits.train)
        on = f", fitted on {rival.rows} of {fitted} rows" if rival.rows < fitted else ""
        line += f"; TF-IDF baseline: {metrics.format_metrics(rival.metrics)} ({rival.seconds:.1f} s{on})"
    run.output.say(line)
    for note in notes:
        run.output.say(f"note: {note}")
    run.output.say("")
    run.output.say(f"result: {run.output.folder}")
    words = ["predict", "--model", str(run.output.folder), "--data", "new.csv", "--out", "predictions.csv"]
    run.output.say(f"next:   {shlex.join([*_program(), *words])}")


def _program() -> list[str]:
    """How this program can be called from where the person stands: `classify` may not be on their PATH."""
    if shutil.which("classify"):
        return ["classify"]
    python = os.path.relpath(sys.executable)
    return [sys.executable if python.startswith("..") else python, "-m", "classify"]
