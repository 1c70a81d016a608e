"""Assign the rows of a run's tables to splits: by separate tables, a column, time, or the seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from classify.data import split_record
from classify.data.reading import InputTables
from classify.data.split_rows import assign_folds, cap_rows, split_rows
from classify.data.splits import LabelEncoder, Rows, Split, Splits, Targets, mark_outside
from classify.data.times import read_times
from classify.errors import SHOWN, InputError, list_some
from classify.findings import Finding, decided, note
from classify.tables.roles import note_empty_texts
from classify.tables.rules import SPLITS
from classify.tables.split_column import NO_COLUMN
from classify.tables.table import Table
from classify.tables.text_hashes import EMPTY, TextHashes, find_overlap

_TRAIN, _VALIDATION, _TEST = range(len(SPLITS))
# Share of the rows of `--data` to validate on, and to test.
_SHARE = 0.1
# Odd, so that multiplying by it loses no bit of a hash.
_ODD = np.uint64(0x9E3779B97F4A7C15)
# Flags by which rows are not divided by seed.
BY_SEED = "--eval-data, --test-data"


@dataclass(frozen=True)
class _Assignment:
    """The split of each row of `--data`: `parts` (rows,) are indices into `SPLITS`, -1 for rows in none."""

    parts: npt.NDArray[np.int8]
    how: str
    flag: str = BY_SEED
    num_folds: int = 0

    def rows(self, split: int) -> Rows:
        return np.flatnonzero(self.parts == split)


def split_table(tables: InputTables, encoder: LabelEncoder, seed: int, folds: int = 0) -> Splits:
    """Split the tables of a run. Raises InputError where the texts are too few, or a label is unknown.

    Given tables are taken as they are. `--data` alone is split 80/10/10 into train, validation and test, 90/10 into
    train and validation beside `--test-data`; beside `--eval-data` alone there is no test split. With `folds` no row is
    held out, and the training split is cross-validated, in the folds of the run that `split_like` names, if any.
    `max_train_samples` caps the training split once the class names are fixed. Rows without a label or a text are in no
    split.
    """
    table, columns, config = tables.train, tables.columns, tables.config
    targets, hashes = encoder.encode(table, columns.label, "--data"), table.text_hashes(columns.text)
    labelled, classes = encoder.labelled(table, columns.label) & (hashes != EMPTY), encoder.stratify_by(targets)
    assigned = _assign(tables, np.flatnonzero(labelled), classes, seed, folds)
    parts = assigned.parts.copy()
    train = _split_of(table, assigned.rows(_TRAIN), targets)
    validation = _split_of(table, assigned.rows(_VALIDATION), targets)
    test: Split | None = _split_of(table, assigned.rows(_TEST), targets)
    if tables.eval is not None:
        validation = _read_split(tables, tables.eval, encoder)
    if tables.test is not None:
        test = _read_split(tables, tables.test, encoder)
    if not len(train) or not (len(validation) or assigned.num_folds):
        raise InputError(_too_few(tables, train, validation))
    if config.max_train_samples is not None:
        train = _split_of(table, cap_rows(classes, train.rows, config.max_train_samples, seed=seed), targets)
        parts[(parts == _TRAIN) & ~np.isin(hashes, hashes[train.rows])] = split_record.UNUSED
    held_out = f"validation {len(validation):,}"
    if config.max_eval_samples is not None and len(validation) > config.max_eval_samples:
        kept = cap_rows(
            encoder.stratify_by(validation.targets), np.arange(len(validation)), config.max_eval_samples, seed=0
        )
        validation = Split(validation.table, validation.rows[kept], validation.targets[kept])
        held_out = f"validation {len(kept):,} of {held_out.split()[1]} (--max-eval-samples)"
    # Without a table, or with too few different texts, there is no test score, rather than a false one.
    test = test if test else None
    scored = {"validation": validation} | ({} if test is None else {"test": test})
    # Splits from separate tables are not recorded.
    fold_of, assignment = None, parts if (assigned.parts > _TRAIN).any() else None
    if assigned.num_folds:
        fold_of, validation = _assign_folds(tables, train, encoder, seed, assigned.num_folds), train
        assignment = np.full(len(table), -1, dtype=np.int8)
        assignment[train.rows] = fold_of
        del scored["validation"]
        held_out = f"{fold_of.max() + 1} folds"
    hashes_of = (split.table.text_hashes(columns.text)[split.rows] for split in (train, *scored.values()))
    in_training = dict(zip(scored, map(tuple, find_overlap(*hashes_of)), strict=True))
    unlabelled = _find_unlabelled(tables, encoder)
    # A test table without any label is there to be predicted.
    predicted = {
        file: split
        for file, split in unlabelled.items()
        if config.predict_unlabelled or not config.drop_unlabelled or len(split) == len(split.table)
    }
    outside, outside_scored = _find_outside(tables, encoder, seed)
    sizes = f"train {len(train):,}, {held_out}, test {len(test) if test else 0:,}"
    splits = Splits(
        columns, encoder, train, validation, test, targets, labelled,
        findings=(decided("split", sizes, assigned.how, "" if tables.eval else assigned.flag, True),),
        unlabelled=predicted, in_training=in_training, assignment=assignment, folds=fold_of,
        outside=outside, outside_scored=outside_scored,
    )  # fmt: skip
    notable = _notable(tables, splits, scored, unlabelled)
    found = [finding for source in tables.every for finding in source.findings]
    return replace(splits, findings=(*columns.findings, *found, *encoder.findings, *splits.findings, *notable))


def _split_of(table: Table, rows: Rows, targets: Targets) -> Split:
    return Split(table, rows, targets[rows])


def _read_split(tables: InputTables, table: Table, encoder: LabelEncoder) -> Split:
    """The labelled rows of a separate table that have a text."""
    known_from, column = "--data" if tables.eval is None else "--data or --eval-data", tables.columns.label
    rows = np.flatnonzero(encoder.labelled(table, column) & (table.text_hashes(tables.columns.text) != EMPTY))
    return _split_of(table, rows, encoder.encode(table, column, known_from))


def _assign(tables: InputTables, labelled: Rows, stratify_by: Rows, seed: int, folds: int) -> _Assignment:
    """Assign the labelled rows of `--data`."""
    config, split, path = tables.config, tables.columns.split, tables.train.path
    parts = np.full(len(tables.train), -1, dtype=np.int8)
    parts[labelled] = _TRAIN
    if tables.eval is not None:
        return _Assignment(parts, "given as separate files")
    assigned = _Assignment(parts, "")
    if split is not None:
        assigned = _by_column(tables, labelled)
    elif config.split_by_time is not None:
        assigned = _by_time(tables, labelled, config.split_by_time)
    if len(assigned.rows(_VALIDATION)):
        if config.folds and split is not None:
            raise InputError(
                f"--folds {config.folds}: column {split.name!r} of {path} has the validation rows; add "
                "--split-column none to cross-validate all rows, or drop --folds."
            )
        return assigned
    # Without validation rows, these are taken from those to train on.
    how = f"{assigned.how}; " if assigned.how else ""
    if not folds:
        return _by_seed(tables, replace(assigned, how=how), stratify_by, seed)
    how += (
        f"the final model trains on all training rows of {path}; scores from cross-validation, stratified, seed {seed}"
    )
    how += "".join(f", {reason}" for reason in _groups(tables, labelled))
    if config.split_like is None:
        return replace(assigned, how=how, flag="--folds 0", num_folds=folds)
    return replace(assigned, how=f"{how}, folds of {config.split_like}", flag="--split-like", num_folds=folds)


def _assign_folds(tables: InputTables, train: Split, encoder: LabelEncoder, seed: int, folds: int) -> Rows:
    """The fold of each training row."""
    hashes = train.table.text_hashes(tables.columns.text)[train.rows]
    groups, earlier = list(_groups(tables, train.rows).values()), _read_earlier(tables, train.rows)
    labels = encoder.stratify_by(train.targets)
    assigned = assign_folds(hashes, labels, folds, seed=seed, groups=groups, earlier=earlier)
    if assigned.max() < 1:
        raise InputError(_too_few(tables, train, train))
    return assigned


def _read_earlier(tables: InputTables, rows: Rows) -> npt.NDArray[np.int8] | None:
    """The split or fold of these rows of `--data` in the run of --split-like, if any; it must know some."""
    folder = tables.config.split_like
    if folder is None:
        return None
    numbers = split_record.read_record(tables.train.text_hashes(tables.columns.text)[rows], folder)
    if not (numbers >= 0).any():
        raise InputError(
            f"--split-like {folder}: expected a run of a table that shares texts with {tables.train.path}. Got one "
            "that shares none; drop the flag, or name another run."
        )
    return numbers


def _groups(tables: InputTables, rows: Rows) -> dict[str, Rows]:
    """Numbers (rows,), equal for rows that must share a split, for each reason there is; a blank cell is no group."""
    column, texts, groups = tables.config.group_column, tables.columns.texts, dict[str, Rows]()
    if texts.pair is not None:  # the same two texts in the other order are no new row
        first, second = (tables.train.text_hashes(name) for name in texts.inputs)
        pairs = _hash_pairs(np.minimum(first, second), np.maximum(first, second))
        distinct, numbers = np.unique(pairs, return_inverse=True)
        if len(distinct) < len(np.unique(_hash_pairs(first, second))):
            groups["swapped pairs in one split"] = numbers.astype(np.int64)[rows]
    if column is not None:
        values, numbers = tables.train.dictionary_encode(column)
        places: dict[str, int] = {}  # an ID is the same with spaces around it
        owners = np.array([places.setdefault(value.strip(), len(places)) for value in values], dtype=np.int64)[numbers]
        alone = len(values) + np.arange(len(numbers))
        groups[f"grouped by {column!r}"] = np.where(tables.train.is_blank(column), alone, owners)[rows]
    return groups


def _hash_pairs(first: TextHashes, second: TextHashes) -> TextHashes:
    """Hashes of two hashes each, in this order: NumPy sorts single numbers far faster than pairs."""
    return first * _ODD + second


def _by_seed(tables: InputTables, assigned: _Assignment, stratify_by: Rows, seed: int) -> _Assignment:
    """Split the training rows that are assigned so far by the seed, a tenth of them to validate on."""
    table, rows, parts = tables.train, assigned.rows(_TRAIN), assigned.parts.copy()
    is_tested = tables.test is not None or (parts == _TEST).any()
    groups, earlier = _groups(tables, rows), _read_earlier(tables, rows)
    parts[rows] = split = split_rows(
        table.text_hashes(tables.columns.text)[rows],
        stratify_by[rows],
        seed=seed,
        eval_share=_SHARE,
        test_share=0.0 if is_tested else _SHARE,
        groups=list(groups.values()),
        earlier=earlier,
    )
    shares, far = "90/10" if is_tested else "80/10/10", ""
    if groups:  # the actual shares: whole groups may not fit the quotas
        counts = np.bincount(split, minlength=len(SPLITS))[: 2 if is_tested else 3]
        shares, far = "/".join(f"{100 * count / len(rows):.0f}" for count in counts), " as far as groups allow"
    how = f"{assigned.how}{shares} of {table.path}, stratified{far}, seed {seed}"
    how += "".join(f", {reason}" for reason in groups)
    if earlier is not None:
        known = earlier >= 0
        kept = int((earlier == split)[known].sum())
        how += f"; {kept} of {int(known.sum())} rows of {tables.config.split_like} keep their split"
    return replace(assigned, parts=parts, how=how)


def _by_column(tables: InputTables, labelled: Rows) -> _Assignment:
    """Assign rows by the split column; without validation rows these are taken from train later."""
    column, table = tables.columns.split, tables.train
    assert column is not None
    values, numbers = table.dictionary_encode(column.name)
    parts = np.full(len(table), -1, dtype=np.int8)
    parts[labelled] = np.array([column.meaning[value] for value in values], dtype=np.int8)[numbers][labelled]
    return _Assignment(parts, f"by column {column.name!r} of {table.path}", "--split-column")


def _by_time(tables: InputTables, labelled: Rows, column: str) -> _Assignment:
    """Test on the newest tenth, validate on the tenth before it; rows of the same time stay together."""
    times = read_times(tables.train, column, labelled, tables.config.time_format)
    order = np.argsort(times, kind="stable")
    sorted_times = times[order]
    count = max(1, round(_SHARE * len(labelled)))
    # Cut before the first row of a time.
    last = len(order) if tables.test is not None else int(np.searchsorted(sorted_times, sorted_times[-count]))
    pieces = np.split(order, [int(np.searchsorted(sorted_times, sorted_times[max(0, last - count)])), last])
    parts = np.full(len(tables.train), -1, dtype=np.int8)
    for split, piece in enumerate(pieces):
        parts[labelled[piece]] = split
    newest = "for test, the next newest for validation" if tables.test is None else "for validation"
    how = f"by time in column {column!r} of {tables.train.path}: the newest rows {newest}"
    return _Assignment(parts, how, "--split-by-time")


def _find_unlabelled(tables: InputTables, encoder: LabelEncoder) -> dict[str, Split]:
    """The rows without a label of each table, by the name of the file for their predictions."""
    splits: dict[str, Split] = {}
    for name, table in (("", tables.train), ("_eval", tables.eval), ("_test", tables.test)):
        if table is not None:
            column = tables.columns.label
            rows = np.flatnonzero(~encoder.labelled(table, column) & ~mark_outside(table, column, encoder.classes))
            if len(rows):
                splits[f"unlabelled{name}.csv"] = _without_targets(table, rows)
    return splits


def _find_outside(tables: InputTables, encoder: LabelEncoder, seed: int) -> tuple[tuple[Split, ...], Split | None]:
    """The rows of none of the classes: all but those to score, and these.

    The test table's rows are scored, or the test split's by a column, else every second row by seed.
    """
    found = [
        (source, np.flatnonzero(mark_outside(source, tables.columns.label, encoder.classes))) for source in tables.every
    ]
    fitted = [_without_targets(source, rows) for source, rows in found if source is not tables.test]
    rows = fitted[0].rows
    if tables.test is not None:
        scored = _without_targets(*found[-1])
    else:
        tested = rows[:0] if tables.columns.split is None else _by_column(tables, rows).rows(_TEST)
        if not len(tested):
            tested = np.random.default_rng(seed).permutation(rows)[: len(rows) // 2]
        fitted[0] = _without_targets(tables.train, np.setdiff1d(rows, tested))
        scored = _without_targets(tables.train, np.sort(tested))
    return tuple(split for split in fitted if len(split)), scored if len(scored) else None


def _without_targets(table: Table, rows: Rows) -> Split:
    return Split(table, rows, np.full(len(rows), -1, dtype=np.int64))


def _too_few(tables: InputTables, train: Split, validation: Split) -> str:
    """Why there is nothing to train or validate on, and what to do."""
    table, column, split, config = tables.train, tables.columns.text, tables.columns.split, tables.config
    path, texts = table.path, len(np.unique(table.text_hashes(column)))
    reasons = (
        (tables.eval is not None and not len(validation), "no row has a label; expected rows to validate on. Label "
         "some, or drop --eval-data."),
        (split is not None and not len(train), "no row of the training split has a label; expected rows to train on. "
         f"Label some, or give --split-column {NO_COLUMN} to split the labelled rows by seed."),
        (config.split_by_time is not None, f"too few different times in column {config.split_by_time!r} to split by; "
         "give --eval-data."),
        (config.group_column is not None, f"too few groups in column {config.group_column!r} to split by: train keeps "
         "a row of every class. Leave --group-column out, or give --eval-data."),
        (True, f"too few different texts to split: {len(table)} rows hold {texts}; add rows, or give --eval-data."),
    )  # fmt: skip
    if tables.eval is not None and not len(validation):
        path = tables.eval.path
    return f"{path}: {next(reason for holds, reason in reasons if holds)}"


def _notable(
    tables: InputTables, splits: Splits, scored: Mapping[str, Split], unlabelled: Mapping[str, Split]
) -> list[Finding]:
    """What makes a score less trustworthy, and the rows that are not trained on."""
    config, column, texts = tables.config, splits.columns.text, _note_labels(splits, scored)
    for name, split in scored.items():
        if places := splits.in_training[name]:
            lines = split.table.describe_rows([int(split.rows[place]) for place in places])
            texts.append(f"{len(places)} of {len(split)} {name} texts are also in the training split ({lines})")
    if len(scored) > 1:
        validation, test = (split.table.text_hashes(column)[split.rows] for split in scored.values())
        both = len(find_overlap(validation, test)[0])
        if both:
            texts.append(
                f"{both} of {len(test)} test texts are also in the validation split, on which weights are selected and "
                "probabilities calibrated"
            )
    if config.max_eval_samples is not None and splits.folds is not None:
        texts.append("--max-eval-samples has no effect: with folds, no rows are held out that it could limit")
    found = [finding for source in tables.every for finding in note_empty_texts(source, splits.columns.texts)]
    found += map(note, texts)
    for file, split in unlabelled.items():
        what = f"predicted in {file} at the end (--drop-unlabelled drops them)"
        what = what if file in splits.unlabelled else "dropped"
        found.append(note(f"{len(split)} row{'s' * (len(split) > 1)} without a label: {what}", split.table.path))
    if config.out_of_scope_label is not None:
        counts = [sum(map(len, splits.outside)), len(splits.outside_scored or ())]
        rows = f"{counts[0]:,} rows to fit the score, {counts[1]:,} to score, none to train on"
        if not any(counts):
            rows = "no row has it; the score is fitted by leaving out each class in turn"
        found.append(decided("out of scope", repr(config.out_of_scope_label), rows, "--out-of-scope-label", True))
    return found


def _note_labels(splits: Splits, scored: Mapping[str, Split]) -> list[str]:
    """Note labels that some split has no row of, and those with one training row."""
    encoder, train, notes = splits.encoder, splits.train, list[str]()
    counts = encoder.label_counts(train.targets)
    if (counts == 0).any():
        notes.append(f"no training row has the label {_list(encoder.labels, counts == 0)}")
    single = np.flatnonzero(counts == 1).tolist()
    if single:
        rows = [int(train.rows[np.flatnonzero(encoder.has_label(train.targets, label))[0]]) for label in single[:SHOWN]]
        shown = [
            f"{encoder.labels[label]!r} ({train.table.describe_rows([row])})"
            for label, row in zip(single, rows, strict=False)
        ]
        notes.append(f"labels with one training row: {list_some(shown, len(single))}")
    for name, split in scored.items():
        missing = (counts > 0) & (encoder.label_counts(split.targets) == 0)
        if missing.any():
            listed = _list(encoder.labels, missing)
            notes.append(f"no {name} row has the label {listed}; the {name} scores do not cover it")
    unmarked = [name for name in splits.columns.labels if name not in encoder.labels]
    if unmarked and len(splits.columns.labels) > 1:
        notes.append(f"no row has the label {list_some(unmarked, show=repr)}, so the model does not learn it")
    return notes


def _list(labels: Sequence[str], mask: npt.NDArray[np.bool_]) -> str:
    return list_some([label for label, is_listed in zip(labels, mask, strict=True) if is_listed], show=repr)
