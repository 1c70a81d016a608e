"""Explain a prediction by occlusion: the words of the text are left out one by one (Zeiler and Fergus, 2014, 4.1).

explanations.json has the words that led to the worst predictions of a run, for its report.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from classify import prediction
from classify.evaluation.scored_rows import ScoredRows, confident_errors, worst_rows
from classify.files import read_json, write_json
from classify.tasks.base import Task
from classify.tasks.columns import read_predictions

FILE = "explanations.json"
# Texts of a run that are explained.
TEXTS = 12
# Characters of these together from which no other is added: long texts would take longer than a short training.
_CHARACTERS = 8_000
# Words of each text that are kept.
_WORDS = 6
# Parts of a text up to which each is left out; a longer one is divided into its sentences.
_MOST = 200
# Scripts without spaces between words, whose characters are left out one by one.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")
_SENTENCE = re.compile(r"[^\s.!?。！？][^.!?。！？\n]*[.!?。！？]*")


@dataclass(frozen=True)
class WordAttribution:
    """A word, or a sentence of a long text, and by how much it raises the logit: what it falls by without it."""

    word: str
    score: float


def explain(
    texts: Sequence[str], compute: Callable[[list[Sequence[str]]], npt.NDArray[np.float32]]
) -> list[WordAttribution]:
    """Attribute a logit to the words of a text, or of the two texts of a pair, in order.

    `compute` returns the logits (rows,) of texts, or pairs: first of the whole, then with each part left out.
    """
    parts = [(which, match.span()) for which, text in enumerate(texts) for match in _WORD.finditer(text)]
    if len(parts) > _MOST:
        parts = [(which, span) for which, text in enumerate(texts) for span in _group_sentences(text)]
    if not parts:
        return []
    rows: list[Sequence[str]] = [texts]
    for which, (start, end) in parts:
        rows.append([text[:start] + text[end:] if which == place else text for place, text in enumerate(texts)])
    logits = compute(rows)
    words = (texts[which][start:end].strip() for which, (start, end) in parts)
    return [WordAttribution(word, score) for word, score in zip(words, (logits[0] - logits[1:]).tolist(), strict=True)]


def _group_sentences(text: str) -> list[tuple[int, int]]:
    spans = [match.span() for match in _SENTENCE.finditer(text)]
    size = math.ceil(len(spans) / _MOST)
    return [(spans[first][0], spans[min(first + size, len(spans)) - 1][1]) for first in range(0, len(spans), size or 1)]


def strongest(words: Sequence[WordAttribution], most: int) -> list[WordAttribution]:
    return sorted(words, key=lambda word: -abs(word.score))[:most]


def write_explanations(folder: Path, *, use_cpu: bool = False) -> None:
    """Write explanations.json into a result folder, in this process alone: the others of the run have ended.

    Rows that were scored by the models of folds are not explained: the final model, which is saved, was trained on
    them.
    """
    (folder / FILE).unlink(missing_ok=True)  # of an earlier run in this folder
    metrics = read_json(folder / "metrics.json")
    if (metrics["test"] or metrics["eval"]).get("method"):
        return
    # Words are ranked alike in half precision, in half the time.
    with prediction.pytorch.load(str(folder), use_cpu=use_cpu, precision="fastest", launch=None) as predictor:
        scored, table, task = ScoredRows.read(folder), predictor.texts.derive(read_predictions(folder)), predictor.task
        unseen = scored.unseen  # the report shows no others
        scored, read = scored.take(unseen), 4 * predictor.settings["max_length"]  # about as many characters are read

        def explain_worst(worst: list[tuple[int, int]], rows: npt.NDArray[np.int64], most: int, first: int) -> Any:
            """Explain outputs, counted from the `first`, of `rows` (n,) until their texts have `most` characters."""
            found, characters = {}, 0
            for place, output in worst:
                if characters > most:
                    break
                inputs = [table.take(name, rows[[place]])[0] for name in predictor.texts.inputs]
                characters += min(read, sum(map(len, inputs)))
                text: Any = inputs[0] if len(inputs) == 1 else tuple(inputs)
                label = predictor.labels[first + output]
                ranked = strongest(predictor.explain(text, label), _WORDS)
                words = [[word.word, round(word.score, 3)] for word in ranked]
                found[str(rows[place])] = {"output": label, "words": words}
            return found

        explanations = {
            one.name: explain_worst(
                _worst_outputs(one.task, one.take(scored)),
                unseen[one.rows(scored.targets)],
                _CHARACTERS // len(task.columns),
                one.outputs.start,
            )
            for one in task.columns
        } or explain_worst(_worst_outputs(task, scored), unseen, _CHARACTERS, 0)
    write_json(folder / FILE, explanations)


def _worst_outputs(task: Task, rows: ScoredRows) -> list[tuple[int, int]]:
    """The worst rows, the first ones worst, and the output to explain of each.

    It is the predicted class, or, where a row has no single one, the output that is furthest off.
    """
    probabilities = task.answers.probabilities(rows.logits)
    if task.answers.has_confidence:
        selected = confident_errors(probabilities, rows.targets, TEXTS)
        outputs = probabilities[selected].argmax(axis=1)
    else:
        selected = worst_rows(task.scores.row_scores(task.answers.decide(probabilities), rows.targets), TEXTS)
        outputs = np.abs(probabilities - rows.targets.reshape(probabilities.shape))[selected].argmax(axis=1)
    return list(zip(selected.tolist(), outputs.tolist(), strict=True))


def read_explanations(folder: Path, column: str | None = None) -> dict[int, dict[str, Any]]:
    """Read the `output` and the `words` with their scores of each explained row; {} without the file.

    Of several label columns there are those of each.
    """
    try:
        content = read_json(folder / FILE)
    except FileNotFoundError:
        return {}
    content = content if column is None else content.get(column, {})
    return {int(row): explanation for row, explanation in content.items()}
