"""Predict a table a block at a time, or tables as they come."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from classify.console import progress_bar
from classify.data.languages import note_new_languages, sample_rows
from classify.data.tokenize import note_longer
from classify.evaluation.predictions_file import note_renamed, write_predictions
from classify.files import remove_temporaries
from classify.modeling.coverage import note_unknown
from classify.prediction.columns import PredictionColumns
from classify.prediction.predictor import Predictor
from classify.tables.roles import note_empty_texts
from classify.tables.table import Table
from classify.tables.text_hashes import EMPTY
from classify.tables.texts import TextColumns
from classify.tables.writers import Added, CSVStream, rename_columns, rows_of

STANDARD_OUTPUT = "-"
_BLOCK = 2048

Logits = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]


def predict_table(
    predictor: Predictor, table: Table, texts: TextColumns, out: str, columns: PredictionColumns
) -> list[str]:
    """Write a table that `check_prediction` accepted with its predictions, in file order; return notes for the user.

    `out` is a file name, whose extension selects the format, or - for standard output. A collective; the main process
    writes. Raises InputError if the processes read different tables.
    """
    world, rows = predictor.world, np.arange(len(table))
    world.check_same({"data": " ".join(map(table.digest, texts.inputs))})
    blocks = (logits for _, logits in logit_blocks(predictor, table, texts, rows))
    if out == STANDARD_OUTPUT and world.is_main:
        _print_rows(columns, [(table, texts, blocks)])
    computed = list(blocks)
    if out != STANDARD_OUTPUT:
        with world.sync_errors():
            if world.is_main:
                path = Path(out).resolve()  # what a link points to
                remove_temporaries(path.parent, path.name)
                cells = _added_cells(columns, table, texts, computed)
                write_predictions(path, table, rows, columns.names, cells, for_excel=columns.for_excel)
    return describe_doubts(predictor, table, texts, columns.names)


def predict_lines(
    predictor: Predictor, columns: PredictionColumns, parts: Iterable[tuple[Table, TextColumns]]
) -> tuple[int, list[str]]:
    """Print the predictions of tables with equal columns as they come; return the number of rows, and notes on them."""
    count, notes = 0, dict[str, None]()

    def compute() -> Iterator[tuple[Table, TextColumns, Iterator[Logits]]]:
        nonlocal count
        for table, texts in parts:
            yield table, texts, (logits for _, logits in logit_blocks(predictor, table, texts, np.arange(len(table))))
            count += len(table)
            found = (*table.findings, *note_empty_texts(table, texts))
            notes.update(dict.fromkeys(finding.sentence for finding in found))

    _print_rows(columns, compute())
    return count, list(notes) if count else ["there was no row"]


def _print_rows(columns: PredictionColumns, parts: Iterable[tuple[Table, TextColumns, Iterator[Logits]]]) -> None:
    """Write tables with the columns of the first, and the blocks of their outputs, to standard output as CSV."""
    sys.stdout.flush()
    file = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="", write_through=True)
    stream: CSVStream | None = None
    try:
        for table, texts, blocks in parts:
            names = [*rename_columns(table, columns.names), *columns.names]
            stream = stream or CSVStream(file, names, for_excel=columns.for_excel)
            row = 0
            for block in blocks:
                added = Added(columns.names, _added_cells(columns, table, texts, [block], row))
                stream.write(rows_of(table, np.arange(row, row + len(block)), added))
                row += len(block)
    finally:
        file.detach()  # the stream stays open


def _added_cells(
    columns: PredictionColumns, table: Table, texts: TextColumns, blocks: Iterable[Logits], row: int = 0
) -> Iterator[list[str]]:
    """Yield what is added to each row of a table, from `row` on, of which `blocks` are the outputs."""
    hashes = table.text_hashes(texts.whole)
    for block in blocks:
        yield from columns.cells(block, hashes[row : row + len(block)] != EMPTY)
        row += len(block)


def logit_blocks(predictor: Predictor, table: Table, texts: TextColumns, rows: Rows) -> Iterator[tuple[int, Logits]]:
    """Yield the outputs of `rows` (ascending), block by block, with the index that ends each.

    Progress is shown on the main process: a bar on a terminal, else a line every ten seconds at most. A collective.
    """
    # Standard output may take the rows themselves.
    with progress_bar(len(rows), 0, "row", enabled=predictor.world.is_main, lines=sys.stderr) as bar:
        for start in range(0, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK]
            first, *others = (table.take(name, block) for name in texts.inputs)
            yield start + len(block), predictor.compute_sharded(first, others[0] if others else None)
            bar.update(len(block))


def describe_doubts(predictor: Predictor, table: Table, texts: TextColumns, added: Sequence[str]) -> list[str]:
    """What may be wrong with the table."""
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
    return [*notes, *(note for note in more if note is not None)]
