"""`classify inspect`: the tables, what the tokenizer makes of them, and how long training on them would take here."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from classify.config.run_config import RunConfig
from classify.data.long_texts import POLICIES
from classify.data.split_rows import cap_rows
from classify.data.splits import Splits
from classify.data.tokenize import TokenizedSplit, Tokens, tokenize_columns
from classify.errors import InputError
from classify.evaluation import baseline
from classify.evaluation.inference import compute_logits
from classify.findings import note
from classify.modeling.coverage import check_coverage
from classify.modeling.loading import load_tokenizer, quiet_libraries
from classify.modeling.precision import choose_precision
from classify.tasks.base import Task
from classify.training import contrastive, dry_run, linear_probe, memory_forecast, table_report
from classify.training.inputs import RunInputs, check
from classify.training.setup import configure_precision, load_classifier
from classify.training.strategies.base import Strategy
from classify.training.strategies.registry import make_placement, make_strategy
from classify.training.table_report import Report
from classify.training.trainer import make_trainer

# Texts with several labels that inspect.json lists.
_LISTED = 1000
# What time is measured on: steps on pairs, of which the first does not count, rows scored, rows of the baseline.
_CONTRASTIVE_STEPS, _SCORED_ROWS, _BASELINE_ROWS = 5, 256, 500


@quiet_libraries()
def inspect_run(config: RunConfig) -> Report:
    """Inspect a run's tables without training on them. Raises InputError where a run would not begin.

    A model that cannot read the texts is noted, and no time is measured then.
    """
    inputs = check(config)
    splits, cap = inputs.splits, inputs.model.max_length
    report = table_report.inspect_splits(splits, listed=_LISTED)
    report.task = inputs.task.name
    tokenizer = load_tokenizer(inputs.model)
    report.languages = inputs.languages.among_detected
    tokens = tokenize_columns(tokenizer, splits.train.table, splits.columns.texts.inputs, cap)
    table_report.count_tokens(report, splits, tokens, config.data.max_length, cap, tokenizer)
    try:
        model = inputs.config.model
        warning = check_coverage(
            splits.train, splits.columns.text, tokens, tokenizer, model, named=inputs.config.names_model
        )
    except InputError as error:
        report.findings += map(note, error.faults)
        return report
    report.findings += [] if warning is None else [note(warning)]
    policy = POLICIES[config.data.long_texts]
    report.speed = _measure_speed(inputs, tokenizer, tokens.cut(int(report.tokens["max_length"]), policy))
    return report


def _measure_speed(inputs: RunInputs, tokenizer: object, tokens: Tokens) -> dict[str, Any]:
    """Return rows per second of steps that change nothing, the seconds that a run would take, and bytes per device."""
    config, train = inputs.config, inputs.splits.train
    training = config.training
    with training.start() as world, tempfile.TemporaryDirectory() as folder:
        precision = choose_precision(training.precision, world.device, training.opt_level)
        classifier, _ = load_classifier(inputs, tokenizer, [tokens], world.device)
        data = TokenizedSplit(tokens, train.rows, train.targets)
        placement = make_placement(classifier, training, world, data.mean_length)
        placement.place(Path(folder))
        configure_precision(inputs, classifier, tokens, world, precision)
        strategy = make_strategy(classifier, training, world, placement)
        trainer = make_trainer(strategy, inputs.task, data)
        strategy.setup()
        rate = dry_run.measure(trainer)
        need = memory_forecast.estimate(inputs, world, data.mean_length)
        seconds = _estimate_seconds(inputs, strategy, data, rate)
    return {
        "rows_per_second": rate,
        "seconds_per_epoch": len(train) / rate,
        "epochs": training.epochs,
        "seconds_by_part": seconds,
        "seconds": sum(seconds.values()),
        "memory_bytes": float(need.total),
    }


def _estimate_seconds(inputs: RunInputs, strategy: Strategy, data: TokenizedSplit, rate: float) -> dict[str, float]:
    """Estimate the time of each part of a run, from a few contrastive steps, forward passes and a small baseline.

    The contrastive steps change the model, which is not used any more.
    """
    config, splits, task = inputs.config.training, inputs.splits, inputs.task
    epochs = config.epochs
    times = [time.perf_counter()]
    steps = min(config.contrastive_steps or 0, _CONTRASTIVE_STEPS)
    contrastive.contrastive_warmup(strategy, data, task, steps, lambda _: times.append(time.perf_counter()))
    pair_step = statistics.median(np.diff(times[1:])) if steps > 1 else 0.0
    sample = data.rows[:_SCORED_ROWS]
    begin = time.perf_counter()
    compute_logits(strategy.classifier, data.tokens, sample, strategy.world)
    forward = (time.perf_counter() - begin) / len(sample)
    has_probe = inputs.config.model.head == "probe"
    probed = linear_probe.row_limit(strategy.classifier, is_final=epochs == 0) if has_probe else 0
    times_scored = 1 if splits.num_folds else math.ceil(epochs) + has_probe
    scored = len(splits.validation) * times_scored + (len(splits.test) if splits.test else 0)
    trainings, fits = 1 + splits.num_folds, max(1, splits.num_folds)
    return {
        "pairs": trainings * (config.contrastive_steps or 0) * float(pair_step),
        "head": trainings * forward * min(probed, len(splits.train)),
        "epochs": trainings * epochs * len(splits.train) / rate,
        "scores": forward * scored,
        "baseline": fits * _baseline_seconds(splits, task, config.seed),
    }


def _baseline_seconds(splits: Splits, task: Task, seed: int) -> float:
    """Estimate the baseline's time from some of the rows that it would be fitted on."""
    train = splits.train
    rows = cap_rows(task.stratify_by(train.targets), np.arange(len(train)), _BASELINE_ROWS, seed=seed)
    part = replace(train, rows=train.rows[rows], targets=train.targets[rows])
    texts = part.texts(splits.columns.text)
    try:
        seconds = task.baseline(texts, part.targets, texts, part.targets, seed).seconds
    except ValueError:  # no words to count
        return 0.0
    return seconds * min(len(splits.train), baseline.MAX_ROWS) / len(rows)
