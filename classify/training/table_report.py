"""Report on a table before training, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.data.splits import Rows, Splits
from classify.data.tokenize import Tokens, default_max_length
from classify.errors import EXCERPT, SHOWN, list_some
from classify.findings import Finding, decisions, notes
from classify.modeling.coverage import compute_unknown_share
from classify.tables.table import EMPTY, group_duplicates
from classify.tasks.base import format_value

# Columns without a role that the terminal lists.
_LISTED = 20
_NEITHER = "neither text nor label"
# Decisions that the line of columns says, too.
_OF_COLUMNS = ("text column", "label column")


@dataclass
class Report:
    """Findings on a table. `tokens` is empty until `count_tokens`."""

    path: str
    form: str
    rows: int
    skipped: int
    columns: dict[str, str]
    classes: dict[str, int]
    labels: str
    unlabelled: int
    empty_texts: int
    copies: int
    conflicting_texts: int
    conflicts: list[dict[str, Any]]
    leaks: dict[str, int]
    characters: dict[str, float]
    tokens: dict[str, float] = field(default_factory=dict)
    task: str = ""
    reading: dict[str, Any] = field(default_factory=dict)
    splits: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The report as lines for a terminal."""
        used = [f"{name!r} ({role})" for name, role in self.columns.items() if role != _NEITHER]
        others = [repr(name) for name, role in self.columns.items() if role == _NEITHER]
        return [
            f"table: {self.path}, {self.rows:,} rows ({self.form})",
            "columns: " + ", ".join([*used, *([f"{_NEITHER}: {list_some(others, most=_LISTED)}"] if others else [])]),
            *(found.line() for found in decisions(self.findings) if found.where not in _OF_COLUMNS),
            *self.summary_lines(),
            *self.duplicate_lines(),
            *(found.line() for found in notes(self.findings)),
        ]

    def summary_lines(self) -> list[str]:
        """The lines about labels and lengths."""
        lines = [self.labels, f"characters per text: {describe_spread(self.characters)}"]
        tokens = self.tokens
        if tokens:
            best = tokens["recommended_max_length"]
            recommended = "" if best == tokens["max_length"] else f"; --max-length {best:.0f} is recommended"
            lines[-1] = (
                f"tokens per text: {describe_spread(tokens)}; --max-length {tokens['max_length']:.0f} truncates "
                f"{100 * tokens['rows_cut']:.1f} % of the rows and {100 * tokens['tokens_cut']:.1f} % of the tokens; "
                f"{100 * tokens['unknown']:.1f} % of the tokens are unknown to the model; "
                f"{tokens['tokens_per_character']:.2f} tokens per character{recommended}"
            )
        return lines

    def duplicate_lines(self) -> list[str]:
        """The lines on repeated texts, and on those with several labels."""
        lines = []
        if self.copies:
            lines.append(f"duplicates: {self.copies} rows repeat the text of another row, ignoring case and spaces")
        lines += [
            f"duplicates: {text['text'][:EXCERPT]!r} has the labels {', '.join(map(repr, text['labels']))} "
            f"({text['where']})"
            for text in self.conflicts[:SHOWN]
        ]
        if self.conflicting_texts > SHOWN:
            lines.append(f"duplicates: {self.conflicting_texts - SHOWN} more texts with several labels")
        return lines


def inspect_splits(splits: Splits, listed: int = SHOWN) -> Report:
    """Report on the tables and splits alone; rows and texts come from `--data`.

    The first `listed` texts with several labels get their places, for which the file is read again.
    """
    table, targets = splits.train.table, splits.targets
    columns = {**dict.fromkeys(splits.columns.texts.named, "text"), **dict.fromkeys(splits.columns.labels, "label")}
    if splits.columns.split is not None:
        columns[splits.columns.split.name] = "split"
    why = {decision.text: decision.why for decision in decisions(splits.findings) if decision.where in _OF_COLUMNS}
    roles = dict.fromkeys(table.columns, _NEITHER)
    roles |= {name: f"{what}: {why[name]}" if name in why else what for name, what in columns.items()}
    copies = table.text_hashes(splits.columns.text)
    first, group_of = group_duplicates(copies)
    filled = copies != EMPTY
    counts = splits.encoder.label_counts(targets[splits.labelled])
    return Report(
        path=table.path,
        form=table.form,
        rows=len(table),
        skipped=table.skipped,
        columns=roles,
        classes=dict(zip(splits.labels, counts.tolist(), strict=True)),
        labels=splits.encoder.summary(targets[splits.labelled]),
        unlabelled=int((~splits.labelled).sum()),
        empty_texts=int((~filled).sum()),
        copies=int(filled.sum()) - int(filled[first].sum()),
        **_conflicts(splits, first, group_of, filled, listed),
        leaks={name: len(rows) for name, rows in splits.in_training.items() if rows},
        characters=_spread(table.lengths(splits.columns.text)),
        reading=dict(table.reading),
        splits={"train": len(splits.train), "validation": len(splits.validation), "test": len(splits.test or ())},
        findings=list(splits.findings),
    )


def count_tokens(
    report: Report, splits: Splits, tokens: Tokens, max_length: int | None, cap: int, tokenizer: Any
) -> None:
    """Fill in token counts for a model that reads up to `cap` tokens, and what `max_length` truncates."""
    rows = splits.train.rows
    lengths = tokens.full_lengths(rows)
    recommended = default_max_length(lengths, cap)
    limit = max_length or recommended
    characters = splits.train.table.lengths(splits.columns.text)[rows]
    report.tokens = {
        **_spread(lengths),
        "max_length": float(limit),
        "recommended_max_length": float(recommended),
        "rows_cut": float(np.mean(lengths > limit)),
        "tokens_cut": float(np.maximum(lengths - limit, 0).sum() / max(1, lengths.sum())),
        "unknown": compute_unknown_share(tokens, rows, tokenizer),
        "tokens_per_character": float((lengths - tokens.special).sum() / max(1, characters.sum())),
    }


def _conflicts(splits: Splits, first: Rows, group_of: Rows, filled: npt.NDArray[np.bool_], most: int) -> dict[str, Any]:
    """The number of texts with several labels, and the first `most` with labels and places."""
    table, targets = splits.train.table, splits.targets
    labelled = np.flatnonzero(filled & splits.labelled)
    # The last row of each group; a group conflicts where another row has another target.
    last = np.zeros(len(first), dtype=np.int64)
    last[group_of[labelled]] = labelled
    differs = splits.encoder.differ(targets[labelled], targets[last[group_of[labelled]]])
    groups = np.unique(group_of[labelled[differs]])
    listed = groups[:most]
    rows = np.flatnonzero(np.isin(group_of, listed))
    rows = rows[np.argsort(group_of[rows], kind="stable")]
    rows_of = np.split(rows, np.flatnonzero(np.diff(group_of[rows])) + 1)
    conflicts = []
    for text, own in zip(table.take(splits.columns.text, first[listed]), rows_of, strict=False):  # both by group
        labels = splits.encoder.decode(np.unique(targets[own[splits.labelled[own]]], axis=0))
        where = table.describe_rows(own.tolist())
        conflicts.append({"text": text, "labels": list(map(format_value, labels)), "where": where})
    return {"conflicting_texts": len(groups), "conflicts": conflicts}


def _spread(values: Sequence[int] | Rows) -> dict[str, float]:
    middle, high = np.percentile(values, [50, 95])
    return {"median": float(middle), "p95": float(high), "longest": float(np.max(values))}


def describe_spread(spread: Mapping[str, float]) -> str:
    return f"median {spread['median']:.0f}, 95th percentile {spread['p95']:.0f}, longest {spread['longest']:.0f}"
