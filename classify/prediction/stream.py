"""Predict a table a block at a time, in constant memory; an interrupted prediction can be resumed."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from classify.console import progress_bar
from classify.data.languages import note_new_languages, sample_rows
from classify.data.tokenize import note_longer
from classify.errors import DiskError, InputError, Interrupted
from classify.evaluation.predictions_file import name_columns, note_renamed, write_predictions, write_rows
from classify.files import remove_temporaries
from classify.launch.interrupts import stop_signals
from classify.modeling.coverage import note_unknown
from classify.modeling.result_folder import fingerprint
from classify.prediction.columns import PredictionColumns
from classify.prediction.inputs import partial_path
from classify.prediction.predictor import Predictor
from classify.tables.derived import TextColumns
from classify.tables.roles import note_empty_texts
from classify.tables.table import Table
from classify.tables.text_hashes import EMPTY
from classify.tables.writers import CSVWriter

STANDARD_OUTPUT = "-"
_BLOCK = 2048

Logits = npt.NDArray[np.float32]


class PartialLogits:
    """The logits so far, in a file beside the output: a line of JSON with `key`, then float32 rows.

    Raises InputError for a file with rows of an earlier prediction without `resume`, and for one of another `key`:
    other rows, another model or precision.
    """

    def __init__(self, path: Path, key: str, outputs: int, *, resume: bool):
        self.path, self.outputs = path, outputs
        self._header = json.dumps({"key": key, "outputs": outputs}).encode() + b"\n"
        self._file = path.open("a+b")
        try:
            self._lock()
            self.rows = self._read_header(resume)
        except BaseException:
            self._file.close()
            raise

    def append(self, logits: Logits) -> None:
        """Append rows (n, outputs). Raises DiskError where the disk refuses them; the rows before them stay."""
        try:
            self._file.write(np.ascontiguousarray(logits).tobytes())
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            kept = f"{self.rows:,} rows are kept in it; make room, and continue with --resume"
            raise DiskError(f"{self.path}: {error.strerror}; {kept}.") from error
        self.rows += len(logits)

    def __iter__(self) -> Iterator[Logits]:
        """Yield all rows, a block at a time."""
        with self.path.open("rb") as file:
            file.seek(len(self._header))
            while data := file.read(4 * self.outputs * _BLOCK):
                yield np.frombuffer(data, dtype=np.float32).reshape(-1, self.outputs)

    def close(self, *, remove: bool) -> None:
        """Close the file, and remove it where it is no longer needed."""
        if remove:
            self.path.unlink(missing_ok=True)
        self._file.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{self.path}: another prediction is writing it; give another --out, or wait.") from None
        except OSError:  # a disk without locks
            pass

    def _read_header(self, resume: bool) -> int:
        """Return the number of rows in the file; a file without any gets this prediction's header."""
        self._file.seek(0)
        header, size = self._file.readline(), self._file.seek(0, os.SEEK_END)
        if not size or (size == len(header) and header.startswith(b'{"key": ')):
            self._file.truncate(0)
            self._file.write(self._header)
            self._file.flush()
            return 0
        if header != self._header:
            raise InputError(
                f"{self.path}: holds an interrupted prediction of other rows, or by another model or precision; delete "
                "it, or give another --out."
            )
        if not resume:
            raise InputError(
                f"{self.path}: holds an interrupted prediction of this table; continue it with --resume, or delete it."
            )
        rows = (size - len(header)) // (4 * self.outputs)
        # Where the power failed, the end of what was written last may be zeros, which no logit is exactly.
        first = max(0, rows - _BLOCK)
        self._file.seek(len(header) + 4 * self.outputs * first)
        last = np.frombuffer(self._file.read(4 * self.outputs * (rows - first)), dtype=np.float32)
        lost = np.flatnonzero((last.reshape(-1, self.outputs) == 0).any(axis=1))
        rows = first + int(lost[0]) if len(lost) else rows
        self._file.truncate(len(header) + 4 * self.outputs * rows)
        return rows


class _StandardOutput:
    """Writes CSV in UTF-8 to standard output, block by block."""

    def __init__(self, table: Table, texts: TextColumns, columns: PredictionColumns):
        self._table, self._texts, self._columns, self._row = table, texts, columns, 0
        sys.stdout.flush()
        self._file = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="", write_through=True)
        names = name_columns(table, columns.names)
        writer = CSVWriter(names, for_excel=columns.for_excel)
        self._writer = writer.write_to(self._file)

    def append(self, logits: Logits) -> None:
        rows = np.arange(self._row, self._row + len(logits))
        cells = _added_cells(self._columns, self._table, self._texts, [logits], self._row)
        write_rows(self._writer, self._table, rows, cells)
        self._row += len(logits)

    def continue_with(self, table: Table, texts: TextColumns) -> None:
        """Take the rows that follow from another table, with the columns of the first."""
        self._table, self._texts, self._row = table, texts, 0

    def finish(self) -> None:
        self._file.detach()  # the stream stays open


def _added_cells(
    columns: PredictionColumns, table: Table, texts: TextColumns, blocks: Iterable[Logits], row: int = 0
) -> Iterator[list[str]]:
    """Yield what is added to each row of a table, from `row` on, of which `blocks` are the outputs."""
    hashes = table.text_hashes(texts.whole)
    for block in blocks:
        yield from columns.cells(block, hashes[row : row + len(block)] != EMPTY)
        row += len(block)


# Where the logits of each block go; a file is written from them at the end.
_Sink = _StandardOutput | PartialLogits | list[Logits]


def predict_table(
    predictor: Predictor,
    table: Table,
    texts: TextColumns,
    out: str,
    columns: PredictionColumns,
    *,
    resume: bool = False,
) -> list[str]:
    """Write a table that `check_prediction` accepted with its predictions, in file order; return notes for the user.

    `out` is a file name, whose extension selects the format, or - for standard output. With `resume` the rows that an
    interrupted call has predicted are not computed again. A collective; the main process writes.

    Raises InputError if the processes read different tables, or `out` has an unfinished prediction that cannot be
    resumed, and Interrupted where any process received a signal.
    """
    world = predictor.world
    digests = " ".join(map(table.digest, texts.inputs))
    world.check_same({"data": digests})
    partial: PartialLogits | None = None
    sink: _Sink | None = None
    path = Path(out).resolve()  # what a link points to
    keeps = out != STANDARD_OUTPUT and len(table) > _BLOCK
    with world.sync_errors():
        if world.is_main and keeps:
            identity = f"{fingerprint(predictor.folder)} {predictor.precision} {digests}"
            key = hashlib.sha256(identity.encode()).hexdigest()
            partial = PartialLogits(partial_path(path), key, predictor.num_outputs, resume=resume)
            remove_temporaries(path.parent, path.name)
        if world.is_main and out == STANDARD_OUTPUT:
            sink = _StandardOutput(table, texts, columns)
        elif world.is_main:
            sink = [] if partial is None else partial
    done = int(world.broadcast(0 if partial is None else partial.rows))
    try:
        _compute(predictor, table, texts, sink, partial_path(path) if keeps else None, done=done)
        with world.sync_errors():
            if isinstance(sink, _StandardOutput):
                sink.finish()
            elif sink is not None:
                cells, rows = _added_cells(columns, table, texts, sink), np.arange(len(table))
                write_predictions(path, table, rows, columns.names, cells, for_excel=columns.for_excel)
    except BaseException:
        if partial is not None:
            partial.close(remove=partial.rows == 0)
        raise
    if partial is not None:
        partial.close(remove=True)
    notes = [f"{done:,} rows were predicted by the interrupted command"] if done else []
    if resume and not done:
        notes.append("there was no interrupted prediction to resume")
    return [*notes, *describe_doubts(predictor, table, texts, columns.names)]


def predict_batches(
    predictor: Predictor, batches: Iterator[tuple[Table, TextColumns]], columns: PredictionColumns
) -> tuple[int, list[str]]:
    """Print the predictions of tables with equal columns as they come; return the number of rows, and notes."""
    sink, rows, notes = None, 0, list[str]()
    for table, texts in batches:
        if sink is None:
            sink = _StandardOutput(table, texts, columns)
        else:
            sink.continue_with(table, texts)
        _compute(predictor, table, texts, sink, None, done=0)
        rows += len(table)
        notes += describe_doubts(predictor, table, texts, columns.names) if len(table) else []
    assert sink is not None, "no batch, not even an empty one"
    sink.finish()
    return rows, list(dict.fromkeys(notes)) if rows else ["there was no row"]


def logit_blocks(
    predictor: Predictor, table: Table, texts: TextColumns, rows: npt.NDArray[np.int64], *, done: int = 0
) -> Iterator[tuple[int, Logits]]:
    """Yield the outputs of `rows` (ascending) from index `done` on, block by block, with the index that ends each.

    Progress is shown on the main process: a bar on a terminal, else a line every ten seconds at most. A collective.
    """
    # Standard output may take the rows themselves.
    with progress_bar(len(rows), done, "row", enabled=predictor.world.is_main, lines=sys.stderr) as bar:
        for start in range(done, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK]
            first, *others = (table.take(name, block) for name in texts.inputs)
            yield start + len(block), predictor.compute_sharded(first, others[0] if others else None)
            bar.update(len(block))


def _compute(
    predictor: Predictor, table: Table, texts: TextColumns, sink: _Sink | None, kept_in: Path | None, *, done: int
) -> None:
    """Compute the logits of the rows from `done` on, into the main process's `sink`.

    A signal stops it after the block where the rows are `kept_in` a file; otherwise at once.
    """
    world = predictor.world
    signals: AbstractContextManager[list[int]] = stop_signals() if kept_in else contextlib.nullcontext([])
    with signals as received:
        for end, logits in logit_blocks(predictor, table, texts, np.arange(len(table)), done=done):
            if sink is not None:
                sink.append(logits)
            if number := world.all_reduce_max(received[0] if received else 0):
                raise Interrupted(
                    f"stopped by {signal.Signals(number).name}; {end:,} of {len(table):,} rows are kept in {kept_in}; "
                    "continue with --resume",
                    number,
                )


def describe_doubts(predictor: Predictor, table: Table, texts: TextColumns, added: Sequence[str]) -> list[str]:
    """Return what may be wrong with the table."""
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
