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

from classify import tasks, training
from classify.config.recipe import CHARACTERS_PER_TOKEN, FOLD_TRAININGS
from classify.console import format_seconds
from classify.data import split_record
from classify.data.assignment import BY_SEED
from classify.data.splits import Split, Splits
from classify.errors import SHOWN, list_some
from classify.evaluation import advice, learning_curve, metrics, scope, scored_rows, suspects_file
from classify.evaluation.metrics import OTHER_FOLDS, SCORED_ROWS, Baseline, MajorityBaseline
from classify.evaluation.scored_rows import ScoredRows, SignTest, sign_test
from classify.findings import note
from classify.modeling import kept_features
from classify.modeling.result_folder import FORMAT, save_model
from classify.tables.source import ReadOptions
from classify.tasks.base import EXACT, FOR_EXCEL, Task
from classify.tasks.columns import FILE as PREDICTIONS, PredictionColumns
from classify.training import teacher
from classify.training.run_record import RunRecord
from classify.training.setup import TrainingContext
from classify.training.terminal import log, log_event
from classify.training.trainer import Trainer

Logits = npt.NDArray[np.float32]
# The baseline sees this many times the characters that the model reads: a text of many megabytes would take minutes.
_TIMES_READ = 10


@dataclass(frozen=True)
class Results:
    """A finished run, for the writers of its files; scores are computed when they are first read.

    `task` is the task of the finished model, `validation` and `logits` are its logits of the validation split and of
    the scored rows: the test split, or validation where there is none. With folds the validation split is the training
    split, whose logits come from the folds' models. `unlabelled` are the logits of rows without a label, by file;
    `calibration` is the entry of metrics.json.
    """

    context: TrainingContext
    trainer: Trainer
    record: RunRecord
    task: Task
    validation: Logits
    logits: Logits
    calibration: dict[str, Any] | None
    unlabelled: dict[str, Logits]
    taught: list[Logits]
    open_set: training.open_set.OpenSet | None
    kept: kept_features.KeptFeatures | None
    weights: dict[str, Any]
    kept_epoch: float
    start_seconds: float

    @property
    def splits(self) -> Splits:
        return self.context.splits

    @property
    def has_thresholds(self) -> bool:
        of_columns = (column.task.answers for column in self.task.columns)
        return any(answers.thresholds is not None for answers in (self.task.answers, *of_columns))

    @property
    def by_folds(self) -> bool:
        return self.splits.folds is not None and self.splits.scored is self.splits.train

    def _decide(self, logits: Logits, split: Split) -> npt.NDArray[Any]:
        """The predictions of a split, in the form of its targets."""
        answers, folds = self.task.answers, self.splits.folds
        probabilities = answers.probabilities(logits)
        predicted = answers.decide(probabilities)
        if folds is not None and split is self.splits.train:
            for number in range(self.splits.num_folds):  # no threshold is chosen on the rows that it decides
                own = folds == number
                fitted = answers.fitted(probabilities[~own], split.targets[~own])
                predicted[own] = fitted.decide(probabilities[own])
        return predicted

    @functools.cached_property
    def predicted(self) -> npt.NDArray[Any]:
        return self._decide(self.logits, self.splits.scored)

    @functools.cached_property
    def scores(self) -> metrics.Scores:
        return self.context.score(self.task, self.logits, self.splits.scored, self.predicted)

    @functools.cached_property
    def validation_scores(self) -> metrics.Scores:
        if self.splits.test is None:
            return self.scores
        predicted = self._decide(self.validation, self.splits.validation)
        return self.context.score(self.task, self.validation, self.splits.validation, predicted)

    @functools.cached_property
    def seen(self) -> npt.NDArray[np.bool_]:
        """(rows,) whether the text of a scored row is in the training split, too; never with folds."""
        splits = self.splits
        seen = np.zeros(len(splits.scored), dtype=bool)
        if splits.scored is not splits.train:
            seen[list(splits.in_training.get("test" if splits.test is not None else "validation", ()))] = True
        return seen

    @functools.cached_property
    def baseline(self) -> Baseline | None:
        """The baseline's scores on the same rows; None, with a note, for tables without words to count.

        It is first read after the model is saved. With folds, each row is scored by a baseline of the other folds.
        """
        splits, task, context, seed = self.splits, self.task, self.context, self.context.config.training.seed
        if context.inputs.kept is not None:  # it would not know the classes that have no row here
            return None
        train, scored, targets = splits.train, splits.scored, splits.train.targets
        context.timeline.end("files")
        try:
            most, column = _TIMES_READ * CHARACTERS_PER_TOKEN * context.data.max_length, splits.columns.text
            texts, others = ([text[:most] for text in split.texts(column)] for split in (train, scored))
            if context.refits_on_validation and splits.test is not None:  # the model has learned from these, too
                texts += [text[:most] for text in splits.validation.texts(column)]
                targets = np.concatenate([targets, splits.validation.targets])
            if splits.folds is not None and self.by_folds:
                return tasks.baseline.cross_validate(task, texts, train.targets, splits.folds, seed)
            return tasks.baseline.fit(task, texts, targets, others, scored.targets, seed)
        except (ValueError, MemoryError) as error:
            found = note(f"the TF-IDF baseline cannot be fitted: {error}")
            self.record.findings.append(found)
            log(found.line())
            return None
        finally:
            context.timeline.end("baseline")

    @functools.cached_property
    def paired(self) -> SignTest | None:
        """The paired test of the model against the baseline on the same texts."""
        rows = self.scored_rows
        return None if rows.baseline is None else _test(self.task, rows.take(rows.independent))

    def describe_baseline(self) -> dict[str, Any] | None:
        """The entry of metrics.json: the baseline's metrics, and the paired test of each of several columns."""
        if self.baseline is None or self.paired is None:
            return None
        entry = {**self.baseline.as_json(), "paired": asdict(self.paired)}
        for column in self.task.columns:
            if column.name in entry["columns"]:
                rows = column.take(self.scored_rows)  # first, since the first row of a text may lack the column
                entry["columns"][column.name] |= {"paired": asdict(_test(column.task, rows.take(rows.independent)))}
        return entry

    @functools.cached_property
    def scored_rows(self) -> ScoredRows:
        scored = self.splits.scored
        hashes = scored.table.text_hashes(self.splits.columns.text)[scored.rows]
        others = None if self.baseline is None else self.baseline.predicted
        return ScoredRows(hashes, scored.targets, self.logits, self.predicted, others, self.seen)

    @functools.cached_property
    def majority(self) -> MajorityBaseline:
        return self.task.scores.majority(self.splits.train.targets, self.splits.scored.targets)

    @functools.cached_property
    def unseen(self) -> tuple[metrics.Scores, Baseline | None, MajorityBaseline] | None:
        """The scores of model and baselines on rows whose text was not trained on; None where these are all or none."""
        if not self.seen.any() or self.seen.all():
            return None
        scored, new, judge, baseline = self.splits.scored, ~self.seen, self.task.scores, self.baseline
        part = Split(scored.table, scored.rows[new], scored.targets[new])
        if baseline is not None:
            baseline = replace(baseline, metrics=judge.metrics(baseline.predicted[new], part.targets))
        scores = self.context.score(self.task, self.logits[new], part, self.predicted[new])
        return scores, baseline, judge.majority(self.splits.train.targets, part.targets)

    @property
    def headline(self) -> tuple[metrics.Scores, Baseline | None, MajorityBaseline]:
        return self.unseen or (self.scores, self.baseline, self.majority)


def _test(task: Task, rows: ScoredRows) -> SignTest:
    """The paired test of the model against the baseline."""
    assert rows.predicted is not None
    assert rows.baseline is not None
    return sign_test(*(task.scores.row_scores(values, rows.targets) for values in (rows.predicted, rows.baseline)))


def _write_model(results: Results) -> None:
    context, open_set, training = results.context, results.open_set, results.context.config.training
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
        **(results.task if open_set is None else replace(results.task, scope=open_set.scope)).settings(),
    }
    dtype, folder = getattr(torch, training.save_dtype), context.output.folder
    weights = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in results.weights.items()
    }
    save_model(folder, context.classifier.model, weights, context.data.tokenizer, settings)
    if open_set is not None:
        open_set.scope.write(folder)
    (folder / kept_features.FILE).unlink(missing_ok=True)
    if results.kept is not None:
        results.kept.write(folder)
    # Of a run that is extended: if a later writer fails they would be taken for scores of these weights.
    for name in ("metrics.json", scored_rows.FILE, learning_curve.FILE):
        (folder / name).unlink(missing_ok=True)


def _write_predictions(results: Results) -> None:
    splits, open_set, folder = results.splits, results.open_set, results.context.output.folder
    excel_safe = results.context.config.training.excel_safe
    plain = PredictionColumns(results.task, digits=FOR_EXCEL if excel_safe else EXACT, for_excel=excel_safe)
    columns, outputs = plain, results.logits
    if open_set is not None:
        columns = replace(plain, task=replace(results.task, scope=open_set.scope))
        outputs = np.column_stack([outputs, open_set.in_scope])
        if (rest := splits.outside_scored) is not None:
            columns.write(folder / scope.OUTSIDE_FILE, rest.table, rest.rows, open_set.outside)
    scored, folds = splits.scored, splits.folds if results.by_folds else None
    path = folder / PREDICTIONS
    columns.write(path, scored.table, scored.rows, outputs, predicted=results.predicted, folds=folds)
    for file, logits in results.unlabelled.items():
        plain.write(folder / file, splits.unlabelled[file].table, splits.unlabelled[file].rows, logits)


def _write_split(results: Results) -> None:
    """Write which split, or fold, each text of the run is in; of folds, texts of other tables are in none."""
    splits, column = results.splits, results.splits.columns.text
    parts = [] if splits.assignment is None else [(splits.train.table, splits.assignment)]
    if splits.folds is None:
        numbered = list(enumerate((splits.train, splits.validation, splits.test)))
        numbered += [(split_record.UNUSED, split) for split in (*splits.outside, splits.outside_scored)]
        for number, split in numbered[len(parts) :]:  # the assignment says which rows are in the training split
            if split is not None:
                of_rows = np.full(len(split.table), -1, dtype=np.int8)
                of_rows[split.rows] = number
                parts.append((split.table, of_rows))
    for source in splits.sources:
        of_rows = np.full(len(source.split.table), -1, dtype=np.int8)
        of_rows[source.split.rows] = splits.num_folds or split_record.SOURCE
        parts.append((source.split.table, of_rows))
    learned = ["train", *(["eval"] if results.context.refits_on_validation else [])]
    learned += [split_record.PARTS[split_record.SOURCE]] if splits.sources else []
    split_record.write_record(
        results.context.output.folder,
        np.concatenate([table.text_hashes(column) for table, _ in parts]),
        np.concatenate([numbers for _, numbers in parts]),
        splits.num_folds,
        learned,
    )


def _write_scored_rows(results: Results) -> None:
    results.scored_rows.write(results.context.output.folder)


def _write_taught(results: Results) -> None:
    if results.splits.to_teach is not None:
        probabilities = [results.task.answers.probabilities(logits) for logits in results.taught]
        teacher.write(results.context.output.folder, results.splits, results.task.labels, probabilities)


def _write_suspects(results: Results) -> None:
    """Write suspects.csv, where every row was scored by a fold that did not train on it."""
    split, columns = results.splits.train, results.splits.columns
    path = results.context.output.folder / suspects_file.FILE
    path.unlink(missing_ok=True)  # of an earlier run in this folder
    if not results.by_folds or (len(columns.labels) > 1 and not columns.are_separate):
        return
    task, rows = results.task, results.scored_rows
    parts = [(one.name, one.task, one.rows(rows.targets), one.take(rows)) for one in task.columns]
    reviewed = []
    for name, part, places, scored in parts or [(columns.labels[0], task, np.arange(len(split)), rows)]:
        if part.answers.has_confidence:
            probabilities = part.answers.probabilities(scored.logits)
            suspects = suspects_file.choose_to_review(probabilities, scored.targets)
            one = suspects_file.ReviewedColumn(name, suspects, split.rows[places], scored.targets, probabilities)
            reviewed.append(one)
    if any(len(one.suspects.rows) for one in reviewed):
        excel_safe = results.context.config.training.excel_safe
        several = columns.are_separate
        suspects_file.write_suspects(path, split.table, columns.text, reviewed, several=several, for_excel=excel_safe)


def _write_metrics(results: Results) -> None:
    progress, splits, open_set = results.trainer.progress, results.splits, results.open_set
    validation, test = results.validation_scores.as_json(), None
    if splits.method is not None:
        validation |= {"method": splits.method, "folds": splits.num_folds}
    if results.has_thresholds:
        validation["thresholds"] = SCORED_ROWS if splits.folds is None else OTHER_FOLDS
    if splits.test is not None:
        test = results.scores.as_json()
    elif splits.method is not None:  # every row was scored by a model that had not seen it
        test = validation
    metrics.write_metrics(
        results.context.output.folder,
        results.majority,
        results.unseen,
        task=results.task.name,
        eval=validation,
        test=test,
        calibration=results.calibration,
        baseline=results.describe_baseline(),
        train={
            "seconds": progress.seconds,
            "rows_per_second": progress.position / progress.seconds if progress.step else 0.0,
            "tokens_per_second": progress.tokens / progress.seconds if progress.step else 0.0,
            "steps": progress.step,
            "collapsed_epoch": progress.collapsed_epoch,
            "epochs": progress.position / splits.num_learned,
            "loss": progress.mean_loss if progress.step else None,
        },
        **({} if open_set is None else {scope.COLUMN: open_set.metrics}),
        probe=progress.probe,
        pairs=progress.contrastive,
        best_epoch=results.kept_epoch,
        start_seconds=results.start_seconds,
        wall_seconds=results.context.timeline.elapsed,
    )


def _end_record(results: Results) -> None:
    """Write the status "finished" and the notes into run.json, and print scores, notes, and what to do next."""
    output, splits, (scores, baseline, _) = results.context.output, results.splits, results.headline
    notes = [note(text) for text in _notes(results)]
    results.record.findings.extend(notes)
    results.record.write("finished")
    name = "test" if splits.test is not None else splits.method or "validation"
    if results.unseen is not None:
        name += f" ({scores.rows} of {len(results.seen)} rows, whose text was not trained on)"
    line = f"{name}: {metrics.format_metrics(scores.metrics)}"
    if baseline is not None:
        fitted = len(splits.train) if splits.folds is None else 0
        on = f", fitted on {baseline.rows} of {fitted} rows" if baseline.rows < fitted else ""
        line += f"; TF-IDF baseline: {metrics.format_metrics(baseline.metrics)} ({baseline.seconds:.1f} s{on})"
    in_scope = [] if results.open_set is None else [scope.summarize(results.open_set.metrics)]
    lines = ["", metrics.table(scores), line, *in_scope, *(found.line() for found in notes)]
    for line in [*lines, "", f"result: {output.folder}"]:
        log(line)
    part = "test" if splits.test is not None else "eval"
    log_event("result", {"folder": str(output.folder), part: results.scores.as_json()})
    python = os.path.relpath(sys.executable)
    module = [sys.executable if python.startswith("..") else python, "-m", "classify"]
    program = ["classify"] if shutil.which("classify") else module  # it may not be on the PATH
    words = ["predict", "--model", str(output.folder), "--data", "new.csv", "--out", "predictions.csv"]
    log(f"next:   {shlex.join([*program, *words])}")


def _notes(results: Results) -> list[str]:
    progress, splits, data = results.trainer.progress, results.splits, results.trainer.data
    first, last = progress.first_loss, progress.mean_loss
    epochs, outputs = progress.position / splits.num_learned, results.logits.shape[1]
    given = results.context.inputs.parts.loss is not None  # it may refuse these tensors
    scores, baseline, majority = results.headline
    chance = math.nan if given else tasks.losses.loss_by_chance(results.trainer.loss, data.targets, outputs)
    part = "test" if splits.test is not None else "validation" if splits.method is None else "cross-validated"
    by_seed = any(one.where == "split" and one.flag == BY_SEED for one in splits.findings)
    foldable = by_seed and results.context.config.data.test_data is None
    notes = advice.notes(
        scores,
        part,
        majority=majority if results.context.inputs.kept is None else replace(majority, metrics={}),
        baseline=baseline,
        paired=results.paired,
        metric=results.task.scores.primary,
        loss=advice.TrainingLoss(last if first is None else first, last, epochs, chance),
        balanced=results.context.config.training.class_weights == "balanced",
        folds=format_seconds(FOLD_TRAININGS * results.context.timeline.elapsed) if foldable else "",
    )
    for column in results.task.columns:
        if (of_column := scores.columns.get(column.name)) is not None:
            frequent = dict(majority.metrics["columns"][column.name])
            found = advice.notes(
                of_column,
                part,
                majority=MajorityBaseline(frequent.pop("label"), frequent),
                baseline=None,
                paired=None,
                metric=column.task.scores.primary,
                loss=advice.TrainingLoss(0.0, 0.0, epochs, math.inf),  # that of all columns is above
                balanced=results.context.config.training.class_weights == "balanced",
                folds=format_seconds(FOLD_TRAININGS * results.context.timeline.elapsed) if foldable else "",
            )
            notes += [f"column {column.name!r}: {text}" for text in found]
    if results.has_thresholds and splits.test is None and splits.folds is None:
        notes.append(
            "the thresholds were chosen on the validation rows that are scored, so F1 may be too high; give "
            "--test-data, or --folds 5"
        )
    suspects, counted = suspects_file.read_suspects(results.context.output.folder, SHOWN)
    if counted:
        unit = splits.train.table.unit
        shown = (f"{unit} {one['row']}: {one['label']!r}, suggested {one['suggested_label']!r}" for one in suspects)
        notes.append(
            f"{counted} of {len(splits.train)} labels may be wrong ({suspects_file.MEASURED}; suspects.csv): "
            f"{list_some([line.strip() for line in shown], counted)}"
        )
    if results.unseen is not None:
        notes.append(
            f"with the {int(results.seen.sum())} {part} texts that are also in the training split: "
            f"{metrics.format_metrics(results.scores.metrics)}"
        )
    return notes


# A file as an error of the disk names it, and the function that writes it, in order.
WRITERS: tuple[tuple[str, Callable[[Results], None]], ...] = (
    ("the model", _write_model),
    (PREDICTIONS, _write_predictions),
    (split_record.FILE, _write_split),
    (scored_rows.FILE, _write_scored_rows),
    (suspects_file.FILE, _write_suspects),
    (teacher.FILE, _write_taught),
    ("metrics.json", _write_metrics),
    ("run.json", _end_record),
)
