"""Validate the inputs of a prediction before torch is imported and anything is written.

The held-out rows of a run say what a required precision, or coverage, needs.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from classify.errors import InputError
from classify.evaluation.scored_rows import FILE, ScoredRows, Threshold, find_limit
from classify.files import why_not_writable
from classify.findings import decided
from classify.modeling.result_folder import trained_texts
from classify.tables import writers
from classify.tables.read import read_table
from classify.tables.roles import TextColumns, find_text_columns
from classify.tables.source import ReadOptions
from classify.tables.table import Table
from classify.tasks.base import Task


def read_texts(
    data: str | Table,
    settings: dict[str, Any],
    text_column: str | None = None,
    pair_column: str | None = None,
    options: ReadOptions = ReadOptions(),  # noqa: B008
) -> tuple[Table, TextColumns]:
    """Read a table with the text columns that a model was trained on, or those named. Raises InputError.

    Flags of the training that say how tables are read apply here, too; what a file leaves open is read as there.
    """
    trained = trained_texts(settings)
    if not isinstance(data, Table):
        data = read_table(data, options=options.after(settings.get("reading", {}), trained.named))
    texts = find_text_columns(data, trained, text_column, pair_column)
    return texts.derive(data), texts


def describe_table(table: Table, texts: TextColumns) -> str:
    named = "+".join(map(repr, texts.named))
    return decided("table", f"{table.path}, {len(table):,} rows, texts in {named}", table.form, table.flag).line()


def check_out(out: str, inputs: Sequence[str], rows: int, columns: int, *, overwrite: bool) -> None:
    """Check that a table of that size can be written to `out`, which is none of the inputs. Raises InputError."""
    writers.find_writer(out)
    writers.check_size(out, rows, columns)
    path = Path(out)
    for data in inputs:
        if path.exists() and Path(data).exists() and path.samefile(data):
            raise InputError(f"--out {out}: this is {data}, an input; give another file name.")
        if Path(data).is_dir() and path.resolve().is_relative_to(Path(data).resolve()):
            raise InputError(f"--out {out}: it lies in {data}, an input; give a file in another folder.")
    if path.is_file() and not overwrite:
        raise InputError(f"--out {out}: the file exists; give another name, or --overwrite to replace it.")
    if path.exists() and not path.is_file():
        got = "folder" if path.is_dir() else "device or a pipe"
        raise InputError(f"--out {out}: expected a file name. Got a {got} instead.")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise InputError(f"--out {out}: the folder {path.parent} does not exist; create it first.")
    if (reason := why_not_writable(folder)) is not None:
        raise InputError(
            f"--out {out}: the folder {path.parent} is not writable ({reason}); give a file in another folder."
        )


def find_confidence(folder: str, task: Task, precision: float) -> dict[str, Threshold]:
    """Find the confidence at which a run's held-out predictions reach a precision, by label column ("" for the one).

    Raises InputError if none does.
    """
    parts = _read_rows(folder, task, "--min-precision")
    having = {name: part for name, part in parts.items() if part[0].answers.has_confidence}
    if not having:
        raise InputError("--min-precision: predictions of this model have no single confidence; drop the flag.")
    return {name: _find_confidence(folder, *part, precision, name) for name, part in having.items()}


def _find_confidence(folder: str, task: Task, rows: ScoredRows, precision: float, column: str) -> Threshold:
    probabilities = task.answers.probabilities(rows.logits)
    threshold = task.answers.find_threshold(probabilities, rows.targets, precision)
    if threshold is not None:
        return threshold
    shares = (least / 100 for least in range(99, 0, -1))
    candidates = (task.answers.find_threshold(probabilities, rows.targets, share) for share in shares)
    best = next(filter(None, candidates), None)
    reached = "none" if best is None else f"{best.precision:g} for {100 * best.accepted / best.rows:.0f} % of the rows"
    of_column = f" of column {column!r}" if column else ""
    raise InputError(
        f"--min-precision {precision:g}: {len(probabilities)} held-out rows of {folder} do not show it for any "
        f"confidence{of_column} (a lower bound that holds in 95 of 100 cases). The highest is {reached}; give that, "
        f"--min-confidence, or score more rows: classify train --like {shlex.quote(folder)} --folds 5."
    )


def find_set_limits(folder: str, task: Task, coverage: float) -> dict[str, tuple[float, int]]:
    """Find the limit of sets that hold the right answer in a share `coverage` of rows; count the rows that show it.

    There is one for each label column that has sets ("" for the one). Raises InputError where the task has no sets, or
    there are too few rows.
    """
    parts = _read_rows(folder, task, "--coverage")
    having = {name: part for name, part in parts.items() if part[0].answers.set_columns}
    if not having:
        raise InputError("--coverage: the model predicts several labels a row, which are a set already; drop the flag.")
    limits = {}
    for name, (part, scored) in having.items():
        misfit = part.answers.misfit(part.answers.probabilities(scored.logits), scored.targets)
        count, limit = len(misfit), find_limit(misfit, coverage)
        if limit is None:
            most = math.floor(1e4 * count / (count + 1)) / 1e4
            of_column = f" of column {name!r}" if name else ""
            raise InputError(
                f"--coverage {coverage:g}: {count} held-out rows of {folder} show at most {most}{of_column}; give that "
                "or less."
            )
        limits[name] = limit, count
    return limits


def _read_rows(folder: str, task: Task, flag: str) -> dict[str, tuple[Task, ScoredRows]]:
    """The held-out rows of a run, one of each text, that it was not trained on, by label column ("" for the one).

    Raises InputError.
    """
    try:
        rows = ScoredRows.read(Path(folder))
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{flag}: {folder}/{FILE} cannot be read ({error}); drop the flag.") from None
    # The first row of a text may lack a column.
    parts = {column.name: (column.task, column.take(rows)) for column in task.columns} or {"": (task, rows)}
    return {name: (part, of_part.take(of_part.independent)) for name, (part, of_part) in parts.items()}
