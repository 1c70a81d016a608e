"""Prediction side by side: a trained folder through this program, `transformers.pipeline` and ONNX Runtime.

    python benchmarks/prediction.py --model runs/tickets-1 --data sst2/train.tsv --rows 4000 [--onnx]

`--onnx` needs the packages onnx, onnxscript and onnxruntime.

Both load the same folder once and see the same texts in the file's order; reading the table and writing the result are
not counted on either side. Passes alternate (A B C A B C); the ratio of medians counts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

SIZES = (1, 8, 32, 128)


def onnx_loop(folder: str, threads: int) -> Callable[[list[str], int], list[str]]:
    """Export the model in fp32 and return `predict(texts, batch size)` with ONNX Runtime: texts sorted by length."""
    import numpy as np
    import onnxruntime
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    example = dict(tokenizer(["one text", "another one that is longer"], padding=True, return_tensors="pt"))
    axes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("tokens")}
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    with tempfile.TemporaryDirectory() as temporary:
        path = str(Path(temporary) / "model.onnx")
        torch.onnx.export(
            model, (), path, kwargs=example, dynamo=True, dynamic_shapes=dict.fromkeys(example, axes), verbose=False
        )
        session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    names = [node.name for node in session.get_inputs()]

    def predict(texts: list[str], size: int) -> list[str]:
        encoded = tokenizer(texts, truncation=True)
        order = np.argsort([len(ids) for ids in encoded["input_ids"]], kind="stable")
        labels = [""] * len(texts)
        for start in range(0, len(texts), size):
            rows = order[start : start + size]
            batch = tokenizer.pad({key: [encoded[key][row] for row in rows] for key in encoded}, return_tensors="np")
            logits = session.run(None, {name: batch[name].astype(np.int64) for name in names})[0]
            for row, best in zip(rows, logits.argmax(axis=1), strict=True):
                labels[row] = model.config.id2label[int(best)]
        return labels

    return predict


def main() -> None:
    """Time each in turn; check that they agree; print medians and the ratio."""
    parser = argparse.ArgumentParser(description="Prediction speed beside transformers' pipeline.")
    parser.add_argument("--model", required=True, help="the output folder of a training run")
    parser.add_argument("--data", required=True)
    parser.add_argument("--text-column")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--onnx", action="store_true")
    parser.add_argument("--precision", default="auto")
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"

    import torch
    from transformers import pipeline

    from classify.prediction.predictor import load_classifier
    from classify.tables.formats.registry import read_table

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
    if options.onnx:
        loop = onnx_loop(options.model, torch.get_num_threads())
        for size in SIZES:
            contestants[f"ONNX Runtime, batch {size}"] = lambda size=size: loop(texts, size)  # type: ignore[misc]
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
