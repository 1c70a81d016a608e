"""Predict a table a block at a time, or tables as they come."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from classify.data.languages import note_new_languages, sample_rows
from classify.data.tokenize import note_longer
from classify.files import remove_temporaries
from classify.modeling.coverage import note_unknown
from classify.prediction.predictor import Outputs, Predictor
from classify.tables.roles import TextColumns, note_empty_texts
from classify.tables.table import EMPTY, Table
from classify.tables.writers import Added, CSVStream, rename_columns, rows_of
from classify.tasks.columns import PredictionColumns, note_renamed

STANDARD_OUTPUT = "-"

Rows = npt.NDArray[np.int64]


def compute_outputs(predictor: Predictor, table: Table, texts: TextColumns, rows: Rows) -> Outputs:
    """Compute the outputs of `rows` (ascending) of a table, at least one. A collective."""
    return np.concatenate([*_compute_blocks(predictor, table, texts, rows)])


def _compute_blocks(predictor: Predictor, table: Table, texts: TextColumns, rows: Rows) -> Iterator[Outputs]:
    return predictor.blocks(len(rows), lambda a, b: (table.take(name, rows[a:b]) for name in texts.inputs))


def predict_table(
    predictor: Predictor, table: Table, texts: TextColumns, out: str, columns: PredictionColumns
) -> list[str]:
    """Write a table that `check_prediction` accepted with its predictions, in file order; return notes for the user.

    `out` is a file name, whose extension selects the format, or - for standard output. A collective; the main process
    writes. Raises InputError if the processes read different tables.
    """
    world, rows = predictor.world, np.arange(len(table))
    world.check_same({"data": " ".join(map(table.digest, texts.inputs))})
    blocks = _compute_blocks(predictor, table, texts, rows)
    if out == STANDARD_OUTPUT and world.is_main:
        _print_rows(columns, [(table, texts, blocks)])
    computed = list(blocks)
    if out != STANDARD_OUTPUT:
        with world.sync_errors():
            if world.is_main:
                path = Path(out).resolve()  # the file that a link points to
                remove_temporaries(path.parent, path.name)
                outputs = np.concatenate(computed) if computed else np.empty((0, 0), dtype=np.float32)
                columns.write(path, table, rows, outputs, has_text=table.text_hashes(texts.whole) != EMPTY)
    return describe_doubts(predictor, table, texts, columns.names)


def predict_lines(
    predictor: Predictor, columns: PredictionColumns, parts: Iterable[tuple[Table, TextColumns]]
) -> tuple[int, list[str]]:
    """Print the predictions of tables with equal columns as they come; return the number of rows, and notes on them."""
    count, notes = 0, dict[str, None]()

    def compute() -> Iterator[tuple[Table, TextColumns, Iterator[Outputs]]]:
        nonlocal count
        for table, texts in parts:
            yield table, texts, _compute_blocks(predictor, table, texts, np.arange(len(table)))
            count += len(table)
            found = (*table.findings, *note_empty_texts(table, texts))
            notes.update(dict.fromkeys(finding.sentence for finding in found))

    _print_rows(columns, compute())
    return count, list(notes) if count else ["there was no row"]


def _print_rows(columns: PredictionColumns, parts: Iterable[tuple[Table, TextColumns, Iterator[Outputs]]]) -> None:
    """Write tables with the columns of the first, and the blocks of their outputs, to standard output as CSV."""
    sys.stdout.flush()
    file = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="", write_through=True)
    stream: CSVStream | None = None
    try:
        for table, texts, blocks in parts:
            names = [*rename_columns(table, columns.names), *columns.names]
            stream = stream or CSVStream(file, names, for_excel=columns.for_excel)
            has_text, start = table.text_hashes(texts.whole) != EMPTY, 0
            for block in blocks:
                end = start + len(block)
                added = Added(columns.names, columns.cells(block, has_text[start:end]))
                stream.write(rows_of(table, np.arange(start, end), added))
                start = end
    finally:
        file.detach()  # the stream stays open


def describe_doubts(predictor: Predictor, table: Table, texts: TextColumns, added: Sequence[str]) -> list[str]:
    """List what may be wrong with a table, to which columns of these names are `added`."""
    notes = [finding.sentence for finding in (*table.findings, *note_empty_texts(table, texts))]
    if texts != predictor.texts:
        names, before = (", ".join(map(repr, columns.named)) for columns in (texts, predictor.texts))
        notes.append(f"texts are from column {names}; the model was trained on column {before}")
    if not len(table):
        return [*notes, f"{table.path} has no row"]
    if not table.has_names:
        notes.append(f"{table.path} has no header; its first row was predicted, too")
    sample = table.take(texts.whole, sample_rows(np.arange(len(table)), seed=0))
    tokens = predictor.tokenize(sample)
    more = (
        note_renamed(table, added),
        note_unknown(tokens, predictor.tokenizer),
        note_longer(tokens),
        note_new_languages(sample, predictor.settings.get("languages")),
    )
    return [*notes, *filter(None, more)]
