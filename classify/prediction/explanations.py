"""explanations.json: the words that led to the most confident errors of a run, for its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from classify.data.files import write_json
from classify.data.formats.registry import read_table
from classify.evaluation.scored_rows import ScoredRows, confident_errors
from classify.launch import launcher
from classify.modeling.result_folder import read_settings, trained_texts
from classify.tasks.registry import trained_task

FILE = "explanations.json"
# Texts that are explained, and the words of each that are kept.
TEXTS, _WORDS = 20, 6


def write_explanations(folder: Path, *, use_cpu: bool = False) -> None:
    """Write explanations.json into a result folder, where its predictions have one confidence each.

    Only in a process without a launcher: the others have ended.
    """
    (folder / FILE).unlink(missing_ok=True)  # of an earlier run in this folder
    texts, task = trained_texts(read_settings(str(folder))), trained_task(str(folder))
    if launcher.is_launched() or not task.has_confidence or texts.pair is not None:
        return
    from classify.modeling.attributions import FEW_STEPS
    from classify.modeling.precision import multiplies_bf16
    from classify.prediction.predict import load_classifier

    # Words are ranked alike in half precision, in half the time.
    precision = "bf16" if multiplies_bf16() else "auto"
    with load_classifier(str(folder), use_cpu=use_cpu, precision=precision) as predictor:
        if not predictor.tokenizer.is_fast:
            return
        rows = ScoredRows.read(folder)
        probabilities = task.probabilities(rows.logits)
        errors = confident_errors(probabilities, rows.targets, TEXTS)
        table = texts.derive(read_table(str(folder / "predictions.csv"), "--model"))
        order = np.sort(errors)
        written = table.take(texts.whole, order)
        words: dict[str, list[Any]] = {}
        for row, text in zip(order.tolist(), written, strict=True):
            label = predictor.labels[int(probabilities[row].argmax())]
            explained = predictor.explain(text, label, FEW_STEPS)
            ranked = sorted(explained, key=lambda one: -abs(one.score))[:_WORDS]
            words[str(row)] = [[one.word, round(one.score, 3)] for one in ranked]
    write_json(folder / FILE, words)


def read_explanations(folder: Path) -> dict[int, list[tuple[str, float]]]:
    """Return the words of each explained row of predictions.csv; {} without the file."""
    try:
        content = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return {int(row): [(str(word), float(score)) for word, score in words] for row, words in content.items()}
