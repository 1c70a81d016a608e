"""How rows come to be trained on, evaluated or tested: by tables of their own, a column, time, or the seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from classify.config.schema import DataConfig
from classify.data import split_record
from classify.data.columns import Decision, empty_texts
from classify.data.corpus import Corpus, LabelEncoder, Part, Rows, Tables
from classify.data.labels import ClassNames, case_variants
from classify.data.names import PARTS, part_called
from classify.data.near_duplicates import near_duplicates
from classify.data.split import cap_rows, split_rows
from classify.data.table import Table
from classify.data.text_hashes import find_overlap, normalize_text
from classify.data.times import read_times
from classify.errors import InputError

# Of the rows of `--data`, the share that is evaluated on, and the one that is tested.
_SHARE = 0.1
_SHOWN = 5
# What programs write into a table where a value is missing.
_MISSING = frozenset({"nan", "null", "none", "n/a", "na", "#n/a", "<na>"})


@dataclass(frozen=True)
class _Division:
    """Row numbers of `--data` by part, None of a part that a table of its own gives, or that there is none of."""

    train: Rows
    eval: Rows | None
    test: Rows | None
    how: str
    flag: str = "--eval-data, --test-data"
    notes: tuple[str, ...] = ()


def divide(tables: Tables, encoder: LabelEncoder, config: DataConfig, seed: int) -> Corpus:
    """The parts of a run. Raises InputError where the texts are too few, or a label is unknown.

    Given tables are taken as they are. `--data` alone is divided 80/10/10 into train, eval and test, 90/10 into
    train and eval beside `--test-data`; beside `--eval-data` alone there is no test part. `max_train_samples` caps
    the training part once the class names are fixed. Rows without a label are in no part.
    """
    table, columns = tables.train, tables.columns
    truth = encoder.encode(table, columns.label, "--data")
    labelled = np.flatnonzero(tables.labelled(table))
    division = _division(tables, labelled, encoder.strata(truth), config, seed)
    train = Part(table, division.train, truth)
    eval_part = _part(tables, tables.eval, encoder, division.eval, truth)
    tested = _part(tables, tables.test, encoder, division.test, truth)
    if not len(eval_part) or not len(train):
        raise InputError(_too_few(tables, eval_part, config.split_by_time, config.group_column))
    # Without a table, or with too few different texts, there is no test score, rather than a false one.
    test = tested if len(tested) else None
    scored = {"evaluation": eval_part} | ({} if test is None else {"test": test})
    if config.max_train_samples is not None:
        train = replace(train, rows=cap_rows(encoder.strata(truth), train.rows, config.max_train_samples, seed=seed))
    shared = find_overlap(*(part.table.text_hashes(columns.text)[part.rows] for part in (train, *scored.values())))
    seen = dict(zip(scored, map(tuple, shared), strict=True))
    unlabelled = _unlabelled(tables)
    # A test table without any label is there to be predicted.
    predicted = {
        file: part
        for file, part in unlabelled.items()
        if config.predict_unlabelled or not config.drop_unlabelled or len(part) == len(part.table)
    }
    read = [one for one in (table, tables.eval, tables.test) if one is not None]
    notes = [f"{one.path} {note}" for one in read for note in one.content.notes]
    notes += [f"the labels {labels} are one class" for labels in tables.classes.merged(normalized=False)]
    notes += _warnings(columns.text, encoder, train, scored, seen)
    notes += [_left_out(file, part, predicted=file in predicted) for file, part in unlabelled.items()]
    notes += [*_missing_words(tables.classes), *division.notes]
    sizes = f"train {len(train)}, validation {len(eval_part)}, test {len(test) if test else 0}"
    flag = division.flag if tables.eval is None else ""
    decisions = (
        *columns.decisions,
        encoder.guess(),
        *_merged(tables.classes),
        Decision("split", sizes, division.how, flag),
    )
    return Corpus(
        columns.text, columns.label, encoder.labels, train, eval_part, test, decisions, tuple(notes),
        predicted, seen, _assignment(division, len(table)),
    )  # fmt: skip


def _division(tables: Tables, labelled: Rows, strata: Rows, config: DataConfig, seed: int) -> _Division:
    """The labelled rows of `--data` by part."""
    if tables.eval is not None:
        return _Division(labelled, None, None, "given as files of their own")
    if tables.split_column is not None:
        division = _by_column(tables, labelled)
    elif config.split_by_time is not None:
        division = _by_time(tables, labelled, config.split_by_time)
    else:
        division = _Division(labelled, None, None, "")
    if division.eval is not None:
        return division
    tested = division.test is None and tables.test is None
    by_seed = _by_seed(tables, division.train, strata, config, seed, test_share=_SHARE if tested else 0.0)
    how = f"{division.how}; {by_seed.how}" if division.how else by_seed.how
    return replace(by_seed, test=division.test if by_seed.test is None else by_seed.test, how=how, flag=division.flag)


def _by_seed(
    tables: Tables, rows: Rows, strata: Rows, config: DataConfig, seed: int, *, test_share: float
) -> _Division:
    """Split these rows of `--data` by the seed, a tenth of them to evaluate."""
    table, text = tables.train, tables.columns.text
    owners = []
    if config.group_column is not None:
        owners.append(table.values(config.group_column)[1][rows])
    if config.near_duplicates:
        owners.append(near_duplicates(table.take(text, rows)))
    copies = table.text_hashes(text)[rows]
    earlier = None if config.split_like is None else split_record.parts_of(copies, config.split_like)
    split = split_rows(
        copies, strata[rows], seed=seed, eval_share=_SHARE, test_share=test_share, owners=owners, earlier=earlier
    )
    splits = (split.train, split.eval, split.test)
    how = f"{'80/10/10' if test_share else '90/10'} of {table.path}, each class in proportion, by seed {seed}"
    if owners:  # what came out, which is as near as whole groups allow
        shares = "/".join(f"{100 * len(own) / len(rows):.0f}" for own in splits if own is not None)
        how = f"{shares} of {table.path}, classes in proportion as far as groups allow, by seed {seed}"
    how += f", rows of one {config.group_column!r} in one part" if config.group_column is not None else ""
    how += ", texts that are nearly the same in one part" if config.near_duplicates else ""
    if earlier is not None:
        now = np.zeros(len(rows), dtype=np.int8)
        for number, own in enumerate(splits):
            now[own if own is not None else slice(0)] = number
        known = earlier >= 0
        kept = int((earlier == now)[known].sum())
        how += f"; {kept} of {int(known.sum())} rows that {config.split_like} knew are in the part they were in"
    notes = []
    for name, own, share in (("evaluation", split.eval, _SHARE), ("test", split.test, test_share)):
        quota = max(1, round(share * len(rows)))
        if own is not None and 3 * abs(len(own) - quota) > quota:
            notes.append(
                f"the {name} split has {len(own)} of {len(rows)} rows, not {quota}: rows that stay together allow "
                "nothing nearer"
            )
    evaluated, tested = (None if own is None else rows[own] for own in (split.eval, split.test))
    return _Division(rows[split.train], evaluated, tested, how, notes=tuple(notes))


def _by_column(tables: Tables, labelled: Rows) -> _Division:
    """As the split column says; without rows to evaluate these are left to be taken from those to train on."""
    name, table = tables.split_column, tables.train
    assert name is not None
    values, numbers = table.values(name)
    parts = np.array(list(map(part_called, values)), dtype=np.int64)[numbers]
    train, evaluated, tested = (labelled[parts[labelled] == number] for number in range(len(PARTS)))
    return _Division(
        train,
        evaluated if len(evaluated) else None,
        tested if len(tested) else (None if not len(evaluated) else tested),
        f"as column {name!r} of {table.path} says",
        "--split-column",
    )


def _by_time(tables: Tables, labelled: Rows, column: str) -> _Division:
    """The newest tenth to test, the tenth before it to evaluate; rows of one moment stay together."""
    times = read_times(tables.train, column, labelled)
    order = np.argsort(times, kind="stable")
    sorted_times = times[order]
    count = max(1, round(_SHARE * len(labelled)))
    # A cut before the first row of its moment.
    last = len(order)
    if tables.test is None:
        last = int(np.searchsorted(sorted_times, sorted_times[-count]))
    cuts = [int(np.searchsorted(sorted_times, sorted_times[max(0, last - count)])), last]
    rows = [np.sort(labelled[part]) for part in np.split(order, cuts)]
    how = f"the newest rows of {tables.train.path} by {column!r} to test, those before them to evaluate"
    if tables.test is not None:
        how = f"the newest rows of {tables.train.path} by {column!r} to evaluate"
    return _Division(rows[0], rows[1], rows[2], how, "--split-by-time")


def _part(tables: Tables, given: Table | None, encoder: LabelEncoder, rows: Rows | None, truth: Rows) -> Part:
    """The labelled rows of a table of its own, where one is given, else these rows of `--data`; none of None."""
    if given is None:
        return Part(tables.train, np.empty(0, dtype=np.int64) if rows is None else rows, truth)
    known = "--data" if tables.eval is None else "--data or --eval-data"
    encoded = encoder.encode(given, tables.columns.label, known)
    return Part(given, np.flatnonzero(tables.labelled(given)), encoded)


def _assignment(division: _Division, count: int) -> npt.NDArray[np.int8] | None:
    """The part of each row of `--data` as an index into `PARTS`, -1 of a row in none; None where it is not divided."""
    if division.eval is None and division.test is None:
        return None
    assignment = np.full(count, -1, dtype=np.int8)
    for number, rows in enumerate((division.train, division.eval, division.test)):
        if rows is not None:
            assignment[rows] = number
    return assignment


def _unlabelled(tables: Tables) -> dict[str, Part]:
    """The rows without a label of each table, by the name of the file that their predictions go to."""
    parts: dict[str, Part] = {}
    for name, table in (("", tables.train), ("_eval", tables.eval), ("_test", tables.test)):
        if table is not None and not (labelled := tables.labelled(table)).all():
            rows = np.flatnonzero(~labelled)
            parts[f"unlabelled{name}.csv"] = Part(table, rows, np.full(len(table), -1, dtype=np.int64))
    return parts


def _too_few(tables: Tables, eval_part: Part, split_by_time: str | None, group_column: str | None) -> str:
    if tables.eval is not None and not len(eval_part):
        return f"{tables.eval.path}: no row has a label; expected rows to evaluate on."
    table = tables.train
    if not tables.labelled(table).any():
        return f"{table.path}: no row has a label; expected rows to train on."
    if split_by_time is not None:
        return f"{table.path}: expected several moments in column {split_by_time!r}, to divide by. Got too few instead."
    if group_column is not None:
        groups = len(set(table.take(group_column, np.flatnonzero(tables.labelled(table)))))
        return (
            f"{table.path}: too few groups to divide: column {group_column!r} has {groups}, and train keeps a row of "
            "every class. Expected classes with rows in several groups; leave --group-column out, or give --eval-data."
        )
    different = len(np.unique(table.text_hashes(tables.columns.text)))
    return f"{table.path}: too few different texts to divide: {len(table)} rows hold {different}."


def _left_out(file: str, part: Part, *, predicted: bool) -> str:
    rows = f"{len(part)} rows" if len(part) > 1 else "1 row"
    what = f"predicted at the end, in {file} (--drop-unlabelled to leave out)" if predicted else "left out"
    return f"{part.table.path}: {rows} without a label {what}"


def _merged(classes: ClassNames) -> tuple[Decision, ...]:
    """Name the labels that are one class but for how they are written."""
    merged = classes.merged(normalized=True)
    if not merged:
        return ()
    shown = ", ".join(merged[:_SHOWN]) + (f" and {len(merged) - _SHOWN} more" if len(merged) > _SHOWN else "")
    why = "labels that differ in case, spaces or Unicode form are one class, with these rows each"
    return (Decision("labels", shown, why, "--normalize-labels none"),)


def _missing_words(classes: ClassNames) -> list[str]:
    """Note labels that programs write where there is none, since they may as well be classes."""
    return [
        f"{rows} rows have the label {label!r}; where it means that there is none, give --unlabelled-value {label}"
        for label, rows in classes.rows.items()
        if rows and normalize_text(label) in _MISSING
    ]


def _warnings(
    column: str, encoder: LabelEncoder, train: Part, scored: Mapping[str, Part], seen: Mapping[str, Sequence[int]]
) -> list[str]:
    """What a person should know of their data before they trust a score."""
    notes = [
        f"the labels {a!r} and {b!r} differ only in case, spaces or Unicode form; they are two classes"
        for a, b in case_variants(encoder.labels)
    ]
    empty = empty_texts(train.table, column)
    if empty is not None:
        notes.append(empty)
    in_train = _occurring(encoder, train)
    if not in_train.all():
        notes.append(f"no row to train on has the label {_listed(encoder.labels, ~in_train)}")
    for name, part in scored.items():
        unscored = in_train & ~_occurring(encoder, part)
        if unscored.any():
            notes.append(f"no {name} row has the label {_listed(encoder.labels, unscored)}: its scores leave that out")
    for name, part in scored.items():
        if seen[name]:
            lines = part.table.where([int(part.rows[i]) for i in seen[name]])
            notes.append(f"{len(seen[name])} of {len(part)} {name} texts are also in the training part ({lines})")
    return notes


def _occurring(encoder: LabelEncoder, part: Part) -> npt.NDArray[np.bool_]:
    """Return (classes,) whether a row of the part has each."""
    return np.bincount(encoder.strata(part.truth), minlength=len(encoder.labels)) > 0


def _listed(labels: Sequence[str], which: npt.NDArray[np.bool_]) -> str:
    """Name some of the labels, at most five of them."""
    names = [label for label, chosen in zip(labels, which, strict=True) if chosen]
    return ", ".join(map(repr, names[:_SHOWN])) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
