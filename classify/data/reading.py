"""Read the tables of a run; find the columns and the split column."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow.compute as pc

from classify.config.schema import DataConfig
from classify.errors import ErrorList, InputError, list_some
from classify.tables.columns import (
    Columns,
    find_columns,
    rename_alike,
    require_column,
    require_named_column,
    require_texts,
)
from classify.tables.content import parse_mark
from classify.tables.derived import join_labels
from classify.tables.formats.base import ReadOptions
from classify.tables.formats.registry import find_format, read_table, refuse_unused
from classify.tables.label_lists import COLUMN_SEPARATOR
from classify.tables.names import (
    ALL_SPLIT_WORDS,
    GROUP_NAMES,
    LABEL_NAMES,
    SPLIT_NAMES,
    SPLITS,
    TEXT_NAMES,
    parse_split_name,
)
from classify.tables.table import Table

_LABEL_FLAGS = {"--data": "--labels", "--eval-data": "--eval-labels", "--test-data": "--test-labels"}
# Value of --split-column that disables detection.
NO_COLUMN = "none"
_SHOWN = 5
# A column with more different values holds something else than splits.
_MOST_SPLITS = 10
# Rows that are looked at before all of a column's values.
_FIRST = 20
# Maximum of words in a split's name, such as private_test.
_MOST_WORDS = 2
# Names of columns that say yes or no of a split.
_BINARY_SPLIT = re.compile(r"(is|in)[ _-](train|training|test|testing|holdout)|is(train|test)", re.IGNORECASE)
# Columns with these names are texts or labels, even if their values are names of splits.
_OTHER_NAMES = frozenset((*TEXT_NAMES, *LABEL_NAMES, *GROUP_NAMES))
# The split that each value of a column means, by column.
_SplitColumns: TypeAlias = dict[str, dict[str, int | None]]


@dataclass(frozen=True)
class InputTables:
    """The tables as they were read, and the columns that matter, which all of them have."""

    train: Table
    eval: Table | None
    test: Table | None
    columns: Columns
    config: DataConfig

    @property
    def learned(self) -> list[Table]:
        """Return the tables whose labels a model learns: `--data` and `--eval-data`."""
        return [table for table in (self.train, self.eval) if table is not None]


def read_tables(config: DataConfig) -> InputTables:
    """Read the tables and find the columns. Raises InputError with all faults."""
    tables = _read(config)
    with tables[0].add_hint():
        return _find_columns(config, *tables)


def _find_columns(config: DataConfig, table: Table, eval_table: Table | None, test_table: Table | None) -> InputTables:
    possible = _possible_splits(config, table)
    split_column = _find_split_column(config, table, eval_table, test_table, possible)
    require_named_column(table, config.group_column, "--group-column")
    require_named_column(table, config.split_by_time, "--split-by-time")
    # A column with another meaning is neither text nor label, unless a flag names it.
    others = {_usual_split_column(possible), config.group_column, config.split_by_time, split_column}
    others -= {config.text_column, config.text_pair_column, config.label_column}
    # Without these columns a text and a label must be left, so a table of two columns stays as it is.
    searched = table if len(set(table.columns) - others) < 2 else table.drop(others)
    columns = find_columns(
        searched,
        config.text_column,
        config.label_column,
        config.text_pair_column,
        config.text_column_delimiter,
        config.unlabelled_value,
    )
    for flag, name in {"--group-column": config.group_column, "--split-by-time": config.split_by_time}.items():
        if name in columns.labels:
            raise InputError(
                f"{flag} {name}: this is the label column of {table.path}, so no class would be in two splits; name "
                "another column."
            )
    if config.split_column is not None or split_column not in (*columns.texts.named, *columns.labels):
        columns = replace(columns, split=split_column)
    notes = _note_unused_splits(config, table, eval_table, test_table, possible, columns)
    table = replace(table, notes=(*table.notes, *notes))
    named = (*columns.texts.named, *columns.labels)
    eval_table, test_table = (
        None if further is None else rename_alike(further, named) for further in (eval_table, test_table)
    )
    _require_columns(columns, eval_table, labels=True)
    # Rows to predict need no label.
    way = ", or add --predict-unlabelled if its rows are only to be predicted"
    _require_columns(columns, test_table, labels=not config.predict_unlabelled, way=way)
    for further in (eval_table, test_table):
        if further is not None and config.text_column is None:
            require_texts(further, columns.texts.fields)
    tables = [None if source is None else _derive(source, columns) for source in (table, eval_table, test_table)]
    assert tables[0] is not None
    return InputTables(tables[0], tables[1], tables[2], columns, config)


def _derive(table: Table, columns: Columns) -> Table:
    """Add the columns that are computed from others. Raises InputError where their cells do not fit."""
    table = columns.texts.derive(table)
    columns.texts.require_both(table)
    if len(columns.labels) > 1 and all(map(table.has_column, columns.labels)):
        table = join_labels(table, columns.labels, columns.label, COLUMN_SEPARATOR)
    return table


def _read(config: DataConfig) -> tuple[Table, Table | None, Table | None]:
    """Read all tables; the faults of all of them are raised together."""
    assert config.data is not None
    paths = {"--data": config.data, "--eval-data": config.eval_data, "--test-data": config.test_data}
    labels = {"--data": config.labels, "--eval-data": config.eval_labels, "--test-data": config.test_labels}
    options = ReadOptions(config.encoding, config.sheet, config.on_bad_rows == "skip", no_header=config.no_header)
    source, format = find_format(config.data, "--data", replace(options, labels=config.labels))
    splits = format.splits(source)
    for split, flag in zip(SPLITS, list(paths), strict=True):
        path = splits.get(split)
        if path is not None and (flag == "--data" or paths[flag] is None):
            paths[flag] = path
    tables: dict[str, Table] = {}
    faults = ErrorList()
    for flag, path in paths.items():
        with faults.collect():
            if path is not None:
                tables[flag] = read_table(path, flag, replace(options, labels=labels[flag]))
                if flag == "--data" and tables[flag].has_names:
                    options = replace(options, columns=tuple(tables[flag].columns))
        if labels[flag] is not None and path is None:
            faults.append(f"{_LABEL_FLAGS[flag]}: there are no texts for these labels; add {flag}.")
    faults.raise_if_any()
    refuse_unused(options, list(tables.values()))
    if splits and (unused := format.find_unused(source, [path for path in paths.values() if path is not None])):
        note = f"is one of several tables in {config.data}; not read: {list_some(unused[:_SHOWN], len(unused))}"
        tables["--data"] = replace(tables["--data"], notes=(*tables["--data"].notes, note))
    headers = [table.columns for table in tables.values() if table.has_names]
    named = {flag: _name_columns(table, headers) for flag, table in tables.items()}
    return named["--data"], named.get("--eval-data"), named.get("--test-data")


def _name_columns(table: Table, headers: Iterable[Sequence[str]]) -> Table:
    """Give a table without a header the columns of another table with one, where that is as wide."""
    names = next((names for names in headers if len(names) == len(table.columns)), None)
    return table if table.has_names or names is None else table.rename(names)


def _require_columns(columns: Columns, table: Table | None, *, labels: bool, way: str = "") -> None:
    """Raise InputError with each text column, and label column with `labels`, that a further table lacks.

    `way` is another fix to suggest where the labels are missing.
    """
    flags = dict.fromkeys(columns.texts.fields, "--text-column")
    flags |= {} if columns.texts.pair is None else {columns.texts.pair: "--text-pair-column"}
    flags |= dict.fromkeys(columns.labels if labels else (), "--label-column")
    faults = ErrorList()
    for name, flag in flags.items():
        with faults.collect():
            if table is not None:
                require_column(table, name, flag, way if flag == "--label-column" else "")
    faults.raise_if_any()


def _find_split_column(
    config: DataConfig, table: Table, eval_table: Table | None, test_table: Table | None, possible: _SplitColumns
) -> str | None:
    """Return the column that holds the split of each row: the one that --split-column names, or a possible one.

    Raises InputError where it holds something else, or where splits are given in several ways.
    """
    name = None if config.split_column == NO_COLUMN else config.split_column
    sources: dict[str, object] = {_origin(config.eval_data, eval_table, "--eval-data"): eval_table}
    sources |= {"--split-column": name, "--split-by-time": config.split_by_time}
    if name is not None:
        sources[_origin(config.test_data, test_table, "--test-data")] = test_table
    ways = [flag for flag, value in sources.items() if value is not None]
    if len(ways) > 1:
        raise InputError(f"{ways[0]} and {ways[1]} both define the splits; give one of them.")
    by_seed = {"--split-like": config.split_like is not None, "--group-column": config.group_column is not None}
    requested = [flag for flag, value in by_seed.items() if value]
    if ways and requested:
        raise InputError(f"{requested[0]} has no effect when {ways[0]} defines the splits; give one of them.")
    if name is None:
        if ways or test_table is not None:
            return None
        usual = _usual_split_column(possible)
        if usual is None:
            _refuse_unknown_splits(config, table, possible)
        elif requested:
            raise InputError(
                f"{table.path}: {requested[0]} has no effect when column {usual!r} defines the splits; add "
                "--split-column none to split by seed."
            )
        return usual
    require_named_column(table, name, "--split-column")
    splits = _splits_by_value(table, name)
    unknown = [value for value, split in splits.items() if split is None]
    if unknown:
        shown = ", ".join(map(repr, unknown[:_SHOWN]))
        raise InputError(
            f"--split-column {name}: expected names of splits such as train, validation, test in each row of "
            f"{table.path}. Got {shown} instead."
        )
    if not _are_splits(splits.values()):
        shown = ", ".join(map(repr, splits))
        raise InputError(
            f"--split-column {name}: expected rows to train on, and others to validate or test on. Got only {shown} "
            "instead."
        )
    return name


def _usual_split_column(possible: _SplitColumns) -> str | None:
    """Return the first possible column that holds nothing but splits."""
    return next((name for name, splits in possible.items() if _are_splits(splits.values())), None)


def _note_unused_splits(
    config: DataConfig,
    table: Table,
    eval_table: Table | None,
    test_table: Table | None,
    possible: _SplitColumns,
    columns: Columns,
) -> list[str]:
    """Return notes on columns that hold splits, but do not define them, where no flag has chosen.

    Raises InputError where such a column names rows of the split that a further table is given for.
    """
    others = (*columns.texts.named, *columns.labels, columns.split)
    unused = [name for name, splits in possible.items() if name not in others and _are_splits(splits.values())]
    if config.split_column is not None or not unused:
        return []
    used, name = columns.split, unused[0]
    if used is not None:
        parts = [possible[used][value] for value in table.column(used)]
        differing = [name for name in unused if [possible[name][value] for value in table.column(name)] != parts]
        way = f"splits, which differ from those of the column {used!r} and are not used; choose with --split-column"
        return [f"has the column {name!r} of {way}" for name in differing]
    given = {"--eval-data": config.eval_data, "--test-data": config.test_data}
    for split, flag in enumerate(given, start=SPLITS.index("eval")):
        named = [value for value, number in possible[name].items() if number == split]
        if given[flag] is not None and named:
            raise InputError(
                f"{table.path}: column {name!r} has rows of {named[0]!r} beside {flag}; drop {flag} to split by the "
                f"column, or give --split-column {NO_COLUMN} to use these rows as all others."
            )
    sources = {_origin(config.eval_data, eval_table, "--eval-data"): eval_table}
    sources |= {_origin(config.test_data, test_table, "--test-data"): test_table}
    ways = [flag for flag, source in sources.items() if source is not None] or ["--split-by-time"]
    held_out = [repr(value) for value, split in possible[name].items() if split != SPLITS.index("train")]
    return [
        f"has the column {name!r} of splits, which is not used, since {ways[0]} is given; its rows of "
        f"{list_some(held_out[:_SHOWN], len(held_out))} may be trained on (to split by it drop {ways[0]})"
    ]


def _refuse_unknown_splits(config: DataConfig, table: Table, possible: _SplitColumns) -> None:
    """Raise InputError where a likely split column names the training split beside a few unknown values.

    A column named split with few values is a split column without that, too.
    """
    if len(table.columns) <= 2 or config.split_column == NO_COLUMN:  # of two, one is the text and the other the label
        return
    for column in filter(_BINARY_SPLIT.fullmatch, table.columns):
        values = pc.unique(table.arrow.column(column)).to_pylist()
        is_named = column in (config.label_column or "").split(",")
        if len(values) > 1 and None not in map(parse_mark, values) and not is_named:
            raise InputError(
                f"{table.path}: column {column!r} may name the rows of a split; write train and test into it and give "
                f"--split-column {column}, or give --split-column {NO_COLUMN} to split by seed."
            )
    for name, splits in possible.items():
        unknown = [value for value, split in splits.items() if split is None]
        is_split = name.strip().lower() == SPLIT_NAMES[0] and len(splits) > 1
        plain = [split for value, split in splits.items() if value.strip().lower() in ALL_SPLIT_WORDS]
        is_few = len(splits) <= _MOST_SPLITS or _are_splits(plain)
        if (is_split or SPLITS.index("train") in splits.values()) and unknown and is_few:
            held, others = (list(map(repr, values)) for values in (splits, unknown))
            raise InputError(
                f"{table.path}: column {name!r} holds {list_some(held[:_MOST_SPLITS], len(held))}; expected train, "
                f"validation and test alone, and {list_some(others[:_SHOWN], len(others))} is none of them. Rename "
                f"such values and give --split-column {name}, or give --split-column {NO_COLUMN} to split by seed."
            )


def _possible_splits(config: DataConfig, table: Table) -> _SplitColumns:
    """Return the columns that no flag names as something else, of a usual name or with nothing but names of splits."""
    taken = (config.text_column, config.text_pair_column, config.label_column)
    possible = {}
    columns = table.columns  # a list that is made anew at each access
    for column in columns if config.split_column != NO_COLUMN else ():
        if column in taken:
            continue
        name = column.strip().lower()
        may_hold_splits = len(columns) > 2 and name not in _OTHER_NAMES
        if name in SPLIT_NAMES or (may_hold_splits and _holds_split_words(table, column)):
            possible[column] = _splits_by_value(table, column)
    return possible


def _origin(path: str | None, table: Table | None, flag: str) -> str:
    """Name the source of a further table: its flag, or the folder it is in."""
    return flag if path is not None or table is None else table.path


def _splits_by_value(table: Table, column: str) -> dict[str, int | None]:
    """Return the split that each value of a column means."""
    return {value: parse_split_name(value) for value in pc.unique(table.arrow.column(column)).to_pylist()}


def _holds_split_words(table: Table, column: str) -> bool:
    """Return whether the values of a column are names of splits and nothing else; its first rows rule most out."""
    values = table.arrow.column(column)

    def are_words(some: Sequence[str]) -> bool:
        words = [re.findall(r"[^\W_]+", value.lower()) for value in some]
        return all(len(parts) <= _MOST_WORDS and not ALL_SPLIT_WORDS.isdisjoint(parts) for parts in words)

    return are_words(values.slice(0, _FIRST).to_pylist()) and are_words(pc.unique(values).to_pylist())


def _are_splits(splits: Collection[int | None]) -> bool:
    """Return whether all values are splits, the training split and another one among them."""
    return None not in splits and SPLITS.index("train") in splits and len(set(splits)) > 1
