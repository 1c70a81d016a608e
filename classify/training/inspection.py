"""`classify inspect`: the tables, what the tokenizer makes of them, and how long training on them would take here."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from classify.config.schema import RunConfig
from classify.data import inspect
from classify.data.coverage import check_coverage
from classify.data.inspect import Report
from classify.data.sampler import BatchSampler
from classify.data.tokenize import Tokens, TrainingSet, load_tokenizer, tokenize_column
from classify.errors import InputError
from classify.modeling.classifier import quiet_libraries
from classify.modeling.precision import choose_precision
from classify.training import dry_run, memory_forecast
from classify.training.inputs import Checked, check
from classify.training.loading import load, settle_arithmetic
from classify.training.strategies.base import make_strategy
from classify.training.trainer import Trainer

# Texts with several labels that inspect.json lists.
_LISTED = 1000


def inspect_run(config: RunConfig) -> Report:
    """All that can be said of a run's tables without training on them. Raises InputError where a run would not begin.

    A model that cannot read the texts is noted, and no time is measured then.
    """
    quiet_libraries()
    checked = check(config)
    corpus, cap = checked.corpus, checked.model.max_length
    report = inspect.inspect_corpus(corpus, listed=_LISTED)
    tokenizer = load_tokenizer(str(checked.model.path))
    column = corpus.text_column
    with ThreadPoolExecutor(1) as beside:  # the tokenizer works without the GIL
        task = beside.submit(tokenize_column, tokenizer, corpus.train.table, column, cap)
        inspect.look_at_sample(report, corpus, config.training.seed)
        tokens = task.result()
    inspect.count_tokens(report, corpus, tokens, config.data.max_length, cap, tokenizer.unk_token_id)
    try:
        unreadable = check_coverage(corpus.train, column, tokens, tokenizer, config.model)
    except InputError as error:
        report.notes += error.faults
        return report
    report.notes += [] if unreadable is None else [unreadable]
    report.speed = _speed(checked, tokenizer, tokens.with_max_length(int(report.tokens["max_length"])))
    return report


def _speed(checked: Checked, tokenizer: object, tokens: Tokens) -> dict[str, float]:
    """Rows a second of some steps that change nothing, what follows for an epoch and the run, and bytes a device."""
    config, part = checked.config, checked.corpus.train
    training = config.training
    with training.world as world, tempfile.TemporaryDirectory() as folder:
        precision = choose_precision(training.asked_precision, world.device, training.opt_level)
        loaded = load(checked, tokenizer, {part.table.path: tokens}, world.device)
        strategy = make_strategy(loaded.model, training, world)
        strategy.place(Path(folder))
        settle_arithmetic(checked, loaded, world, precision)
        data = TrainingSet(loaded.tokens[part.table.path], part.rows, part.labels)
        batches = BatchSampler(len(part), training.train_batch_size, training.seed)
        trainer = Trainer(strategy, data, batches, checked.task.loss(training, part.truth), loaded.vocabulary)
        trainer.begin()
        rate = dry_run.measure(trainer)
        length = float(data.tokens.lengths_of(data.rows).mean())
        need = memory_forecast.need(checked, world, length)
    epochs = training.cycles * training.epochs
    return {
        "rows_per_second": rate,
        "seconds_per_epoch": len(part) / rate,
        "epochs": epochs,
        "seconds": epochs * len(part) / rate,
        "memory_bytes": float(need.total),
    }
