"""The files of a finished run, one writer each, and what is printed of it."""

from __future__ import annotations

import functools
import math
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

from classify.config.recipe import CHARACTERS_PER_TOKEN, FOLD_TRAININGS
from classify.console import format_seconds
from classify.data import split_record
from classify.data.split_table import BY_SEED
from classify.data.splits import Split, Splits
from classify.errors import SHOWN, list_some
from classify.evaluation import advice, learning_curve, metrics, scope, scored_rows, suspects_file
from classify.evaluation.baseline import Baseline, MajorityBaseline, cross_validate_baseline
from classify.evaluation.label_noise import choose_to_review
from classify.evaluation.multi_label_metrics import OTHER_FOLDS, SCORED_ROWS
from classify.evaluation.predictions_file import EXACT, FOLD_COLUMN, FOR_EXCEL, write_predictions
from classify.evaluation.scored_rows import ScoredRows, SignTest, sign_test
from classify.evaluation.suspects_file import write_suspects
from classify.files import write_json
from classify.findings import Finding, note
from classify.modeling.result_folder import FORMAT, save_model
from classify.tables.options import ReadOptions
from classify.tables.table import Table
from classify.tasks.base import Task
from classify.training.open_set import OpenSet
from classify.training.run_record import RunRecord
from classify.training.setup import TrainingContext
from classify.training.terminal import log_event
from classify.training.trainer import Trainer

Logits = npt.NDArray[np.float32]
# The baseline sees this many times the characters that the model reads.
_TIMES_READ = 10


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
    without a label by file. `seen` (rows,): whether the text of a scored row was trained on, too; `unseen` are the
    scores of the others, None where these are all rows or none.
    """

    context: TrainingContext
    final: Final
    predicted: npt.NDArray[Any]
    trainer: Trainer
    record: RunRecord
    weights: dict[str, Any]
    unlabelled: dict[str, Logits]
    open_set: OpenSet | None
    validation_scores: metrics.Scores
    scores: metrics.Scores
    seen: npt.NDArray[np.bool_]
    unseen: metrics.Scores | None
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
        timeline = self.context.timeline
        timeline.end("files")
        try:
            return self._fit_baseline()
        except (ValueError, MemoryError) as error:
            found = note(f"the TF-IDF baseline cannot be fitted: {error}")
            self.record.findings.append(found)
            self.context.output.log(found.line())
            return None
        finally:
            timeline.end("baseline")

    def _fit_baseline(self) -> Baseline:
        """Fit the baseline on the training rows; with folds, score each row by the others.

        Of a text it sees ten times what the model reads: one of many megabytes would take minutes.
        """
        splits, task, seed = self.splits, self.task, self.context.config.training.seed
        most = _TIMES_READ * CHARACTERS_PER_TOKEN * self.context.data.max_length

        def texts(split: Split) -> list[str]:
            return [text[:most] for text in split.texts(splits.columns.text)]

        train, scored = splits.train, splits.scored
        if splits.folds is not None and scored is train:
            fit = functools.partial(task.baseline, seed=seed)
            return cross_validate_baseline(texts(train), train.targets, splits.folds, fit, task.scores.metrics)
        return task.baseline(texts(train), train.targets, texts(scored), scored.targets, seed)

    @functools.cached_property
    def paired(self) -> SignTest | None:
        """The paired test of the model against the baseline on the same texts."""
        rows = self.scored_rows
        if rows.predicted is None or rows.baseline is None:
            return None
        places = rows.independent
        score, targets = self.task.scores.row_scores, rows.targets[places]
        return sign_test(score(rows.predicted[places], targets), score(rows.baseline[places], targets))

    @functools.cached_property
    def scored_rows(self) -> ScoredRows:
        scored = self.splits.scored
        hashes = scored.table.text_hashes(self.splits.columns.text)[scored.rows]
        others = None if self.baseline is None else self.baseline.predicted
        return ScoredRows(hashes, scored.targets, self.final.scored, self.predicted, others, self.seen)

    def majority(self, rows: npt.NDArray[Any] | slice = slice(None)) -> MajorityBaseline:
        """Score predicting the most frequent label for some of the scored rows."""
        return self.task.scores.majority(self.splits.train.targets, self.splits.scored.targets[rows])

    @functools.cached_property
    def headline(self) -> tuple[metrics.Scores, Baseline | None, MajorityBaseline]:
        """The scores of the model and of the baselines on the rows that the model was not trained on."""
        if self.unseen is None:
            return self.scores, self.baseline, self.majority()
        baseline, unseen = self.baseline, ~self.seen
        if baseline is not None:
            on_unseen = self.task.scores.metrics(baseline.predicted[unseen], self.splits.scored.targets[unseen])
            baseline = replace(baseline, metrics=on_unseen)
        return self.unseen, baseline, self.majority(unseen)

    @functools.cached_property
    def notes(self) -> list[Finding]:
        return [note(text) for text in _notes(self)]

    @property
    def scored_name(self) -> str:
        """What the scored rows are called in messages: test, cross-validated or validation."""
        if self.splits.test is not None:
            return "test"
        return "validation" if self.splits.method is None else "cross-validated"


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
        **({} if results.open_set is None else results.open_set.scope.as_settings()),
    }
    dtype = getattr(torch, context.config.training.save_dtype)
    weights = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in results.weights.items()
    }
    classifier = context.classifier
    save_model(context.output.folder, classifier.model, weights, context.data.tokenizer, settings)
    if results.open_set is not None:
        results.open_set.scope.write(context.output.folder)
    # Of a run that is extended: if a later writer fails they would be taken for scores of these weights.
    for name in ("metrics.json", scored_rows.FILE, learning_curve.FILE):
        (context.output.folder / name).unlink(missing_ok=True)


def _write_predictions(results: Results) -> None:
    task, context = results.task, results.context
    digits = FOR_EXCEL if context.config.training.excel_safe else EXACT
    files = {"predictions.csv": (results.splits.scored, results.final.scored)}
    files |= {file: (results.splits.unlabelled[file], logits) for file, logits in results.unlabelled.items()}
    open_set = results.open_set
    if open_set is not None and results.splits.outside_scored is not None:
        files[scope.OUTSIDE_FILE] = (results.splits.outside_scored, open_set.outside_logits)
    for name, (split, logits) in files.items():
        columns, predicted = task.answers.columns(), results.predicted if split is results.splits.scored else None
        fields = task.answers.fields(task.answers.probabilities(logits), digits, predicted)
        if open_set is not None and name in ("predictions.csv", scope.OUTSIDE_FILE):
            in_scope = open_set.outside if name == scope.OUTSIDE_FILE else open_set.in_scope
            columns, fields = open_set.scope.names(columns), open_set.scope.mark(fields, in_scope, digits)
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
    results.scored_rows.write(results.context.output.folder)


def _write_suspects(results: Results) -> None:
    """Write suspects.csv, where every row was scored by a fold that did not train on it."""
    split, splits, path = results.splits.train, results.splits, results.context.output.folder / suspects_file.FILE
    path.unlink(missing_ok=True)  # of an earlier run in this folder
    if splits.folds is None or splits.scored is not split or len(splits.columns.labels) > 1:
        return
    if not results.task.answers.has_confidence:
        return
    probabilities = results.task.answers.probabilities(results.final.scored)
    suspects = choose_to_review(probabilities, split.targets)
    if len(suspects.rows):
        columns = (splits.columns.text, splits.columns.labels[0])
        for_excel = results.context.config.training.excel_safe
        write_suspects(
            path, suspects, split.table, split.rows, columns, split.targets, probabilities, for_excel=for_excel
        )


def _write_split(results: Results) -> None:
    """Write which split, or fold, each text of the run is in; of folds, texts of other tables are in none."""
    splits, column = results.splits, results.splits.columns.text
    parts: list[tuple[Table, npt.NDArray[np.int8]]] = []
    if splits.assignment is not None:
        parts.append((splits.train.table, splits.assignment))
    if splits.folds is None:
        named = [*enumerate((splits.train, splits.validation, splits.test))]
        named += [(split_record.UNUSED, split) for split in (*splits.outside, splits.outside_scored)]
        for number, split in named:
            if split is not None and not (splits.assignment is not None and number == 0):
                of_rows = np.full(len(split.table), -1, dtype=np.int8)
                of_rows[split.rows] = number
                parts.append((split.table, of_rows))
    split_record.write_record(
        results.context.output.folder,
        np.concatenate([table.text_hashes(column) for table, _ in parts]),
        np.concatenate([numbers for _, numbers in parts]),
        splits.num_folds,
    )


def _write_metrics(results: Results) -> None:
    progress = results.trainer.progress
    method: dict[str, Any] = {}
    if results.splits.method is not None:
        method = {"method": results.splits.method, "folds": results.splits.num_folds}
    thresholds = {}
    if results.task.answers.thresholds is not None:
        thresholds = {"thresholds": SCORED_ROWS if results.splits.folds is None else OTHER_FOLDS}
    scores, baseline, majority = results.headline
    unseen = {} if results.unseen is None else {"unseen": scores.as_json()}
    validation, test = {**results.validation_scores.as_json(), **method, **thresholds}, None
    if results.splits.test is not None:
        test = {**results.scores.as_json(), **unseen}
    elif method:  # every row was scored by a model that had not seen it
        test = validation
    else:
        validation |= unseen
    write_json(
        results.context.output.folder / "metrics.json",
        {
            "task": results.task.name,
            "train": {
                "seconds": progress.seconds,
                "rows_per_second": progress.position / progress.seconds if progress.step else 0.0,
                "tokens_per_second": progress.tokens / progress.seconds if progress.step else 0.0,
                "steps": progress.step,
                "collapsed_epoch": progress.collapsed_epoch,
                "epochs": progress.position / len(results.splits.train),
                "loss": progress.mean_loss if progress.step else None,
            },
            "eval": validation,
            "test": test,
            "calibration": results.final.calibration,
            **({} if results.open_set is None else {"in_scope": results.open_set.metrics}),
            "baseline": _describe_baseline(results, {"unseen": baseline.metrics} if unseen and baseline else {}),
            "majority": {**results.majority().as_json(), **({"unseen": majority.metrics} if unseen else {})},
            "probe": progress.probe,
            "pairs": progress.contrastive,
            "best_epoch": results.kept_epoch,
            "start_seconds": results.start_seconds,
            "wall_seconds": results.context.timeline.elapsed,
        },
    )


def _describe_baseline(results: Results, unseen: dict[str, Any]) -> dict[str, Any] | None:
    """The baseline's scores, with the paired test of the model against it on the same texts."""
    if results.baseline is None or results.paired is None:
        return None
    return {**results.baseline.as_json(), **unseen, "paired": asdict(results.paired)}


def _write_record(results: Results) -> None:
    results.record.findings.extend(results.notes)
    results.record.write("finished")


def _print_summary(results: Results) -> None:
    output, (scores, baseline, _) = results.context.output, results.headline
    name = "test" if results.splits.test is not None else results.splits.method or "validation"
    if results.unseen is not None:
        name += f" ({scores.rows} of {len(results.seen)} rows, whose text was not trained on)"
    output.log("")
    output.log(metrics.table(scores))
    line = f"{name}: {metrics.format_metrics(scores.metrics)}"
    if baseline is not None:
        fitted = len(results.splits.train) if results.splits.folds is None else 0
        on = f", fitted on {baseline.rows} of {fitted} rows" if baseline.rows < fitted else ""
        line += f"; TF-IDF baseline: {metrics.format_metrics(baseline.metrics)} ({baseline.seconds:.1f} s{on})"
    output.log(line)
    if results.open_set is not None:
        output.log(scope.summarize(results.open_set.metrics))
    for found in results.notes:
        output.log(found.line())
    output.log("")
    output.log(f"result: {output.folder}")
    if output.world.is_main:
        part = "test" if results.splits.test is not None else "eval"
        log_event("result", {"folder": str(output.folder), part: results.scores.as_json()})
    words = ["predict", "--model", str(output.folder), "--data", "new.csv", "--out", "predictions.csv"]
    output.log(f"next:   {shlex.join([*_program(), *words])}")


def _notes(results: Results) -> list[str]:
    progress = results.trainer.progress
    first, last = progress.first_loss, progress.mean_loss
    epochs, outputs = progress.position / len(results.splits.train), results.final.scored.shape[1]
    given = results.context.inputs.parts.loss is not None  # it may refuse these tensors
    scores, baseline, majority = results.headline
    chance = math.nan if given else results.trainer.loss.by_chance(results.trainer.data.targets, outputs)
    notes = advice.notes(
        scores,
        results.scored_name,
        majority=majority,
        baseline=baseline,
        paired=results.paired,
        metric=results.task.scores.primary,
        loss=advice.TrainingLoss(last if first is None else first, last, epochs, chance),
        balanced=results.context.config.training.class_weights == "balanced",
        folds=_time_of_folds(results),
    )
    chosen = results.task.answers.thresholds is not None
    if chosen and results.splits.test is None and results.splits.folds is None:
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
            f"with the {int(results.seen.sum())} {results.scored_name} texts that are also in the training split: "
            f"{metrics.format_metrics(results.scores.metrics)}"
        )
    return notes


def _time_of_folds(results: Results) -> str:
    """About how long a run with five folds would take; "" where rows were not divided by seed."""
    config = results.context.config.data
    split = next((one for one in results.splits.findings if one.where == "split"), None)
    if split is None or split.flag != BY_SEED or config.test_data is not None:
        return ""
    return format_seconds(FOLD_TRAININGS * results.context.timeline.elapsed)


def _program() -> list[str]:
    """How to call this program from the working directory: `classify` may not be on the PATH."""
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
    ("run.json", _write_record),
    ("the summary", _print_summary),
)
