"""Read the tables of a run, and find the columns that matter in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from classify.config.schema import DataConfig
from classify.data.soft_labels import SoftLabels, fill_labels, note_columns, read_annotators, read_soft_labels
from classify.data.sources import Origins, read_origins
from classify.errors import ErrorList, InputError
from classify.tables.folders import find_splits
from classify.tables.labels import are_marks, join_labels, list_cells
from classify.tables.read import SUFFIXES, read_table
from classify.tables.roles import (
    Columns,
    TextColumns,
    find_columns,
    find_text_columns,
    rename_alike,
    require_columns,
    require_named_column,
)
from classify.tables.rules import NO_COLUMN, SplitColumn, find_split_column, require_splits
from classify.tables.source import ReadOptions
from classify.tables.table import Table, normalize_text

FLAGS = ("--data", "--eval-data", "--test-data")
_UNLABELLED = "--unlabelled-data"
# The flag of each split of a folder, as if it was a separate file.
_SPLITS = dict(zip(("train", "eval", "test"), FLAGS, strict=True))


@dataclass(frozen=True)
class InputTables:
    """The tables as they were read, and the columns that matter, which all of them have.

    `known_labels` are those of an earlier run that this one extends: classes, even where no row has them.
    """

    train: Table
    eval: Table | None
    test: Table | None
    columns: Columns
    config: DataConfig
    soft: SoftLabels | None = None
    origins: Origins | None = None
    unlabelled: Table | None = None
    known_labels: tuple[str, ...] = ()

    def of_label_column(self, name: str) -> InputTables:
        """The tables with one of several label columns; rows where it is empty have no label there.

        --label-names, --unlabelled-value and --label-separator hold for the columns in which they occur.
        """
        cells = {cell for table in self.every if table.has_column(name) for cell in table.dictionary_encode(name)[0]}
        config, known = self.config, {normalize_text(cell) for cell in cells}
        pairs = [pair for pair in (config.label_names or "").split(",") if normalize_text(pair.split("=")[0]) in known]
        value, separator = config.unlabelled_value, config.label_separator
        is_value = value is not None and normalize_text(value) in known
        divides = separator is not None and (len(separator) > 1 or any(separator in cell for cell in cells))
        config = replace(
            config,
            label_column=name,
            drop_unlabelled=True,
            label_names=",".join(pairs) or None,
            unlabelled_value=value if is_value else None,
            label_separator=separator if divides else None,
            hierarchy="none" if config.hierarchy == "none" else "auto",
        )
        columns = replace(self.columns, labels=(name,), are_separate=False)
        return replace(self, columns=columns, config=config, known_labels=())

    @property
    def learned(self) -> list[Table]:
        return [table for table in (self.train, self.eval) if table is not None]

    @property
    def every(self) -> list[Table]:
        return self.learned if self.test is None else [*self.learned, self.test]


def read_tables(config: DataConfig, in_memory: Mapping[str, Table] | None = None) -> InputTables:
    """Read the tables and find the columns; those `in_memory`, by flag, are there already.

    Raises InputError with the faults of all tables, QuestionError with what the first leaves open.
    """
    tables = _read(config, in_memory or {})
    if config.teacher is not None and config.unlabelled_data is None:
        raise InputError(
            f"--teacher {config.teacher} labels the texts of --unlabelled-data; add that, or drop the flag."
        )
    table = tables["--data"]
    if not len(table):
        raise InputError(f"{table.path}: no row below the header. Expected one row per text.")
    config = replace(
        config,
        group_column=require_named_column(table, config.group_column, "--group-column"),
        split_by_time=require_named_column(table, config.split_by_time, "--split-by-time"),
        weight_column=require_named_column(table, config.weight_column, "--weight-column"),
        annotator_column=require_named_column(table, config.annotator_column, "--annotator-column"),
        source_column=require_named_column(table, config.source_column, "--source-column"),
    )
    soft, not_searched = read_soft_labels(table, config)
    origins = read_origins(table, config, soft)
    split = _find_split_column(config, table)
    # A column with another meaning is neither text nor label, unless a flag names it.
    others = {config.group_column, config.split_by_time, config.source_column, *not_searched}
    others.add(None if split is None else split.name)
    others -= {config.text_column, config.text_pair_column, config.label_column}
    columns, soft = _find_columns(table, config, others, soft)
    if soft is not None and soft.labels and len(columns.labels) == 1 and config.task != "multi":
        table = fill_labels(table, soft, None if soft.are_all else columns.label, config.unlabelled_value)
    if len(columns.labels) > 1 and config.task != "multi" and config.label_column is not None:
        columns = replace(columns, are_separate=not are_marks(table, columns.labels))
    findings = [*columns.findings, *([] if soft is None else soft.findings()), *note_columns(table, config)]
    columns = replace(columns, split=split, findings=tuple(findings))
    _check_splits(config, table, split, tables)
    more: dict[str, Table | None] = {}
    for flag in FLAGS[1:]:
        other = tables.get(flag)
        # The test table of a folder may have no labels, as in competitions.
        keeps = flag != "--test-data" or config.test_data is not None or config.predict_unlabelled
        if other is not None and (keeps or any(map(other.has_column, columns.labels))):
            more[flag] = _fit(other, columns, flag, config)
    train = _derive(table, columns)
    if config.annotator_column is not None:
        soft, finding = read_annotators(soft, train, columns.text, columns.label, config.annotator_column)
        columns = replace(columns, findings=(*columns.findings, finding))
    unlabelled = tables.get(_UNLABELLED)
    return InputTables(
        train, more.get("--eval-data"), more.get("--test-data"), columns, config, soft, origins,
        None if unlabelled is None else _derive(_name_texts(unlabelled, columns.texts), columns),
    )  # fmt: skip


def _find_columns(
    table: Table, config: DataConfig, others: set[str | None], soft: SoftLabels | None
) -> tuple[Columns, SoftLabels | None]:
    """The columns beside `others`; where none has labels, but there are probabilities, the most probable ones."""

    def find(searched: Table) -> Columns:
        names = [name for name in searched.columns if name not in others]
        return find_columns(
            searched if len(names) < 2 else searched.with_arrow(searched.arrow.select(names)),
            config.text_column,
            config.label_column,
            config.text_pair_column,
            config.text_column_delimiter,
            config.unlabelled_value,
        )

    if soft is None or not soft.labels or config.label_column is not None:
        return find(table), soft
    try:
        return find(table), soft
    except InputError:  # no column of labels, or several candidates
        soft = replace(soft, are_all=True)
        if config.task == "multi":
            raise InputError("--soft-labels --task multi: which column has the labels? Give --label-column.") from None
        soft.check_sums()
        return find(fill_labels(table, soft, None, None)), soft


def _read(config: DataConfig, in_memory: Mapping[str, Table]) -> dict[str, Table]:
    """Read all tables; the faults of all of them are raised together."""
    paths = dict(zip(FLAGS, (config.data, config.eval_data, config.test_data), strict=True))
    paths[_UNLABELLED] = config.unlabelled_data
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
    if name := require_named_column(table, config.split_column, "--split-column"):
        return require_splits(table, name)
    return find_split_column(table, (config.text_column, config.text_pair_column, config.label_column))


def _check_splits(config: DataConfig, table: Table, split: SplitColumn | None, tables: Mapping[str, Table]) -> None:
    """Raise InputError where the splits are defined in several ways, or a flag of a split by seed has no effect."""
    column = "--split-column" if config.split_column is not None or split is None else f"column {split.name!r}"
    ways = {
        column: split is not None,
        "--eval-data": "--eval-data" in tables,
        "--split-by-time": config.split_by_time is not None,
        "--test-data": split is not None and "--test-data" in tables,
    }
    by_seed = {"--split-like": config.split_like is not None, "--group-column": config.group_column is not None}
    given = [flag for flag, is_given in (ways | by_seed).items() if is_given]
    if len(given) > 1 and ways.get(given[0]):
        to_drop = "" if split is None else f", or give --split-column {NO_COLUMN}"
        raise InputError(
            f"{table.path}: {given[0]} defines the splits, so {given[1]} cannot decide anything; give one of them"
            f"{to_drop}."
        )


def _fit(table: Table, columns: Columns, flag: str, config: DataConfig) -> Table:
    """Another table with the first one's names of columns. Raises InputError with the columns that it lacks."""
    table = rename_alike(table, (*columns.texts.named, *columns.labels))
    wanted = dict.fromkeys(columns.texts.fields, "--text-column")
    wanted |= {} if columns.texts.pair is None else {columns.texts.pair: "--text-pair-column"}
    if not (flag == "--test-data" and config.predict_unlabelled):  # rows to predict need no label
        hint = ", or --predict-unlabelled if its rows are only to be predicted" if flag == "--test-data" else ""
        wanted |= dict.fromkeys(columns.labels, f"--label-column{hint}")
    require_columns(table, wanted)
    return _derive(table, columns)


def _name_texts(table: Table, texts: TextColumns) -> Table:
    """A table of texts, its columns named as in `--data`. Raises InputError where these are not there."""
    found = find_text_columns(table, texts, None, None)
    return table.with_arrow(table.arrow.select(found.named).rename_columns(texts.named))


def _derive(table: Table, columns: Columns) -> Table:
    table = columns.texts.derive(table)
    if columns.are_separate:
        return list_cells(table, columns.labels, columns.label)
    if len(columns.labels) > 1 and all(map(table.has_column, columns.labels)):
        table = join_labels(table, columns.labels, columns.label)
    return table
