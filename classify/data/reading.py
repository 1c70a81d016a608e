"""The tables that a person names, read and understood: columns, classes, and which part a row belongs to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace

import pyarrow.compute as pc

from classify.config.schema import DataConfig
from classify.data.columns import Columns, asked_column, find_columns, require_column
from classify.data.corpus import Tables
from classify.data.formats.base import ReadOptions
from classify.data.formats.registry import find_layout
from classify.data.labels import ClassNames, name_classes, value_counts
from classify.data.names import PARTS, SPLIT_NAMES, part_called
from classify.data.table import Table, read_table
from classify.errors import Faults, InputError

# What data sets write where the labels of a part are kept from those who take part in a contest.
_WITHHELD = frozenset({"-1", ""})
# What --split-column says where a column of that name is none.
NO_COLUMN = "none"
_SHOWN = 5


def read_tables(config: DataConfig) -> Tables:
    """Read the tables and find the columns. Raises InputError with all faults."""
    table, eval_table, test_table = _read(config)
    columns = find_columns(table, config.text_column, config.label_column)
    _require_columns(columns, eval_table, ("text", "label"))
    # Of rows that are only to be predicted no label is expected.
    _require_columns(columns, test_table, ("text",) if config.predict_unlabelled else ("text", "label"))
    asked_column(table, config.group_column, "--group-column")
    asked_column(table, config.split_by_time, "--split-by-time")
    classes = _name_classes(config, columns.label, [table, eval_table], test_table)
    return Tables(table, eval_table, test_table, columns, classes, _split_column(config, table, columns.label))


def _read(config: DataConfig) -> tuple[Table, Table | None, Table | None]:
    """All tables; the faults of all of them are raised together."""
    assert config.data is not None
    wanted = {"--data": config.data, "--eval-data": config.eval_data, "--test-data": config.test_data}
    labels = {"--data": config.labels, "--eval-data": config.eval_labels, "--test-data": config.test_labels}
    options = ReadOptions(config.encoding, config.sheet, config.on_bad_rows == "skip")
    layout = find_layout(config.data, replace(options, labels=config.labels))
    named = {} if layout is None else layout.parts(config.data, "--data")
    parts = {flag: named.get(part) for part, flag in zip(PARTS, wanted, strict=True)}
    wanted |= {flag: path for flag, path in parts.items() if path and (flag == "--data" or wanted[flag] is None)}
    tables: dict[str, Table] = {}
    faults = Faults()
    for flag, path in wanted.items():
        with faults.collecting():
            if path is not None:
                tables[flag] = read_table(path, flag, replace(options, labels=labels[flag]))
                if flag == "--data" and tables[flag].content.has_names:
                    options = replace(options, columns=tuple(tables[flag].columns))
    faults.raise_if_any()
    return _with_names(tables["--data"], tables.values()), tables.get("--eval-data"), tables.get("--test-data")


def _with_names(table: Table, all_tables: Iterable[Table]) -> Table:
    """`--data` without a header has the columns of another table with one, where that is as wide."""
    if table.content.has_names:
        return table
    others = (other.columns for other in all_tables if other.content.has_names)
    names = next((names for names in others if len(names) == len(table.columns)), None)
    return table if names is None else replace(table, content=table.content.named(names))


def _require_columns(columns: Columns, table: Table | None, wanted: Iterable[str]) -> None:
    """Raise InputError with each wanted column, text or label, that a further table lacks."""
    faults = Faults()
    for what in wanted:
        with faults.collecting():
            if table is not None:
                require_column(table, getattr(columns, what), f"--{what}-column")
    faults.raise_if_any()


def _name_classes(
    config: DataConfig, column: str, learned: Iterable[Table | None], test_table: Table | None
) -> ClassNames:
    """What the classes are called, and what stands where a row has no label. Raises InputError."""
    counts: Counter[str] = Counter()
    for table in learned:
        if table is not None:
            counts.update(value_counts(table, column))
    unlabelled = set()
    if config.unlabelled_value is not None:
        if config.unlabelled_value not in counts:
            raise InputError(f"--unlabelled-value {config.unlabelled_value}: no row of --data has it as its label.")
        unlabelled.add(config.unlabelled_value)
    if config.drop_unlabelled or config.predict_unlabelled:
        unlabelled |= {label for label in counts if not label.strip()} | {""}
    if test_table is not None and column in test_table.columns:
        values = set(value_counts(test_table, column))
        if len(values) == 1 and values <= _WITHHELD - set(counts):
            unlabelled |= values
    named = {label: count for label, count in counts.items() if label not in unlabelled}
    return name_classes(
        named, normalize=config.normalize_labels, given=config.label_names, unlabelled=frozenset(unlabelled)
    )


def _split_column(config: DataConfig, table: Table, label: str) -> str | None:
    """The column that says which part a row of `--data` is in: the one asked for, or one that can be nothing else.

    Raises InputError where it says something else, or where the parts are given in another way, too.
    """
    ways = {
        "--eval-data": config.eval_data, "--test-data": config.test_data, "--split-by-time": config.split_by_time,
        "--split-like": config.split_like,
    }  # fmt: skip
    given = [flag for flag, value in ways.items() if value is not None]
    name = config.split_column
    if name == NO_COLUMN or (name is None and given):
        return None
    if name is None:
        usual = [column for column in table.columns if column.strip().lower() in SPLIT_NAMES and column != label]
        return next((column for column in usual if _divides(_parts_of(table, column).values())), None)
    if given:
        raise InputError(f"--split-column {name} and {given[0]} both say what is evaluated on; give one of them.")
    asked_column(table, name, "--split-column")
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


def _parts_of(table: Table, column: str) -> dict[str, int | None]:
    """The part that each value of a column is the name of."""
    return {value: part_called(value) for value in pc.unique(table.arrow.column(column)).to_pylist()}


def _divides(parts: Collection[int | None]) -> bool:
    """Whether these are parts, the training part and another one among them."""
    return None not in parts and PARTS.index("train") in parts and len(set(parts)) > 1
