"""`classify inspect`: the tables, what the tokenizer makes of them."""

from __future__ import annotations

from classify.data.tokenize import tokenize_columns
from classify.errors import InputError
from classify.findings import note
from classify.modeling.coverage import check_coverage
from classify.modeling.loading import load_tokenizer, quiet_libraries
from classify.training import table_report
from classify.training.inputs import RunInputs
from classify.training.table_report import Report

# Texts with several labels that --json lists.
_LISTED = 1000


@quiet_libraries()
def inspect_run(inputs: RunInputs) -> Report:
    """Inspect a run's tables without training on them.

    A model that cannot read the texts is noted.
    """
    splits, cap, config = inputs.splits, inputs.model.max_length, inputs.config
    report = table_report.inspect_splits(splits, listed=_LISTED)
    report.task = inputs.task.name
    tokenizer = load_tokenizer(inputs.model)
    report.languages = inputs.languages.among_detected
    tokens = tokenize_columns(tokenizer, splits.train.table, splits.columns.texts.inputs, cap)
    table_report.count_tokens(report, splits, tokens, config.data.max_length, cap, tokenizer)
    try:
        warning = check_coverage(
            splits.train, splits.columns.text, tokens, tokenizer, config.model, named=config.names_model
        )
    except InputError as error:
        report.findings += map(note, error.faults)
        return report
    report.findings += [] if warning is None else [note(warning)]
    return report
