"""Which split each row of `--data` is in: by separate tables, a column, time, the seed, or an earlier run."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.data.reading import InputTables
from classify.data.split_record import UNUSED, SplitRecord
from classify.data.split_rows import split_rows
from classify.data.splits import Rows
from classify.errors import InputError
from classify.tables.profile import parse_number
from classify.tables.rules import SPLITS
from classify.tables.table import Table

TRAIN, VALIDATION, TEST = range(len(SPLITS))
# Share of the rows of `--data` to validate on, and to test.
_SHARE = 0.1
# Digits that may be a date: of ISO 8601 if the year comes first, else in an order that --time-format has to say.
_DIGITS = re.compile(r"\d{8}|\d{6}|\d{1,2}\.\d{4}", re.ASCII)
_UTC = re.compile(r" ?(UTC|GMT)$")
# Flags by which rows are not divided by seed.
BY_SEED = "--eval-data, --test-data"


@dataclass
class Assignment:
    """The split of each row of `--data`: `parts` (rows,) are indices into `SPLITS`, -1 for rows in none.

    `how` and `flag` say what decided that; with `folds` the training rows are cross-validated. `is_drawn`: the seed
    has chosen the validation rows.
    """

    parts: npt.NDArray[np.int8]
    how: str = ""
    flag: str = BY_SEED
    folds: int = 0
    is_drawn: bool = False

    def rows(self, split: int) -> Rows:
        return np.flatnonzero(self.parts == split)


def assign(tables: InputTables, labelled: Rows, stratify_by: Rows, seed: int, folds: int) -> Assignment:
    """Assign the `labelled` rows of `--data`; `stratify_by` (rows,) are the classes of all. See `split_table`."""
    config, split, path = tables.config, tables.columns.split, tables.train.path
    assigned = Assignment(np.full(len(tables.train), -1, dtype=np.int8))
    assigned.parts[labelled] = TRAIN
    if tables.eval is not None:
        assigned.how, assigned.flag = "given as separate files", ""
        return assigned
    if split is not None:
        assigned.parts[labelled] = split.parts(tables.train)[labelled]
        assigned.how, assigned.flag = f"by column {split.name!r} of {path}", "--split-column"
    elif (column := config.split_by_time) is not None:
        assigned.parts[labelled] = _split_by_time(tables, labelled, column)
        newest = "for test, the next newest for validation" if tables.test is None else "for validation"
        assigned.how = f"by time in column {column!r} of {path}: the newest rows {newest}"
        assigned.flag = "--split-by-time"
    if len(assigned.rows(VALIDATION)):
        if config.folds and split is not None:
            raise InputError(
                f"--folds {config.folds}: column {split.name!r} of {path} has the validation rows; add "
                "--split-column none to cross-validate all rows, or drop --folds."
            )
        return assigned
    # Without validation rows, these are taken from those to train on.
    assigned.how += "; " if assigned.how else ""
    if not folds:
        _split_by_seed(tables, assigned, stratify_by, seed)
        return assigned
    assigned.how += f"the final model trains on all training rows of {path}; scores from cross-validation, stratified, "
    assigned.how += ", ".join([f"seed {seed}", *_find_groups(tables, labelled)])
    assigned.folds, assigned.flag = folds, "--folds 0"
    if config.split_like is not None:
        assigned.how += f", folds of {config.split_like}"
        assigned.flag = "--split-like"
    return assigned


def _split_by_time(tables: InputTables, labelled: Rows, column: str) -> npt.NDArray[np.int8]:
    """Test on the newest tenth, validate on the tenth before it; rows of the same time stay together."""
    times = _read_times(tables.train, column, labelled, tables.config.time_format)
    ordered = np.sort(times)
    count = max(1, round(_SHARE * len(labelled)))
    # Cut before the first row of a time.
    last = len(ordered) if tables.test is not None else int(np.searchsorted(ordered, ordered[-count]))
    parts = np.full(len(labelled), TRAIN, dtype=np.int8)
    parts[times >= ordered[max(0, last - count)]] = VALIDATION
    parts[np.argsort(times, kind="stable")[last:]] = TEST
    return parts


def _read_times(table: Table, column: str, rows: Rows, form: str | None) -> npt.NDArray[np.float64]:
    """(rows,) numbers, larger for later rows: the numbers in the column, or seconds since 1970.

    Times are ISO 8601, or of the format `form` of strptime; without a time zone they count as UTC. Raises InputError
    naming rows that hold no time.
    """
    texts = [_UTC.sub("", value.strip()) for value in table.take(column, rows)]
    numbers = [parse_number(text) for text in texts]
    if form is None and None not in numbers and not all(map(_DIGITS.fullmatch, texts)):
        return np.array(numbers, dtype=np.float64)
    times = {text: _parse_time(text, form) for text in set(texts)}
    wrong = [place for place, text in enumerate(texts) if times[text] is None]
    if wrong:
        expected = "a time such as 2024-12-31 18:30:00; name another format with --time-format, e.g. %d.%m.%Y"
        if form is not None:
            expected = f"a time of the format {form!r} (--time-format)"
        raise InputError(
            f"--split-by-time {column}: {table.describe_rows(rows[wrong].tolist())}: Got {texts[wrong[0]]!r}. Expected "
            f"{expected}."
        )
    return np.array([times[text] for text in texts], dtype=np.float64)


def _parse_time(text: str, form: str | None) -> float | None:
    try:
        time = datetime.datetime.fromisoformat(text) if form is None else datetime.datetime.strptime(text, form)
        return (time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _split_by_seed(tables: InputTables, assigned: Assignment, stratify_by: Rows, seed: int) -> None:
    """Split the training rows that are assigned so far by the seed, a tenth of them to validate on."""
    rows, is_tested = assigned.rows(TRAIN), tables.test is not None or bool((assigned.parts == TEST).any())
    bound, test_share = find_bound(tables, rows), 0.0 if is_tested else _SHARE
    split = split_rows(**bound, labels=stratify_by[rows], seed=seed, eval_share=_SHARE, test_share=test_share)
    assigned.parts[rows] = split
    assigned.is_drawn = True
    assigned.how += f"{'90/10' if is_tested else '80/10/10'} of {tables.train.path}, stratified, "
    assigned.how += ", ".join([f"seed {seed}", *_find_groups(tables, rows)])
    assigned.how += " as far as groups allow" if tables.config.group_column is not None else ""
    if bound["earlier"] is not None:
        kept = int((bound["earlier"] == split).sum())
        assigned.how += f"; {kept} rows keep the split of {tables.config.split_like}"


def find_bound(tables: InputTables, rows: Rows) -> dict[str, Any]:
    """What binds rows of `--data`, as arguments of `split_rows`: copies, groups, and where they were before."""
    hashes, groups = tables.train.text_hashes(tables.columns.text)[rows], list(_find_groups(tables, rows).values())
    return {"hashes": hashes, "groups": groups, "earlier": _read_earlier(tables, rows)}


def _read_earlier(tables: InputTables, rows: Rows) -> npt.NDArray[np.int8] | None:
    """The split or fold of these rows of `--data` in the run of --split-like, if any; it must know some.

    A text that --max-train-samples left out of it is in train.
    """
    folder = tables.config.split_like
    if folder is None:
        return None
    record = SplitRecord.read(folder)
    parts = record.find_parts(tables.train.text_hashes(tables.columns.text)[rows])
    if not (parts >= 0).any():
        raise InputError(
            f"--split-like {folder}: expected a run of a table that shares texts with {tables.train.path}. Got one "
            "that shares none; drop the flag, or name another run."
        )
    if not record.num_folds:
        parts[parts == UNUSED] = TRAIN
    return parts


def _find_groups(tables: InputTables, rows: Rows) -> dict[str, Rows]:
    """Numbers (rows,), equal for rows that must share a split, for each reason there is; a blank cell is no group."""
    column, texts, groups = tables.config.group_column, tables.columns.texts, dict[str, Rows]()
    if texts.pair is not None:
        groups["swapped pairs in one split"] = texts.hash_rows(tables.train)[rows].astype(np.int64)
    if column is not None:
        values, numbers = tables.train.dictionary_encode(column)
        owners = np.unique([value.strip() for value in values], return_inverse=True)[1][numbers]
        alone = len(values) + np.arange(len(numbers))
        groups[f"grouped by {column!r}"] = np.where(tables.train.is_blank(column), alone, owners)[rows]
    return groups
