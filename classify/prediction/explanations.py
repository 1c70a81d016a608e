"""explanations.json: the words that led to the worst predictions of a run, for its report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from classify import prediction
from classify.evaluation.scored_rows import ScoredRows, confident_errors, worst_rows
from classify.files import read_json, write_json
from classify.prediction.occlusion import strongest
from classify.tasks.base import Task
from classify.tasks.columns import read_predictions

FILE = "explanations.json"
# Texts that are explained.
TEXTS = 12
# Characters of these together from which no other is added: long texts would take longer than a short training.
_CHARACTERS = 8_000
# Words of each text that are kept.
_WORDS = 6


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
        if not predictor.tokenizer.is_fast:
            return
        texts, scored = predictor.texts, ScoredRows.read(folder)
        shown = scored.unseen  # the report shows no other rows
        worst = _worst_outputs(predictor.task, scored.take(shown))
        outputs = {int(shown[row]): output for row, output in worst.items()}
        table = texts.derive(read_predictions(folder))
        rows = sorted(outputs)
        columns = [table.take(name, np.array(rows, dtype=np.int64)) for name in texts.inputs]
        inputs = dict(zip(rows, zip(*columns, strict=True), strict=True))
        explanations: dict[str, Any] = {}
        characters, most = 0, 4 * predictor.settings["max_length"]  # about as many are read
        for row, output in outputs.items():  # the worst first
            if characters > _CHARACTERS:
                break
            characters += min(most, sum(map(len, inputs[row])))
            label = predictor.labels[output]
            text: Any = inputs[row][0] if texts.pair is None else inputs[row]
            ranked = strongest(predictor.explain(text, label), _WORDS)
            words = [[word.word, round(word.score, 3)] for word in ranked]
            explanations[str(row)] = {"output": label, "words": words}
    write_json(folder / FILE, explanations)


def _worst_outputs(task: Task, rows: ScoredRows) -> dict[int, int]:
    """The output to explain of each of the worst rows: the predicted class, else the one furthest off."""
    probabilities = task.answers.probabilities(rows.logits)
    if task.answers.has_confidence:
        selected = confident_errors(probabilities, rows.targets, TEXTS)
        outputs = probabilities[selected].argmax(axis=1)
    else:
        selected = worst_rows(task.scores.row_scores(task.answers.decide(probabilities), rows.targets), TEXTS)
        outputs = np.abs(probabilities - rows.targets.reshape(probabilities.shape))[selected].argmax(axis=1)
    return dict(zip(selected.tolist(), outputs.tolist(), strict=True))


def read_explanations(folder: Path) -> dict[int, dict[str, Any]]:
    """Read the `output` and the `words` with their scores of each explained row; {} without the file."""
    try:
        content = read_json(folder / FILE)
    except FileNotFoundError:
        return {}
    return {int(row): explanation for row, explanation in content.items()}
