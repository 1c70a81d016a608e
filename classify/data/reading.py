"""The tables that a person names, read and understood: columns, classes, and which part a row belongs to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow.compute as pc

from classify.config.schema import DataConfig
from classify.data.columns import Columns, find_columns, require_asked_column, require_column
from classify.data.corpus import Tables
from classify.data.formats.base import ReadOptions
from classify.data.formats.registry import find_layout
from classify.data.labels import ClassNames, check_empty_labels, name_classes, value_counts
from classify.data.names import PARTS, SPLIT_NAMES, part_called
from classify.data.table import Table, read_table
from classify.data.text_hashes import normalize_text
from classify.errors import ErrorList, InputError

# What data sets write where the labels of a part are kept from those who take part in a contest.
_WITHHELD = frozenset({"-1", ""})
_LABEL_FLAGS = {"--data": "--labels", "--eval-data": "--eval-labels", "--test-data": "--test-labels"}
# What --split-column says where a column of that name is none.
NO_COLUMN = "none"
_SHOWN = 5
# A column with more different values holds something else than splits.
_MOST_SPLITS = 10


def read_tables(config: DataConfig) -> Tables:
    """Read the tables and find the columns. Raises InputError with all faults."""
    table, eval_table, test_table = _read(config)
    split_column = _split_column(config, table, eval_table, test_table)
    require_asked_column(table, config.group_column, "--group-column")
    require_asked_column(table, config.split_by_time, "--split-by-time")
    # What says something else of a row is neither its text nor its label, unless it is named.
    apart = {_usual_split_column(config, table), config.group_column, config.split_by_time, split_column}
    apart -= {config.text_column, config.label_column}
    # Of two columns all that is left is a text and a label.
    guessing = table if len(set(table.columns) - apart) < 2 else table.without(apart)
    columns = find_columns(guessing, config.text_column, config.label_column)
    if config.split_column is None and split_column in (columns.text, columns.label):
        split_column = None
    _require_columns(columns, eval_table, ("text", "label"))
    # Of rows that are only to be predicted no label is expected.
    _require_columns(columns, test_table, ("text",) if config.predict_unlabelled else ("text", "label"))
    classes = _name_classes(config, columns.label, [table, eval_table], test_table)
    return Tables(table, eval_table, test_table, columns, classes, split_column, config.task)


def _read(config: DataConfig) -> tuple[Table, Table | None, Table | None]:
    """All tables; the faults of all of them are raised together."""
    assert config.data is not None
    wanted = {"--data": config.data, "--eval-data": config.eval_data, "--test-data": config.test_data}
    labels = {"--data": config.labels, "--eval-data": config.eval_labels, "--test-data": config.test_labels}
    options = ReadOptions(config.encoding, config.sheet, config.on_bad_rows == "skip", no_header=config.no_header)
    layout = find_layout(config.data, replace(options, labels=config.labels))
    laid = {} if layout is None else layout.parts(config.data, "--data")
    parts = {flag: laid.get(part) for part, flag in zip(PARTS, wanted, strict=True)}
    wanted |= {flag: path for flag, path in parts.items() if path and (flag == "--data" or wanted[flag] is None)}
    tables: dict[str, Table] = {}
    faults = ErrorList()
    for flag, path in wanted.items():
        with faults.collect():
            if path is not None:
                tables[flag] = read_table(path, flag, replace(options, labels=labels[flag]))
                if flag == "--data" and tables[flag].content.has_names:
                    options = replace(options, columns=tuple(tables[flag].columns))
        if labels[flag] is not None and path is None:
            faults.append(f"{_LABEL_FLAGS[flag]} names labels, and {flag} no texts that they are of; give both.")
    faults.raise_if_any()
    headers = [table.columns for table in tables.values() if table.content.has_names]
    named = {flag: _with_names(table, headers) for flag, table in tables.items()}
    return named["--data"], named.get("--eval-data"), named.get("--test-data")


def _with_names(table: Table, headers: Iterable[Sequence[str]]) -> Table:
    """A table without a header has the columns of another table with one, where that is as wide."""
    names = next((names for names in headers if len(names) == len(table.columns)), None)
    if table.content.has_names or names is None:
        return table
    return replace(table, content=table.content.named(names))


def _require_columns(columns: Columns, table: Table | None, wanted: Iterable[str]) -> None:
    """Raise InputError with each wanted column, text or label, that a further table lacks."""
    faults = ErrorList()
    for what in wanted:
        with faults.collect():
            if table is not None:
                require_column(table, getattr(columns, what), f"--{what}-column")
    faults.raise_if_any()


def _name_classes(
    config: DataConfig, column: str, learned: Iterable[Table | None], test_table: Table | None
) -> ClassNames:
    """What the classes are called, and what stands where a row has no label. Raises InputError."""
    counts: Counter[str] = Counter()
    tables = [table for table in learned if table is not None]
    for table in tables:
        counts.update(value_counts(table, column))
    normalize = config.normalize_labels == "auto"
    unlabelled = set()
    # What stands in a test table alone is no class, but may be another way to write one.
    tested = {} if test_table is None or column not in test_table.columns else value_counts(test_table, column)
    if test_table is not None and any(label.strip() for label in tested):
        tables.append(test_table)
    if not (config.drop_unlabelled or config.predict_unlabelled):
        for table in tables:
            check_empty_labels(table, column)
    counts.update(dict.fromkeys(tested, 0))
    if config.unlabelled_value is not None:
        key = normalize_text(config.unlabelled_value)
        unlabelled |= {
            label
            for label in counts
            if label == config.unlabelled_value or (normalize and normalize_text(label) == key)
        }
        if not unlabelled:
            raise InputError(f"--unlabelled-value {config.unlabelled_value}: no row has it as its label.")
    if len(tested) == 1 and set(tested) <= _WITHHELD and not any(counts[value] for value in tested):
        unlabelled |= set(tested)
    named = {label: count for label, count in counts.items() if label.strip() and label not in unlabelled}
    return name_classes(named, normalize=normalize, given=config.label_names, unlabelled=frozenset(unlabelled))


def _split_column(config: DataConfig, table: Table, eval_table: Table | None, test_table: Table | None) -> str | None:
    """The column that says which part a row of `--data` is in: the one asked for, or one that can be nothing else.

    Raises InputError where it says something else, or where the parts are said in several ways.
    """
    name = None if config.split_column == NO_COLUMN else config.split_column
    given: dict[str, object] = {_table_words(config.eval_data, eval_table, "--eval-data"): eval_table}
    given |= {"--split-column": name, "--split-by-time": config.split_by_time}
    if name is not None:
        given[_table_words(config.test_data, test_table, "--test-data")] = test_table
    ways = [flag for flag, value in given.items() if value is not None]
    if len(ways) > 1:
        raise InputError(f"{ways[0]} and {ways[1]} both say what is evaluated or tested on; give one of them.")
    by_seed = {
        "--split-like": config.split_like is not None,
        "--group-column": config.group_column is not None,
        "--near-duplicates": config.near_duplicates,
    }
    asked = [flag for flag, value in by_seed.items() if value]
    if ways and asked:
        raise InputError(
            f"{asked[0]} says how --data is divided by the seed, and {ways[0]} how else; give one of them."
        )
    if name is None:
        if ways or test_table is not None:
            return None
        usual = _usual_split_column(config, table)
        if usual is None:
            _refuse_unknown_splits(config, table)
        elif asked:
            raise InputError(
                f"{table.path}: column {usual!r} says which part a row is in, and {asked[0]} bears on dividing by the "
                "seed; give --split-column none for that, or drop the flag."
            )
        return usual
    require_asked_column(table, name, "--split-column")
    parts = _parts_of(table, name)
    unknown = [value for value, part in parts.items() if part is None]
    if unknown:
        shown = ", ".join(map(repr, unknown[:_SHOWN]))
        raise InputError(
            f"--split-column {name}: expected names of parts such as train, validation, test in each row of "
            f"{table.path}. Got {shown} instead."
        )
    if not _divides(parts.values()):
        shown = ", ".join(map(repr, parts))
        raise InputError(
            f"--split-column {name}: expected rows to train on, and others to evaluate or test. Got {shown} alone "
            "instead."
        )
    return name


def _usual_split_column(config: DataConfig, table: Table) -> str | None:
    """A column of a usual name that says which part each row is in, and is not asked for as something else."""
    return next((name for name, parts in _possible_splits(config, table) if _divides(parts.values())), None)


def _refuse_unknown_splits(config: DataConfig, table: Table) -> None:
    """Raise InputError where a column of a usual name holds rows to train on, beside a few values of no known split."""
    # Of two columns one is the text and the other the label.
    for name, parts in _possible_splits(config, table) if len(table.columns) > 2 else ():
        unknown = [value for value, part in parts.items() if part is None]
        if PARTS.index("train") in parts.values() and unknown and len(parts) <= _MOST_SPLITS:
            raise InputError(
                f"{table.path}: column {name!r} holds {', '.join(map(repr, parts))}; expected train, validation and "
                f"test alone, and {', '.join(map(repr, unknown))} is none of them. Rename such values and give "
                f"--split-column {name}, or give --split-column {NO_COLUMN} to split by the seed."
            )


def _possible_splits(config: DataConfig, table: Table) -> Iterator[tuple[str, dict[str, int | None]]]:
    """Yield each column of a usual name that no flag names as something else, and the split that each value means."""
    taken = (config.text_column, config.label_column)
    for column in table.columns if config.split_column != NO_COLUMN else ():
        if column.strip().lower() in SPLIT_NAMES and column not in taken:
            yield column, _parts_of(table, column)


def _table_words(asked: str | None, table: Table | None, flag: str) -> str:
    """What gave a further table: its flag, or the folder it was found in."""
    return flag if asked is not None or table is None else table.path


def _parts_of(table: Table, column: str) -> dict[str, int | None]:
    """The part that each value of a column is the name of."""
    return {value: part_called(value) for value in pc.unique(table.arrow.column(column)).to_pylist()}


def _divides(parts: Collection[int | None]) -> bool:
    """Whether these are parts, the training part and another one among them."""
    return None not in parts and PARTS.index("train") in parts and len(set(parts)) > 1
