"""Where the labels of a table are from: trusted rows, which are scored, and sources that only add training rows.

A language model, a rule or a crowd may have labelled most rows. Scores, thresholds and calibration go by trusted rows
alone, and a source is trained on only if it helps (see `training.sources`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from classify.config.schema import DataConfig
from classify.data.soft_labels import SoftLabels
from classify.data.splits import Rows, Source, Split
from classify.errors import InputError, list_some
from classify.findings import Finding, decided
from classify.tables.table import Table, TextHashes

# Trusted rows below which no score says whether a source helps.
FEWEST_TRUSTED = 20


@dataclass(frozen=True, eq=False)
class Origins:
    """The origin of each row of `--data`: `number_of` (rows,) into `names`; the labels of some rows `are_trusted`.

    `trusted` are the values of --trusted.
    """

    names: tuple[str, ...]
    number_of: Rows
    are_trusted: npt.NDArray[np.bool_]
    trusted: tuple[str, ...] = ()

    def trusts(self, cell: str) -> bool:
        return cell.strip() in self.trusted


@dataclass(frozen=True)
class Verdict:
    """What a source adds: the mean score of `trusted` rows `without` it and `with_source`, the `gain`, its `interval`.

    `agreement` is the share of `shared` texts, which trusted rows have, too, that the source labels alike.
    """

    name: str
    rows: int
    metric: str
    trusted: int
    without: float
    with_source: float
    gain: float
    interval: tuple[float, float]
    is_kept: bool
    shared: int
    agreement: float | None
    agreement_interval: tuple[float, float] | None

    def finding(self) -> Finding:
        low, high = self.interval
        why = (
            f"{self.metric} of {self.trusted:,} trusted rows {self.without:.3f} without it, {self.with_source:.3f} "
            f"with it; gain {self.gain:+.3f}, 95 % CI {low:+.3f} to {high:+.3f}"
        )
        if self.agreement is not None and self.agreement_interval is not None:
            first, last = self.agreement_interval
            why += f"; agrees on {self.agreement:.3f} of {self.shared:,} trusted texts ({first:.3f} to {last:.3f})"
        return decided(
            "source", f"{self.rows:,} rows of {self.name!r} {'kept' if self.is_kept else 'left out'}", why,
            "--keep-source", True,
        )  # fmt: skip


def read_origins(table: Table, config: DataConfig, soft: SoftLabels | None) -> Origins | None:
    """Read the column of --source-column. Raises InputError where no row is trusted, or all are."""
    column = config.source_column
    if column is None:
        if config.trusted is not None:
            raise InputError("--trusted needs the column that holds its values; add --source-column, or drop it.")
        return None
    cells, numbers = table.dictionary_encode(column)
    unique, number_of = np.unique([cell.strip() for cell in cells], return_inverse=True)
    names, number_of = unique.tolist(), number_of[numbers]
    counted = [f"{name!r} ({rows:,} rows)" for name, rows in zip(names, np.bincount(number_of), strict=True)]
    listed = list_some(counted)
    trusted = [] if config.trusted is None else [name.strip() for name in config.trusted.split(",")]
    if trusted:
        if unknown := [name for name in trusted if name not in names]:
            raise InputError(
                f"--trusted {unknown[0]}: no row of {table.path} has this value in column {column!r}. Expected some of "
                f"{listed}."
            )
        are_trusted = np.isin(unique, trusted)[number_of]
    elif soft is not None and soft.labels:
        are_trusted = ~soft.has_any
    else:
        raise InputError(f"--source-column {column}: which values are trusted: {listed}? Give them with --trusted.")
    if are_trusted.all():
        raise InputError(
            f"--source-column {column}: all rows of {table.path} are trusted ({listed}), so no source is left to "
            "judge; drop --source-column."
        )
    return Origins(tuple(names), number_of, are_trusted, tuple(trusted))


def check_trusted(count: int, path: str) -> None:
    """Raise InputError where too few rows are trusted."""
    if count < FEWEST_TRUSTED:
        raise InputError(
            f"{path}: {count} trusted rows have a label, and only these are validated and tested on; label "
            f"{FEWEST_TRUSTED - count} more."
        )


def collect_sources(
    origins: Origins, rows: Split, trusted: Split, texts: TextHashes, scored: TextHashes
) -> list[Source]:
    """The sources of a table: for each origin its untrusted `rows` with other texts than trusted ones have.

    `texts` (rows of the table,) number them; texts in `scored` are in other tables. Rows that label a trusted text
    again are not trained on: they show how often the source agrees.
    """
    trusted_texts, first = np.unique(texts[trusted.rows], return_index=True)
    of_row, sources = texts[rows.rows], list[Source]()
    is_again, is_scored = np.isin(of_row, trusted_texts), np.isin(of_row, scored)
    for number, name in enumerate(origins.names):
        is_its = origins.number_of[rows.rows] == number
        again = np.flatnonzero(is_its & is_again)
        same = first[np.searchsorted(trusted_texts, of_row[again])]
        added = rows.take(np.flatnonzero(is_its & ~is_again & ~is_scored))
        if is_its.any():
            sources.append(Source(name, added, shared=(rows.targets[again], trusted.targets[same])))
    return sources
