"""Read the tables of a run, and find the columns that matter in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from classify.config.schema import DataConfig
from classify.errors import ErrorList, InputError, list_some
from classify.tables.derived import join_labels
from classify.tables.formats.base import ReadOptions
from classify.tables.formats.registry import find_format, read_table, refuse_unused
from classify.tables.label_lists import COLUMN_SEPARATOR
from classify.tables.names import SPLITS
from classify.tables.roles import (
    Columns,
    find_columns,
    rename_alike,
    require_column,
    require_named_column,
    require_texts,
)
from classify.tables.split_column import NO_COLUMN, SplitColumn, ask_about_splits, find_splits, require_splits
from classify.tables.table import Table

_LABEL_FLAGS = {"--data": "--labels", "--eval-data": "--eval-labels", "--test-data": "--test-labels"}


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
    table, eval_table, test_table = _read(config)
    if not len(table):
        raise InputError(f"{table.path}: no row below the header. Expected one row per text.")
    with table.add_hint():
        config = replace(
            config,
            group_column=require_named_column(table, config.group_column, "--group-column"),
            split_by_time=require_named_column(table, config.split_by_time, "--split-by-time"),
        )
        splits = _find_splits(config, table, [eval_table, test_table])
        columns = _find_columns(config, table, splits[:1])
        used = _use_splits(config, table, splits, columns, eval_table, test_table)
        columns = replace(columns, split=used)
        others = [split for split in splits if split.name not in (*columns.texts.named, *columns.labels)]
        if others and used is None:
            table = table.add_note(
                f"column {others[0].name!r} of splits is not used, since other flags are; see --split-column"
            )
    further = [None if other is None else _fit(config, other, columns) for other in (eval_table, test_table)]
    if config.test_data is None and further[1] is not None and not config.predict_unlabelled:
        table, further[1] = _leave_out_unlabelled(table, further[1], columns)
    _require_columns(columns, further[0], labels=True)
    # Rows to predict need no label.
    way = ", or add --predict-unlabelled if its rows are only to be predicted"
    _require_columns(columns, further[1], labels=not config.predict_unlabelled, way=way)
    tables = [None if source is None else _derive(source, columns) for source in (table, *further)]
    assert tables[0] is not None
    return InputTables(tables[0], tables[1], tables[2], columns, config)


def _find_columns(config: DataConfig, table: Table, splits: Sequence[SplitColumn]) -> Columns:
    """Find the columns of texts and labels; a column with another meaning is neither, unless a flag names it."""
    others = {config.group_column, config.split_by_time, *(split.name for split in splits)}
    others -= {config.text_column, config.text_pair_column, config.label_column}
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
    return columns


def _find_splits(config: DataConfig, table: Table, further: Sequence[Table | None]) -> list[SplitColumn]:
    """Return the columns of splits: that of --split-column, else all that may be one. Raises InputError."""
    name = require_named_column(
        table, None if config.split_column == NO_COLUMN else config.split_column, "--split-column"
    )
    if name is not None:
        return [require_splits(table, name)]
    taken = (config.text_column, config.text_pair_column, config.label_column)
    splits = [] if config.split_column == NO_COLUMN else find_splits(table, taken)
    if not splits and config.split_column != NO_COLUMN and not any(further) and config.split_by_time is None:
        ask_about_splits(table, taken)
    return splits


def _use_splits(
    config: DataConfig,
    table: Table,
    splits: Sequence[SplitColumn],
    columns: Columns,
    eval_table: Table | None,
    test_table: Table | None,
) -> SplitColumn | None:
    """Return the column that defines the splits, if any. Raises InputError where they are given in several ways."""
    given = {"--eval-data": eval_table, "--split-by-time": config.split_by_time, "--test-data": test_table}
    ways = [flag for flag, value in given.items() if value is not None]
    requested = {"--split-like": config.split_like, "--group-column": config.group_column}
    by_seed = [flag for flag, value in requested.items() if value is not None]
    is_named = config.split_column not in (None, NO_COLUMN)
    if is_named:
        ways.insert(0, "--split-column")
    defining = [way for way in ways if way != "--test-data" or is_named]
    if len(defining) > 1:
        raise InputError(f"{defining[0]} and {defining[1]} both define the splits; give one of them.")
    used = next((split for split in splits if split.name not in (*columns.texts.named, *columns.labels)), None)
    if used is not None and not is_named and ways:
        for flag, split in {"--eval-data": 1, "--test-data": 2}.items():
            if given[flag] is not None and (values := used.values_of(split)):
                raise InputError(
                    f"{table.path}: column {used.name!r} has rows of {values[0]!r} beside {flag}; drop {flag} to split "
                    f"by the column, or give --split-column {NO_COLUMN} to use these rows as all others."
                )
        used = None
    defined = defining[0] if defining else None if used is None else f"column {used.name!r}"
    if defined and by_seed:
        raise InputError(
            f"{table.path}: {by_seed[0]} has no effect when {defined} defines the splits; drop one of them, or give "
            f"--split-column {NO_COLUMN} to split by seed."
        )
    return used


def _leave_out_unlabelled(table: Table, test: Table, columns: Columns) -> tuple[Table, Table | None]:
    """Leave out the test table of a folder that has no labels, as those of competitions, with a note."""
    if any(map(test.has_column, columns.labels)):
        return table, test
    return table.add_note(
        f"{test.path} beside it has no column {columns.label!r} and is not read; see --predict-unlabelled"
    ), None


def _fit(config: DataConfig, table: Table, columns: Columns) -> Table:
    """Return a further table with the names of the first one's columns. Raises InputError where it holds no texts."""
    table = rename_alike(table, (*columns.texts.named, *columns.labels))
    if config.text_column is None and all(map(table.has_column, columns.texts.fields)):
        require_texts(table, columns.texts.fields)
    return table


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
    options = ReadOptions.from_settings(vars(config))
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
        shown = list_some(unused)
        tables["--data"] = tables["--data"].add_note(f"one of several tables in {config.data}; not read: {shown}")
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
