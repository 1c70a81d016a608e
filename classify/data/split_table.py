"""Assign the rows of a run's tables to splits: by separate tables, a column, time, or the seed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.data.assignment import BY_SEED, TEST, TRAIN, Assignment, assign, find_bound
from classify.data.reading import InputTables
from classify.data.soft_labels import SoftLabels, average_texts
from classify.data.sources import check_trusted, collect_sources
from classify.data.split_record import UNUSED
from classify.data.split_rows import assign_folds, cap_rows
from classify.data.splits import Rows, Source, Split, Splits, Targets, mark_rows
from classify.errors import InputError, list_some
from classify.findings import Finding, decided, note
from classify.tables.roles import note_empty_texts
from classify.tables.rules import NO_COLUMN, SPLITS
from classify.tables.table import EMPTY, Table, TextHashes


def split_table(tables: InputTables, encoder: Targets, seed: int, folds: int = 0) -> Splits:
    """Split the tables of a run. Raises InputError where the texts are too few, or a label is unknown.

    Given tables are taken as they are. `--data` alone is split 80/10/10 into train, validation and test, 90/10 into
    train and validation beside `--test-data`; beside `--eval-data` alone there is no test split. With `folds` no row is
    held out, and the training split is cross-validated, in the folds of the run that `split_like` names, if any.
    `max_train_samples` caps the training split once the class names are fixed. Rows without a label or a text are in no
    split.
    """
    table, columns, config = tables.train, tables.columns, tables.config
    targets, hashes = encoder.encode(table, columns.label, "--data"), table.text_hashes(columns.text)
    labelled = encoder.labelled(table, columns.label) & (hashes != EMPTY)
    trusted = labelled & _trusted(tables, table)
    assigned = assign(tables, np.flatnonzero(trusted), encoder.stratify_by(targets), seed, folds)
    is_divided = bool((assigned.parts > TRAIN).any())
    train, validation, test = (Split(table, rows, targets[rows]) for rows in map(assigned.rows, range(len(SPLITS))))
    if tables.eval is not None:
        validation = _read_split(tables, tables.eval, encoder)
    if tables.test is not None:
        test = _read_split(tables, tables.test, encoder)
    sources = _find_sources(tables, targets, labelled, trusted, [validation, test])
    sources += _find_partial(tables, encoder, hashes, labelled, [validation, test])
    learned = [train, *(source.split for source in sources)]
    if tables.soft is not None:
        learned = _soften(learned, encoder, targets, tables.soft)
    if (most := config.max_train_samples) is not None:
        learned = [split.take(cap_rows(encoder.stratify_by(split.targets), most, seed=seed)) for split in learned]
        assigned.parts[(assigned.parts == TRAIN) & ~np.isin(hashes, learned[0].hashes(columns.text))] = UNUSED
    train, *others = learned
    sources = [replace(source, split=split) for source, split in zip(sources, others, strict=True)]
    if not len(train) or not (len(validation) or assigned.folds):
        raise _too_few(tables, train, assigned)
    held_out = f"validation {len(validation):,}"
    if config.max_eval_samples is not None and len(validation) > config.max_eval_samples:
        whole = validation
        validation = whole.take(cap_rows(encoder.stratify_by(whole.targets), config.max_eval_samples, seed=0))
        held_out = f"validation {len(validation):,} of {len(whole):,} (--max-eval-samples)"
    fold_of = None
    if assigned.folds:
        bound, labels = find_bound(tables, train.rows), encoder.stratify_by(train.targets)
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
    known = {name: np.flatnonzero(np.isin(split.hashes(columns.text), texts)) for name, split in scored.items()}
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
        in_training={name: tuple(places.tolist()) for name, places in known.items()},
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
    """The sources of `--data`, if there are any, without texts of the `scored` splits of other tables."""
    table, columns = tables.train, tables.columns
    if tables.origins is None:
        return []
    check_trusted(int(trusted.sum()), table.path)
    adds = labelled & ~trusted
    if columns.split is not None:
        adds &= columns.split.parts(table) == TRAIN
    added, known = (Split(table, rows, targets[rows]) for rows in map(np.flatnonzero, (adds, trusted)))
    texts = columns.texts.hash_rows(table)
    others = [columns.texts.hash_rows(split.table)[split.rows] for split in scored if split.table is not table]
    return collect_sources(tables.origins, added, known, texts, np.concatenate([texts[:0], *others]))


def _find_partial(
    tables: InputTables, encoder: Targets, hashes: TextHashes, labelled: npt.NDArray[np.bool_], scored: list[Split]
) -> list[Source]:
    """The rows of `--data` that only train, since their label says too little; no text that has another label."""
    config, column, split = tables.config, tables.columns.label, tables.columns.split
    found = encoder.partial(tables.train, column)
    # Where rows belong together, or some are not trusted, such a row could tell of one that is scored.
    is_bound = config.split_by_time is not None or config.group_column is not None or tables.origins is not None
    if found is None or not found[0].any() or is_bound or tables.columns.texts.pair is not None:
        return []
    rows, aims = np.flatnonzero(found[0]), found[1]
    texts = [hashes[labelled], *(split.hashes(tables.columns.text) for split in scored)]
    in_train = split is None or split.parts(tables.train)[rows] == TRAIN
    is_new = in_train & (hashes[rows] != EMPTY) & ~np.isin(hashes[rows], np.concatenate(texts))
    rows, aims = rows[is_new], aims[is_new]
    return [Source(f"inner nodes in column {column!r}", Split(tables.train, rows, aims, aims), is_judged=False)]


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
            is_tested = tables.columns.split.parts(tables.train)[first.rows] == TEST
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
    known = np.concatenate([columns.hash_rows(split.table)[split.rows] for split in splits])
    texts, first = np.unique(columns.hash_rows(table), return_index=True)
    first = np.sort(first[~np.isin(texts, known)])
    rows = first[table.text_hashes(columns.whole)[first] != EMPTY]
    if not len(rows):
        raise InputError(f"--unlabelled-data {table.path}: each of its texts has a label elsewhere; drop the flag.")
    return _without_targets(table, rows)


def _without_targets(table: Table, rows: Rows) -> Split:
    return Split(table, rows, np.full(len(rows), -1, dtype=np.int64))


def _too_few(tables: InputTables, train: Split, assigned: Assignment) -> InputError:
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
