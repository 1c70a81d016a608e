"""Prediction side by side: a trained folder through this program, `transformers.pipeline`, and exports of it.

    python benchmarks/prediction.py --model runs/my-1 --data sst2/train.tsv --rows 4000 [--exported runs/my-1/onnx]

Both load the same folder once and see the same texts in the file's order; reading the table and writing the result are
not counted on either side. Passes alternate (A B C A B C); the ratio of medians counts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

SIZES = (1, 8, 32, 128)


def main() -> None:
    """Time each in turn; check that they agree; print medians and the ratio."""
    parser = argparse.ArgumentParser(description="Prediction speed beside transformers' pipeline.")
    parser.add_argument("--model", required=True, help="the output folder of a training run")
    parser.add_argument("--data", required=True)
    parser.add_argument("--text-column")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--exported", nargs="*", default=[], help="folders of classify export")
    parser.add_argument("--precision", default="auto")
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"

    from transformers import pipeline

    from classify.prediction.predictor import load_classifier
    from classify.tables.read import read_table

    classifier = load_classifier(options.model, use_cpu=not options.gpu, precision=options.precision)
    texts = read_table(options.data).column(options.text_column or classifier.texts.whole)[: options.rows]
    stock = pipeline("text-classification", model=options.model, device=0 if options.gpu else -1)
    contestants: dict[str, Callable[[], Any]] = {
        "classify": lambda: [classifier.labels[i] for i in classifier.probabilities(texts).argmax(axis=1)]
    }
    for size in SIZES:
        contestants[f"pipeline, batch {size}"] = lambda size=size: [  # type: ignore[misc]
            row["label"] for row in stock(texts, batch_size=size, truncation=True)
        ]
    for folder in options.exported:
        exported = load_classifier(folder)
        contestants[Path(folder).name] = lambda exported=exported: [  # type: ignore[misc]
            exported.labels[i] for i in exported.probabilities(texts).argmax(axis=1)
        ]
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    answers = {}
    for _ in range(options.repeats):
        for name, predict in contestants.items():
            begin = time.perf_counter()
            answers[name] = predict()
            seconds[name].append(time.perf_counter() - begin)
    base = statistics.median(seconds["classify"])
    for name, times in seconds.items():
        middle = statistics.median(times)
        same = sum(a == b for a, b in zip(answers[name], answers["classify"], strict=True)) / len(texts)
        print(f"{name:26}  {len(texts) / middle:8.1f} rows/s  {base / middle:6.2f} of classify  {same:.2%} alike")


if __name__ == "__main__":
    main()
