"""Read the tables of a run, and find the columns that matter in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from classify.config.schema import DataConfig
from classify.errors import ErrorList, InputError
from classify.tables.folders import find_splits
from classify.tables.options import ReadOptions
from classify.tables.read import SUFFIXES, read_table
from classify.tables.roles import Columns, find_columns, rename_alike, require_columns, require_named_column
from classify.tables.split_column import NO_COLUMN, SplitColumn, find_split_column, require_splits
from classify.tables.table import Table
from classify.tables.texts import join_labels

FLAGS = ("--data", "--eval-data", "--test-data")
# The flag that names each split of a folder, when it is a separate file.
_SPLITS = dict(zip(("train", "eval", "test"), FLAGS, strict=True))


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
        """The tables whose labels a model learns: `--data` and `--eval-data`."""
        return [table for table in (self.train, self.eval) if table is not None]

    @property
    def every(self) -> list[Table]:
        return self.learned if self.test is None else [*self.learned, self.test]


def read_tables(config: DataConfig, in_memory: Mapping[str, Table] | None = None) -> InputTables:
    """Read the tables and find the columns; those `in_memory`, by flag, are there already.

    Raises InputError with the faults of all tables, QuestionError with what the first leaves open.
    """
    tables = _read(config, in_memory or {})
    table = tables["--data"]
    if not len(table):
        raise InputError(f"{table.path}: no row below the header. Expected one row per text.")
    config = replace(
        config,
        group_column=require_named_column(table, config.group_column, "--group-column"),
        split_by_time=require_named_column(table, config.split_by_time, "--split-by-time"),
    )
    split = _find_split_column(config, table)
    columns = _find_columns(config, table, split)
    if split is not None and split.name not in (*columns.texts.named, *columns.labels):
        if _defines_splits(config, table, split, tables):
            columns = replace(columns, split=split)
        else:
            text = f"column {split.name!r} of splits is not used, since other flags are; see --split-column"
            table = table.add_note(text)
    elif config.split_column in (None, NO_COLUMN):
        _defines_splits(config, table, None, tables)
    more: dict[str, Table] = {}
    for flag in FLAGS[1:]:
        further = tables.get(flag)
        if further is not None and flag == "--test-data" and config.test_data is None:
            further = _leave_out_unlabelled(further, columns, config)
        if further is not None:
            more[flag] = _fit(further, columns, flag, config)
    return InputTables(_derive(table, columns), more.get("--eval-data"), more.get("--test-data"), columns, config)


def _read(config: DataConfig, in_memory: Mapping[str, Table]) -> dict[str, Table]:
    """Read all tables; the faults of all of them are raised together."""
    paths: dict[str, str | None] = {
        "--data": config.data,
        "--eval-data": config.eval_data,
        "--test-data": config.test_data,
    }
    if config.data is not None and "--data" not in in_memory:
        for split, found in find_splits(config.data, "--data", SUFFIXES).items():
            flag = _SPLITS[split]
            paths[flag] = found if flag == "--data" else paths[flag] or found
    options, tables, faults = ReadOptions.from_settings(vars(config)), dict(in_memory), ErrorList()
    for flag, path in paths.items():
        if path is not None and flag not in tables:
            with faults.collect():
                tables[flag] = read_table(path, flag, options)
        if flag == "--data" and flag in tables and tables[flag].has_names:
            options = replace(options, columns=tuple(tables[flag].columns))
    faults.raise_if_any()
    return tables


def _find_split_column(config: DataConfig, table: Table) -> SplitColumn | None:
    """The column of --split-column, else one whose values are names of splits, if no flag names it."""
    if config.split_column == NO_COLUMN:
        return None
    name = require_named_column(table, config.split_column, "--split-column")
    if name is not None:
        return require_splits(table, name)
    return find_split_column(table, (config.text_column, config.text_pair_column, config.label_column))


def _find_columns(config: DataConfig, table: Table, split: SplitColumn | None) -> Columns:
    """Find the columns of texts and labels; a column with another meaning is neither, unless a flag names it."""
    others = {config.group_column, config.split_by_time, None if split is None else split.name}
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


def _defines_splits(config: DataConfig, table: Table, split: SplitColumn | None, tables: Mapping[str, Table]) -> bool:
    """Whether a column defines the splits. Raises InputError where they are given in several ways."""
    is_named = config.split_column not in (None, NO_COLUMN)
    given = {"--eval-data": "--eval-data" in tables, "--split-by-time": config.split_by_time is not None}
    ways = [flag for flag, is_given in given.items() if is_given]
    tested = "--test-data" in tables
    if is_named:
        ways = ["--split-column", *ways, *(["--test-data"] if tested else [])]
    if len(ways) > 1:
        raise InputError(f"{ways[0]} and {ways[1]} both define the splits; give one of them.")
    if split is not None and not is_named:
        for number, flag in enumerate(FLAGS[1:], start=1):
            if flag in tables and (values := split.values_of(number)):
                raise InputError(
                    f"{table.path}: column {split.name!r} has rows of {values[0]!r} beside {flag}; drop {flag} to "
                    f"split by the column, or give --split-column {NO_COLUMN} to use these rows as all others."
                )
        if ways or tested:
            split = None
    defined = ways[0] if ways else None if split is None else f"column {split.name!r}"
    by_seed = {"--split-like": config.split_like, "--group-column": config.group_column}
    useless = [flag for flag, value in by_seed.items() if value is not None]
    if defined and useless:
        raise InputError(
            f"{table.path}: {useless[0]} has no effect when {defined} defines the splits; drop one of them, or give "
            f"--split-column {NO_COLUMN} to split by seed."
        )
    return split is not None


def _leave_out_unlabelled(test: Table, columns: Columns, config: DataConfig) -> Table | None:
    """The test table of a folder, unless it has no labels, as those of competitions."""
    keeps = config.predict_unlabelled or any(map(test.has_column, columns.labels))
    return test if keeps else None


def _fit(table: Table, columns: Columns, flag: str, config: DataConfig) -> Table:
    """A further table with the first one's names of columns. Raises InputError with the columns that it lacks."""
    table = rename_alike(table, (*columns.texts.named, *columns.labels))
    wanted = dict.fromkeys(columns.texts.fields, "--text-column")
    wanted |= {} if columns.texts.pair is None else {columns.texts.pair: "--text-pair-column"}
    if not (flag == "--test-data" and config.predict_unlabelled):  # rows to predict need no label
        hint = ", or --predict-unlabelled if its rows are only to be predicted" if flag == "--test-data" else ""
        wanted |= dict.fromkeys(columns.labels, f"--label-column{hint}")
    require_columns(table, wanted)
    return _derive(table, columns)


def _derive(table: Table, columns: Columns) -> Table:
    """Add the columns that are computed from others. Raises InputError where their cells do not fit."""
    table = columns.texts.derive(table)
    if len(columns.labels) > 1 and all(map(table.has_column, columns.labels)):
        table = join_labels(table, columns.labels, columns.label)
    return table
