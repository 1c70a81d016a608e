"""Choose the texts whose labels would teach a model most: the ones it is least certain of, near-copies once.

Uncertainty sampling by the margin (Settles, 2009, "Active Learning Literature Survey", section 3.1). Beside it BADGE,
k-center and other mixtures with distance were measured; docs/loop.md has the figures.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow

from classify import tasks
from classify.data.split_record import SplitRecord
from classify.errors import InputError
from classify.evaluation.scored_rows import ScoredRows
from classify.prediction.predictor import Outputs, Predictor
from classify.tables.roles import TextColumns
from classify.tables.table import EMPTY, Table, group_duplicates, normalize_text
from classify.tasks.columns import PredictionColumns

# The column that says why a row was chosen, and its values. Only rows at random give an honest score.
CHOSEN = "chosen"
UNCERTAIN = "uncertain"
RANDOM = "random"
_SEED = 0
# Share of common words from which of two texts only one is suggested.
_ALIKE = 0.8

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Suggestions:
    """Rows of a table, the least certain first, of the `candidates`, with their logits (rows, outputs).

    `left_out` counts the other rows by reason. The last `random` rows were drawn at random.
    """

    rows: Rows
    logits: Outputs
    candidates: int
    left_out: dict[str, int]
    random: int = 0


def suggest(
    predictor: Predictor, table: Table, texts: TextColumns, count: int, random: int = 0, outputs: Outputs | None = None
) -> Suggestions:
    """Choose up to `count` rows to label, and up to `random` others at random. A collective.

    `outputs` (rows, ...) are those of all rows of the table, where they are known. Raises InputError where there is
    nothing to choose: no unlabelled row, or a model of scores, which do not say how certain they are.
    """
    if not predictor.task.answers.has_labels:
        raise InputError("classify suggest: the model predicts scores, which do not say how certain they are.")
    candidates, left_out = find_candidates(predictor, table, texts)
    same = {"data": " ".join(map(table.digest, texts.inputs)), "rows to label": candidates.tobytes().hex()}
    predictor.world.check_same(same)
    if not len(candidates):
        reasons = ", ".join(f"{number} {reason}" for reason, number in left_out.items())
        raise InputError(f"{table.path}: no row is left to label{f' ({reasons})' if reasons else ''}.")
    outputs = predictor.table_outputs(table, texts, candidates) if outputs is None else outputs[candidates]
    (logits, _), rejected = predictor.task.split(outputs), predictor.task.rejects(outputs)
    certainty = predictor.task.answers.certainty(predictor.task.answers.probabilities(logits))
    # First, from all candidates: without the least certain ones they would be too easy.
    drawn = np.random.default_rng(_SEED).permutation(len(candidates))[:random]
    order = np.argsort(certainty, kind="stable")
    order = order[~rejected[order] & ~np.isin(order, drawn)]
    if rejected.any():
        left_out["out of scope"] = int(rejected.sum())
    chosen = drop_near_copies(order, count, lambda place: table.take(texts.whole, candidates[[place]])[0])
    chosen = np.concatenate([chosen, drawn])
    return Suggestions(candidates[chosen], logits[chosen], len(candidates), left_out, len(drawn))


def find_candidates(predictor: Predictor, table: Table, texts: TextColumns) -> tuple[Rows, dict[str, int]]:
    """The rows that could be labelled, ascending, and how many others there are by reason."""
    hashes, task = table.text_hashes(texts.whole), predictor.task
    labelled = np.zeros(len(table), dtype=bool)
    for name in filter(table.has_column, predictor.label_columns):
        has_label = ~table.is_blank(name)
        if len(predictor.label_columns) == 1:  # NA and the like are no label
            has_label &= task.targets.labelled(table, name)
        labelled |= np.isin(hashes, hashes[has_label])  # with its copies
    of_run = SplitRecord.find(predictor.folder).find_parts(hashes) >= 0
    with contextlib.suppress(OSError, ValueError):  # an exported model has no such file
        # With folds, the scored rows of a test table are in no split.
        of_run |= np.isin(hashes, ScoredRows.read(Path(predictor.folder)).hashes)
    repeated = np.ones(len(table), dtype=bool)
    repeated[group_duplicates(hashes)[0]] = False
    left, left_out = np.ones(len(table), dtype=bool), {}
    reasons = {
        "without a text": hashes == EMPTY,
        "with a label": labelled,
        "in a table of the run": of_run,
        "repeated": repeated,
    }
    for reason, rows in reasons.items():
        if number := int((left & rows).sum()):
            left_out[reason] = number
        left &= ~rows
    return np.flatnonzero(left), left_out


def drop_near_copies(order: Rows, count: int, text: Callable[[int], str]) -> Rows:
    """The first `count` of `order`, but for those that share most words with an earlier one."""
    chosen, word_sets = list[int](), list[set[str]]()
    for place in order.tolist():
        if len(chosen) == count:
            break
        words = _list_words(text(place))
        if all(len(words & other) < _ALIKE * len(words | other) for other in word_sets):
            chosen.append(place)
            word_sets.append(words)
    return np.array(chosen, dtype=np.int64)


def _list_words(text: str) -> set[str]:
    plain = normalize_text(text)
    return set(map("".join, itertools.pairwise(plain))) if tasks.baseline.lack_spaces([plain]) else set(plain.split())


def write_suggestions(path: Path, predictor: Predictor, table: Table, suggestions: Suggestions) -> None:
    """Write the rows, the least certain first, with all columns of the table, its labels' and the prediction's.

    The file is made for a spreadsheet, so CSV has no formulas.
    """
    count, is_chosen = len(suggestions.rows), np.zeros(len(table), dtype=bool)
    is_chosen[suggestions.rows] = True
    arrow = table.arrow.select(table.columns).filter(pyarrow.array(is_chosen))
    arrow = arrow.take(np.argsort(np.argsort(suggestions.rows)))  # of all rows Arrow could not take 2 GiB of texts
    for name in predictor.label_columns:
        if name not in table.columns:
            arrow = arrow.append_column(name, pyarrow.array([""] * count))
    if suggestions.random:
        reasons = [UNCERTAIN] * (count - suggestions.random) + [RANDOM] * suggestions.random
        arrow = arrow.append_column(CHOSEN, pyarrow.array(reasons))
    chosen = replace(table, arrow=arrow, original=None, derived=frozenset())
    task = replace(predictor.task, scope=None)  # rejected rows are not suggested
    PredictionColumns(task, top_k=0, for_excel=True).write(path, chosen, np.arange(count), suggestions.logits)
