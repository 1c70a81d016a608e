"""Predict a table a block at a time, in constant memory; an interrupted prediction can be resumed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from classify.data.columns import empty_texts
from classify.data.coverage import note_unknown
from classify.data.derived import TextColumns
from classify.data.files import atomic_path
from classify.data.languages import note_new_languages, sample_rows
from classify.data.table import Table
from classify.data.table_writers import CSVWriter, find_writer
from classify.data.tokenize import tokenize
from classify.errors import Interrupted
from classify.evaluation.predictions_file import FOR_EXCEL, number_columns, write_rows
from classify.launch.interrupts import stop_signals
from classify.modeling.result_folder import fingerprint
from classify.prediction.columns import PredictionColumns
from classify.prediction.predict import Predictor
from classify.progress import progress_bar

STANDARD_OUTPUT = "-"
_BLOCK = 8192
_REPORT_SECONDS = 10.0


class PartialLogits:
    """The logits so far, in a file beside the output: a line of JSON with `key`, then float32 rows.

    Only the main process has one. A file of another key, i.e. of other rows or another model, is not resumed.
    """

    def __init__(self, path: Path, key: str, outputs: int, *, resume: bool):
        self.path, self.outputs = path, outputs
        self._header = json.dumps({"key": key, "outputs": outputs}).encode() + b"\n"
        if not resume or not self._fits():
            path.write_bytes(self._header)
        self.rows = self._complete_rows()
        self._file = path.open("r+b")
        self._file.truncate(len(self._header) + 4 * outputs * self.rows)
        self._file.seek(0, 2)

    def append(self, logits: npt.NDArray[np.float32]) -> None:
        """Append rows (n, outputs)."""
        self._file.write(np.ascontiguousarray(logits).tobytes())
        self._file.flush()
        self.rows += len(logits)

    def blocks(self) -> Iterator[npt.NDArray[np.float32]]:
        """Yield all rows, a block at a time."""
        with self.path.open("rb") as file:
            file.seek(len(self._header))
            while data := file.read(4 * self.outputs * _BLOCK):
                yield np.frombuffer(data, dtype=np.float32).reshape(-1, self.outputs)

    def close(self, *, remove: bool) -> None:
        """Close the file, and remove it where it is no longer needed."""
        self._file.close()
        if remove:
            self.path.unlink(missing_ok=True)

    def _fits(self) -> bool:
        try:
            with self.path.open("rb") as file:
                return file.read(len(self._header)) == self._header
        except FileNotFoundError:
            return False

    def _complete_rows(self) -> int:
        return (self.path.stat().st_size - len(self._header)) // (4 * self.outputs)


def predict_table(
    predictor: Predictor,
    table: Table,
    texts: TextColumns,
    out: str,
    columns: PredictionColumns,
    *,
    resume: bool = False,
    quiet: bool = False,
) -> list[str]:
    """Write a table that `check_prediction` accepted with its predictions, in file order; return notes for the user.

    `out` is a file name, whose ending selects the format, or - for standard output. With `resume` the rows that an
    interrupted call has predicted are not computed again. A collective; the main process writes.

    Raises InputError if the processes read different tables, and Interrupted where any received a signal.
    """
    world = predictor.world
    digests = " ".join(map(table.digest, texts.inputs))
    world.check_same({"data": digests})
    partial, done = None, 0
    path = Path(out).resolve()  # what a link points to
    if world.is_main and out != STANDARD_OUTPUT and len(table) > _BLOCK:
        identity = f"{fingerprint(predictor.folder)} {predictor.classifier.precision.name} {digests}"
        key = hashlib.sha256(identity.encode()).hexdigest()
        partial = PartialLogits(partial_path(path), key, predictor.num_outputs, resume=resume)
        done = partial.rows
    done = int(world.broadcast(done))
    kept: list[npt.NDArray[np.float32]] = []
    try:
        _compute(predictor, table, texts, kept, partial, out, done=done, quiet=quiet)
        if world.is_main:
            blocks = iter(kept) if partial is None else partial.blocks()
            _write(out, path, table, columns, (predictor.probabilities_of(block) for block in blocks))
    except BaseException:
        if partial is not None:
            partial.close(remove=partial.rows == 0)
        raise
    if partial is not None:
        partial.close(remove=True)
    world.barrier()
    return [*([f"{done:,} rows were predicted before"] if done else []), *_notes(predictor, table, texts)]


def partial_path(out: Path) -> Path:
    """Return the file beside an output in which an interrupted prediction is kept."""
    return out.with_name(f"{out.name}.partial")


def logit_blocks(
    predictor: Predictor,
    table: Table,
    texts: TextColumns,
    rows: npt.NDArray[np.int64],
    *,
    done: int = 0,
    quiet: bool = False,
) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
    """Yield the logits of `rows` (ascending) from index `done` on, block by block, with the index that ends each.

    Progress is shown on the main process: a bar on a terminal, else a line every ten seconds at most. A collective.
    """
    quiet = quiet or not predictor.world.is_main
    begin = reported = time.monotonic()
    with progress_bar(len(rows), done, "row", enabled=not quiet) as bar:
        for start in range(done, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK]
            first, *others = (table.take(name, block) for name in texts.inputs)
            # A rank without a row could not verify packing; a few rows are not worth dividing.
            compute = predictor.compute_divided if len(block) >= predictor.world.world_size else predictor.compute_all
            yield start + len(block), compute(first, others[0] if others else None)
            bar.update(len(block))
            if bar.disable and not quiet and time.monotonic() - reported > _REPORT_SECONDS:
                reported, end = time.monotonic(), start + len(block)
                rate = (end - done) / (reported - begin)
                left = (len(rows) - end) / rate
                print(f"{end:,} of {len(rows):,} rows, {rate:.0f} rows/s, {left:.0f} s left", file=sys.stderr)


def _compute(
    predictor: Predictor,
    table: Table,
    texts: TextColumns,
    kept: list[npt.NDArray[np.float32]],
    partial: PartialLogits | None,
    out: str,
    *,
    done: int,
    quiet: bool,
) -> None:
    """Compute the logits of the rows from `done` on, into `partial`, or `kept` where there is none.

    A signal stops it after the block, where that is kept; otherwise at once.
    """
    world = predictor.world
    keeps = out != STANDARD_OUTPUT and len(table) > _BLOCK
    signals: AbstractContextManager[list[int]] = stop_signals() if keeps else contextlib.nullcontext([])
    with signals as received:
        for end, logits in logit_blocks(predictor, table, texts, np.arange(len(table)), done=done, quiet=quiet):
            if partial is not None:
                partial.append(logits)
            elif world.is_main:
                kept.append(logits)
            if world.all_reduce_any(bool(received)):
                number = int(world.broadcast(received[0] if received else int(signal.SIGTERM)))
                raise Interrupted(
                    f"stopped by {signal.Signals(number).name}; {end:,} of {len(table):,} rows are kept in "
                    f"{partial_path(Path(out))}; continue with --resume",
                    number,
                )


def _write(
    out: str, path: Path, table: Table, columns: PredictionColumns, blocks: Iterator[npt.NDArray[np.float64]]
) -> None:
    """Write the table and its predictions."""
    for_excel = columns.digits == FOR_EXCEL
    names, numbers = [*table.columns, *columns.names], number_columns(columns.names)
    fields = (row for probabilities in blocks for row in columns.fields(probabilities))
    if out == STANDARD_OUTPUT:
        write_rows(CSVWriter(names, numbers).write_to(sys.stdout), table, np.arange(len(table)), fields)
        sys.stdout.flush()
        return
    writer = find_writer(path.name, "--out")(names, numbers, for_excel=for_excel)
    with atomic_path(path) as temporary, writer.open(temporary):
        write_rows(writer, table, np.arange(len(table)), fields)


def _notes(predictor: Predictor, table: Table, texts: TextColumns) -> list[str]:
    """Return what may be wrong with the table."""
    notes = [f"{table.path} {note}" for note in table.notes]
    if texts != predictor.texts:
        names, before = (", ".join(map(repr, one.named)) for one in (texts, predictor.texts))
        notes.append(f"texts are from column {names}; the model was trained on column {before}")
    if not table.has_names:
        notes.append(f"{table.path} has no header; its first row was predicted, too")
    sample = table.take(texts.whole, sample_rows(np.arange(len(table)), seed=0))
    more = (
        empty_texts(table, texts.whole),
        note_unknown(tokenize(predictor.tokenizer, sample, predictor.settings["max_length"]), predictor.tokenizer),
        note_new_languages(sample, predictor.settings.get("languages")),
    )
    return [*notes, *(note for note in more if note is not None)]
