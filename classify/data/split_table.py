"""Assign the rows of a run's tables to splits: by separate tables, a column, time, or the seed."""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.data.reading import InputTables
from classify.data.soft_labels import SoftLabels, average_texts
from classify.data.sources import check_trusted, collect_sources
from classify.data.split_record import UNUSED, SplitRecord
from classify.data.split_rows import assign_folds, cap_rows, split_rows
from classify.data.splits import Rows, Source, Split, Splits, Targets, mark_rows
from classify.errors import InputError, list_some
from classify.findings import Finding, decided, note
from classify.tables.profile import parse_number
from classify.tables.roles import TextColumns, note_empty_texts
from classify.tables.rules import NO_COLUMN, SPLITS
from classify.tables.table import EMPTY, Table, TextHashes

_TRAIN, _VALIDATION, _TEST = range(len(SPLITS))
# Share of the rows of `--data` to validate on, and to test.
_SHARE = 0.1
# Digits that may be a date: of ISO 8601 if the year comes first, else in an order that --time-format has to say.
_DIGITS = re.compile(r"\d{8}|\d{6}|\d{1,2}\.\d{4}", re.ASCII)
_UTC = re.compile(r" ?(UTC|GMT)$")
# Flags by which rows are not divided by seed.
BY_SEED = "--eval-data, --test-data"


@dataclass
class _Assignment:
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


def split_table(tables: InputTables, encoder: Targets, seed: int, folds: int = 0) -> Splits:
    """Split the tables of a run. Raises InputError where the texts are too few, or a label is unknown.

    Given tables are taken as they are. `--data` alone is split 80/10/10 into train, validation and test, 90/10 into
    train and validation beside `--test-data`; beside `--eval-data` alone there is no test split. With `folds` no row is
    held out, and the training split is cross-validated, in the folds of the run that `split_like` names, if any.
    `max_train_samples` caps the training split once the class names are fixed. Rows without a label or a text are in no
    split.
    """
    table, columns, config, origins = tables.train, tables.columns, tables.config, tables.origins
    targets, hashes = encoder.encode(table, columns.label, "--data"), table.text_hashes(columns.text)
    labelled, classes = encoder.labelled(table, columns.label) & (hashes != EMPTY), encoder.stratify_by(targets)
    trusted = labelled & _trusted(tables, table)
    assigned = _assign(tables, np.flatnonzero(trusted), classes, seed, folds)
    is_divided = bool((assigned.parts > _TRAIN).any())
    train, validation, test = (Split(table, rows, targets[rows]) for rows in map(assigned.rows, range(len(SPLITS))))
    if tables.eval is not None:
        validation = _read_split(tables, tables.eval, encoder)
    if tables.test is not None:
        test = _read_split(tables, tables.test, encoder)
    sources: list[Source] = []
    if origins is not None:
        sources = _find_sources(tables, targets, labelled, trusted, [validation, test])
    if (partial := _find_partial(tables, encoder, hashes, labelled, [validation, test])) is not None:
        sources.append(partial)
    if tables.soft is not None:
        train, *softened = _soften([train, *(source.split for source in sources)], encoder, targets, tables.soft)
        sources = [replace(source, split=split) for source, split in zip(sources, softened, strict=True)]
    if not len(train) or not (len(validation) or assigned.folds):
        raise _too_few(tables, train, assigned)
    if config.max_train_samples is not None:
        train, *capped = (
            split.take(cap_rows(encoder.stratify_by(split.targets), config.max_train_samples, seed=seed))
            for split in (train, *(source.split for source in sources))
        )
        sources = [replace(source, split=split) for source, split in zip(sources, capped, strict=True)]
        assigned.parts[(assigned.parts == _TRAIN) & ~np.isin(hashes, train.hashes(columns.text))] = UNUSED
    held_out = f"validation {len(validation):,}"
    if config.max_eval_samples is not None and len(validation) > config.max_eval_samples:
        whole = validation
        validation = whole.take(cap_rows(encoder.stratify_by(whole.targets), config.max_eval_samples, seed=0))
        held_out = f"validation {len(validation):,} of {len(whole):,} (--max-eval-samples)"
    fold_of = None
    if assigned.folds:
        bound, labels = _find_bound(tables, train.rows), encoder.stratify_by(train.targets)
        fold_of, validation = assign_folds(**bound, labels=labels, folds=assigned.folds, seed=seed), train
        if fold_of.max() < 1:
            raise _too_few(tables, train, assigned)
        held_out = f"{fold_of.max() + 1} folds"
        assigned.parts[:] = -1
        assigned.parts[train.rows] = fold_of
    scored = {} if assigned.folds else {"validation": validation}
    if test:  # without a table, or with too few different texts, there is no test score, rather than a false one
        scored["test"] = test
    texts = train.hashes(columns.text)
    overlap = {name: np.flatnonzero(np.isin(split.hashes(columns.text), texts)) for name, split in scored.items()}
    unlabelled = _find_unlabelled(tables, encoder)
    outside, outside_scored = _find_outside(tables, encoder, seed)
    scored_elsewhere = [split for split in (validation, test, *outside, outside_scored) if split is not None]
    to_teach = _find_new_texts(tables, [Split(table, np.flatnonzero(labelled), targets[labelled]), *scored_elsewhere])
    sizes = f"train {len(train):,}, {held_out}, test {len(test):,}"
    splits = Splits(
        columns, encoder, train, validation, scored.get("test"), targets, labelled, findings=(),
        # A test table without any label is there to be predicted.
        unlabelled={
            file: split
            for file, split in unlabelled.items()
            if config.predict_unlabelled or not config.drop_unlabelled or len(split) == len(split.table)
        },
        in_training={name: tuple(places.tolist()) for name, places in overlap.items()},
        # Splits from separate tables are not recorded.
        assignment=assigned.parts if is_divided or assigned.folds else None,
        folds=fold_of, outside=outside, outside_scored=outside_scored, sources=tuple(sources),
        to_teach=to_teach,
        learnable_validation=assigned.is_drawn and _may_learn(tables, validation, scored.get("test")),
    )  # fmt: skip
    findings = [*columns.findings, *(finding for source in tables.every for finding in source.findings)]
    findings += [*encoder.findings, decided("split", sizes, assigned.how, assigned.flag, True)]
    return replace(splits, findings=(*findings, *_notable(tables, splits, scored, unlabelled)))


def _may_learn(tables: InputTables, validation: Split, test: Split | None) -> bool:
    """Whether drawn validation rows may be learned from: as they are, in any number, and where no test row is alike."""
    column = tables.columns.text
    alike = test is not None and np.isin(test.hashes(column), validation.hashes(column)).any()
    return tables.soft is None and tables.config.max_train_samples is None and not alike


def _find_sources(
    tables: InputTables,
    targets: npt.NDArray[Any],
    labelled: npt.NDArray[np.bool_],
    trusted: npt.NDArray[np.bool_],
    scored: list[Split],
) -> list[Source]:
    """The sources of `--data`, without texts of the `scored` splits of other tables."""
    table, columns = tables.train, tables.columns
    assert tables.origins is not None
    check_trusted(int(trusted.sum()), table.path)
    adds = labelled & ~trusted
    if columns.split is not None:
        adds &= columns.split.parts(table) == _TRAIN
    added, known = (Split(table, rows, targets[rows]) for rows in map(np.flatnonzero, (adds, trusted)))
    texts = _same_texts(table, columns.texts)
    others = [_same_texts(split.table, columns.texts)[split.rows] for split in scored if split.table is not table]
    return collect_sources(tables.origins, added, known, texts, np.concatenate([texts[:0], *others]))


def _find_partial(
    tables: InputTables,
    encoder: Targets,
    hashes: TextHashes,
    labelled: npt.NDArray[np.bool_],
    scored: Sequence[Split | None],
) -> Source | None:
    """The rows of `--data` that only train, since their label says too little; no text that has another label."""
    config, column, split = tables.config, tables.columns.label, tables.columns.split
    found = encoder.partial(tables.train, column)
    # Where rows belong together, or some are not trusted, such a row could tell of one that is scored.
    is_bound = config.split_by_time is not None or config.group_column is not None or tables.origins is not None
    if found is None or not found[0].any() or is_bound or tables.columns.texts.pair is not None:
        return None
    rows, aims = np.flatnonzero(found[0]), found[1]
    texts = [hashes[labelled], *(split.hashes(tables.columns.text) for split in scored if split is not None)]
    in_train = split is None or split.parts(tables.train)[rows] == _TRAIN
    is_new = in_train & (hashes[rows] != EMPTY) & ~np.isin(hashes[rows], np.concatenate(texts))
    rows, aims = rows[is_new], aims[is_new]
    return Source(f"inner nodes in column {column!r}", Split(tables.train, rows, aims, aims), is_judged=False)


def _same_texts(table: Table, texts: TextColumns) -> TextHashes:
    """Numbers (rows,), equal for rows of the same text, or of the same two texts in either order."""
    if texts.pair is None:
        return table.text_hashes(texts.whole)
    first, second = map(table.text_hashes, texts.inputs)
    return first + second


def _soften(splits: list[Split], encoder: Targets, targets: npt.NDArray[Any], soft: SoftLabels) -> list[Split]:
    """What rows of `--data` train towards, and by which weight, 1 on average; those of weight 0 are left out."""
    every = encoder.soften(targets, soft) if soft.labels or soft.texts is not None else None
    softened = list[Split]()
    for split in splits:
        aims = None if every is None else every[split.rows]
        weights = np.ones(len(split)) if soft.weights is None else soft.weights[split.rows]
        if soft.texts is not None and aims is not None:
            aims, weights = average_texts(aims, soft.texts[split.rows], weights)
        softened.append(replace(split, soft_targets=aims, weights=weights.astype(np.float32)))
    if soft.weights is None and soft.texts is None:
        return [replace(split, weights=None) for split in softened]
    mean = np.concatenate([split.weights for split in softened if split.weights is not None]).mean()
    weighted = [(split, split.weights) for split in softened if split.weights is not None]
    return [replace(split, weights=weights / mean).take(np.flatnonzero(weights)) for split, weights in weighted]


def _read_split(tables: InputTables, table: Table, encoder: Targets) -> Split:
    known_from, column = "--data" if tables.eval is None else "--data or --eval-data", tables.columns.label
    rows = np.flatnonzero(
        encoder.labelled(table, column) & (table.text_hashes(tables.columns.text) != EMPTY) & _trusted(tables, table)
    )
    if not len(rows) and not _trusted(tables, table).all():
        config = tables.config
        raise InputError(
            f"{table.path}: none of its rows is trusted, as column {config.source_column!r} says (--trusted "
            f"{config.trusted}). Trust another value, too, or leave the column out of this table."
        )
    return Split(table, rows, encoder.encode(table, column, known_from)[rows])


def _trusted(tables: InputTables, table: Table) -> npt.NDArray[np.bool_]:
    """(rows,) whether each row's label is trusted: in further tables all are, unless they have the source column."""
    origins, column = tables.origins, tables.config.source_column
    if origins is not None and table is tables.train:
        return origins.are_trusted
    if origins is None or column is None or not origins.trusted or not table.has_column(column):
        return np.ones(len(table), dtype=np.bool_)
    return mark_rows(table, column, origins.trusts)


def _assign(tables: InputTables, labelled: Rows, stratify_by: Rows, seed: int, folds: int) -> _Assignment:
    config, split, path = tables.config, tables.columns.split, tables.train.path
    assigned = _Assignment(np.full(len(tables.train), -1, dtype=np.int8))
    assigned.parts[labelled] = _TRAIN
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
    if len(assigned.rows(_VALIDATION)):
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
    parts = np.full(len(labelled), _TRAIN, dtype=np.int8)
    parts[times >= ordered[max(0, last - count)]] = _VALIDATION
    parts[np.argsort(times, kind="stable")[last:]] = _TEST
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


def _split_by_seed(tables: InputTables, assigned: _Assignment, stratify_by: Rows, seed: int) -> None:
    """Split the training rows that are assigned so far by the seed, a tenth of them to validate on."""
    rows, is_tested = assigned.rows(_TRAIN), tables.test is not None or bool((assigned.parts == _TEST).any())
    bound, test_share = _find_bound(tables, rows), 0.0 if is_tested else _SHARE
    split = split_rows(**bound, labels=stratify_by[rows], seed=seed, eval_share=_SHARE, test_share=test_share)
    assigned.parts[rows] = split
    assigned.is_drawn = True
    assigned.how += f"{'90/10' if is_tested else '80/10/10'} of {tables.train.path}, stratified, "
    assigned.how += ", ".join([f"seed {seed}", *_find_groups(tables, rows)])
    assigned.how += " as far as groups allow" if tables.config.group_column is not None else ""
    if bound["earlier"] is not None:
        kept = int((bound["earlier"] == split).sum())
        assigned.how += f"; {kept} rows keep the split of {tables.config.split_like}"


def _find_bound(tables: InputTables, rows: Rows) -> dict[str, Any]:
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
        parts[parts == UNUSED] = _TRAIN
    return parts


def _find_groups(tables: InputTables, rows: Rows) -> dict[str, Rows]:
    """Numbers (rows,), equal for rows that must share a split, for each reason there is; a blank cell is no group."""
    column, texts, groups = tables.config.group_column, tables.columns.texts, dict[str, Rows]()
    if texts.pair is not None:
        groups["swapped pairs in one split"] = _same_texts(tables.train, texts)[rows].astype(np.int64)
    if column is not None:
        values, numbers = tables.train.dictionary_encode(column)
        owners = np.unique([value.strip() for value in values], return_inverse=True)[1][numbers]
        alone = len(values) + np.arange(len(numbers))
        groups[f"grouped by {column!r}"] = np.where(tables.train.is_blank(column), alone, owners)[rows]
    return groups


def _find_unlabelled(tables: InputTables, encoder: Targets) -> dict[str, Split]:
    """The rows without a label of each table, by the name of the file for their predictions.

    Rows of a label that is divided are to be labelled again.
    """
    column, splits = tables.columns.label, dict[str, Split]()
    for name, table in (("", tables.train), ("_eval", tables.eval), ("_test", tables.test)):
        if table is not None:
            known = encoder.labelled(table, column) | mark_rows(table, column, encoder.classes.is_outside)
            if (partial := encoder.partial(table, column)) is not None:
                known |= partial[0]
            again = mark_rows(table, column, encoder.classes.divided.__contains__)
            for file, rows in ((f"unlabelled{name}.csv", ~known & ~again), (f"label-me{name}.csv", again)):
                if rows.any():
                    splits[file] = _without_targets(table, np.flatnonzero(rows))
    return splits


def _find_outside(tables: InputTables, encoder: Targets, seed: int) -> tuple[tuple[Split, ...], Split | None]:
    """The rows of none of the classes: all but those to score, and these.

    The test table's rows are scored, or the test split's by a column, else every second row by seed.
    """
    found = [
        _without_targets(
            table,
            np.flatnonzero(
                mark_rows(table, tables.columns.label, encoder.classes.is_outside) & _trusted(tables, table)
            ),
        )
        for table in tables.every
    ]
    if tables.test is not None:
        *fitted, scored = found
    else:
        first, *others = found
        is_tested = np.zeros(len(first), dtype=bool)
        if tables.columns.split is not None:
            is_tested = tables.columns.split.parts(tables.train)[first.rows] == _TEST
        if not is_tested.any():
            is_tested[np.random.default_rng(seed).permutation(len(first))[: len(first) // 2]] = True
        fitted, scored = [first.take(~is_tested), *others], first.take(is_tested)
    return tuple(split for split in fitted if len(split)), scored if len(scored) else None


def _find_new_texts(tables: InputTables, splits: list[Split]) -> Split | None:
    """The rows of --unlabelled-data, each text once, whose text none of the splits has.

    Raises InputError where there is none.
    """
    table = tables.unlabelled
    if table is None:
        return None
    columns = tables.columns.texts
    known = np.concatenate([_same_texts(split.table, columns)[split.rows] for split in splits])
    texts, first = np.unique(_same_texts(table, columns), return_index=True)
    first = np.sort(first[~np.isin(texts, known)])
    rows = first[table.text_hashes(columns.whole)[first] != EMPTY]
    if not len(rows):
        raise InputError(f"--unlabelled-data {table.path}: each of its texts has a label elsewhere; drop the flag.")
    return _without_targets(table, rows)


def _without_targets(table: Table, rows: Rows) -> Split:
    return Split(table, rows, np.full(len(rows), -1, dtype=np.int64))


def _too_few(tables: InputTables, train: Split, assigned: _Assignment) -> InputError:
    path = tables.train.path if tables.eval is None or not len(train) else tables.eval.path
    ways = BY_SEED if tables.columns.split is None else f"--split-column {NO_COLUMN}"
    return InputError(
        f"{path}: no row with a label is left to {'validate' if len(train) else 'train'} on ({assigned.how}). Too few "
        f"rows, different texts, times or groups: add some, or split in another way ({ways})."
    )


def _notable(
    tables: InputTables, splits: Splits, scored: Mapping[str, Split], unlabelled: Mapping[str, Split]
) -> list[Finding]:
    """What makes a score less trustworthy, and the rows that are not trained on."""
    config, texts = tables.config, _note_labels(splits, scored, tables.known_labels)
    for name, split in scored.items():
        if places := splits.in_training[name]:
            lines = split.table.describe_rows(split.rows[list(places)].tolist())
            texts.append(f"{len(places)} of {len(split)} {name} texts are also in the training split ({lines})")
    if len(scored) > 1:
        validation, test = (split.hashes(splits.columns.text) for split in scored.values())
        if both := int(np.isin(test, validation).sum()):
            texts.append(f"{both} of {len(test)} test texts are also in the validation split, which selects weights")
    found = [finding for source in tables.every for finding in note_empty_texts(source, splits.columns.texts)]
    found += map(note, texts)
    for table in tables.every[1:]:
        if count := int((~_trusted(tables, table)).sum()):
            found.append(note(f"{count} rows whose label is not trusted are not scored", table.path))
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


def _note_labels(splits: Splits, scored: Mapping[str, Split], known: Collection[str]) -> list[str]:
    """Note labels that some split has no row of, unless an earlier run has `known` them, and those with one row."""
    encoder, notes = splits.encoder, list[str]()
    counts = np.sum([encoder.label_counts(split.targets) for split in splits.learned], axis=0)
    labels = np.array(encoder.labels, dtype=object)
    names_known = {encoder.classes.of(label) for label in known}
    absent = (counts == 0) & [label not in names_known for label in encoder.labels]
    if absent.any():
        notes.append(f"no training row has the label {list_some(labels[absent], show=repr)}")
    if (counts == 1).any():
        notes.append(f"labels with one training row: {list_some(labels[counts == 1], show=repr)}")
    for name, split in scored.items():
        missing = (counts > 0) & (encoder.label_counts(split.targets) == 0)
        if missing.any():
            listed = list_some(labels[missing], show=repr)
            notes.append(f"no {name} row has the label {listed}; the {name} scores do not cover it")
    return notes
