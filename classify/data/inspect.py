"""What a person should know of their table before anything is trained on it: `classify inspect`, as text and JSON."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from classify.data.corpus import Corpus, Part, Tables
from classify.data.coverage import unknown_share
from classify.data.split import plain
from classify.data.tokenize import Tokens, default_max_length

_SHOWN = 5


@dataclass
class Report:
    """What was found. `tokens` is {} until a tokenizer has read the texts."""

    path: str
    form: str
    rows: int
    columns: dict[str, str]
    classes: dict[str, int]
    empty_texts: int
    copies: int
    conflicts: list[dict[str, Any]]
    leaks: dict[str, int]
    characters: dict[str, float]
    tokens: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Plain values, numbers unrounded."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The same for a terminal."""
        largest, smallest = max(self.classes.values()), min(self.classes.values())
        shown = sorted(self.classes.items(), key=lambda one: -one[1])
        names = ", ".join(f"{name!r} {count}" for name, count in shown[: 2 * _SHOWN])
        more = f" and {len(shown) - 2 * _SHOWN} more" if len(shown) > 2 * _SHOWN else ""
        found = [
            f"table: {self.path}, {self.rows} rows - {self.form}",
            "columns: " + ", ".join(f"{name!r} ({role})" for name, role in self.columns.items()),
            f"classes: {len(shown)}, the largest {largest / smallest:.1f} times the smallest: {names}{more}",
            f"characters: median {self.characters['median']:.0f}, 95 % up to {self.characters['p95']:.0f}, "
            f"longest {self.characters['longest']:.0f}",
        ]
        if self.tokens:
            found.append(
                f"tokens: median {self.tokens['median']:.0f}, 95 % up to {self.tokens['p95']:.0f}, longest "
                f"{self.tokens['longest']:.0f}; --max-length {self.tokens['max_length']:.0f} cuts "
                f"{100 * self.tokens['rows_cut']:.1f} % of the rows and {100 * self.tokens['tokens_cut']:.1f} % of the "
                f"tokens; {100 * self.tokens['unknown']:.1f} % are unknown to the model"
            )
        found.append(f"copies: {self.copies} rows hold a text that another row holds, but for case and spaces")
        found += [
            f"copies: {one['text'][:60]!r} has the labels {', '.join(map(repr, one['labels']))} ({one['where']})"
            for one in self.conflicts[:_SHOWN]
        ]
        if len(self.conflicts) > _SHOWN:
            found.append(f"copies: {len(self.conflicts) - _SHOWN} more texts with several labels")
        found += [f"leak: {count} {part} texts are also in --data" for part, count in self.leaks.items()]
        if self.empty_texts:
            found.append(f"empty: {self.empty_texts} rows have no text")
        return found + [f"note: {note}" for note in self.notes]


def inspect_tables(tables: Tables, corpus: Corpus) -> Report:
    """What the tables and their parts say by themselves; rows and texts are those of `--data`."""
    table, columns = tables.train, tables.columns
    texts, labels = table.column(columns.text), table.column(columns.label)
    why = {guess.value: guess.why for guess in columns.guesses}
    roles = dict.fromkeys(table.columns, "not used")
    roles |= {columns.text: _role("text", why.get(columns.text)), columns.label: _role("label", why.get(columns.label))}
    rows_of: dict[str, list[int]] = collections.defaultdict(list)
    for row, text in enumerate(texts):
        rows_of[plain(text)].append(row)
    copies = [rows for text, rows in rows_of.items() if text and len(rows) > 1]
    conflicts = [
        {"text": texts[rows[0]], "labels": sorted({labels[row] for row in rows}), "where": table.where(rows)}
        for rows in copies
        if len({labels[row] for row in rows}) > 1
    ]
    leaks = {
        name: sum(plain(text) in rows_of for text in part.texts(columns.text))
        for name, part in (("evaluation", corpus.eval), ("test", corpus.test))
        if part is not None and part.table is not table
    }
    return Report(
        path=table.path,
        form=table.content.form,
        rows=len(table),
        columns=roles,
        classes=dict(collections.Counter(labels)),
        empty_texts=sum(not text.strip() for text in texts),
        copies=sum(len(rows) - 1 for rows in copies),
        conflicts=conflicts,
        leaks={name: count for name, count in leaks.items() if count},
        characters=_spread([len(text) for text in texts]),
        notes=list(corpus.warnings),
    )


def count_tokens(tokens: Tokens, part: Part, wanted: int | None, cap: int, unknown: int | None) -> dict[str, float]:
    """How long the training texts are for a model that reads up to `cap` tokens, and what the length chosen cuts."""
    lengths = tokens.full_lengths[part.rows]
    limit = wanted or default_max_length(lengths, cap)
    return {
        **_spread(lengths.tolist()),
        "max_length": float(limit),
        "rows_cut": float(np.mean(lengths > limit)),
        "tokens_cut": float(np.maximum(lengths - limit, 0).sum() / max(1, lengths.sum())),
        "unknown": unknown_share(tokens, part.rows, unknown),
    }


def _role(what: str, why: str | None) -> str:
    return what if why is None else f"{what}: {why}"


def _spread(values: Sequence[int]) -> dict[str, float]:
    middle, high = np.percentile(values, [50, 95])
    return {"median": float(middle), "p95": float(high), "longest": float(max(values))}
