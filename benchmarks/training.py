"""Training side by side: this program, and transformers' Trainer as its users and its experts set it up.

    python benchmarks/training.py --data sst2/train.tsv --test-data sst2/dev.tsv --rows 6000
    python benchmarks/training.py --data banking77/train.csv --test-data banking77/test.csv --rows 6000 --repeats 3

Every contestant trains the same rows with the same model, global batch, number of epochs, learning rate and seed, each
run in a process of its own, in turn (A B C A B C), so that a noisy neighbour hits all alike. Read the ratios, not the
rows per second. `share of peak` is the useful arithmetic of the tokens (six times parameters and attention per token,
embeddings left out; padding is not useful) over the matrix-product peak measured in the same run, in the same type.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OURS = {
    "classify fp32": ["--precision", "fp32"],
    "classify bf16": ["--precision", "bf16"],
    "classify bf16, random head": ["--precision", "bf16", "--head", "random"],
}
# As run_classification.py sets Trainer up (every text padded to 128), and as an expert would.
THEIRS: dict[str, dict[str, Any]] = {
    "Trainer, padded to 128": {"pad_to": 128},
    "Trainer, dynamic padding": {},
    "Trainer, grouped": {"train_sampling_strategy": "group_by_length"},
    "Trainer, grouped, bf16": {"train_sampling_strategy": "group_by_length", "bf16": True},
    "Trainer, batch_rebalance, bf16": {"train_sampling_strategy": "batch_rebalance", "bf16": True},
}


def write_rows(source: Path, target: Path, rows: int | None) -> list[str]:
    """The first rows of a table as text,label; returns the labels in it."""
    from classify.data import infer, read

    table = read.read_table(str(source))
    text = infer.find_text_column(table, None, "text")
    label = next(name for name in table.columns if name != text)
    taken = list(zip(table.column(text), table.column(label), strict=True))[:rows]
    with target.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *taken])
    return sorted({name for _, name in taken})


def peak(dtype_name: str, tokens: int) -> float:
    """Matrix-product peak in GFLOP/s of this process, for products of the default model's shapes."""
    import torch

    dtype = getattr(torch, dtype_name)
    best = 0.0
    for rows, inner, columns in ((tokens, 384, 384), (tokens, 384, 1536), (tokens, 1536, 384), (4096, 384, 1536)):
        a, b = torch.randn(rows, inner).to(dtype), torch.randn(inner, columns).to(dtype)
        for _ in range(5):
            a @ b
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < 0.4:
            a @ b
            count += 1
        best = max(best, 2e-9 * rows * inner * columns * count / (time.perf_counter() - begin))
    return best


def run_ours(name: str, folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """This program, from its command to its folder."""
    out = Path(tempfile.mkdtemp(dir=folder)) / "out"
    words = [
        sys.executable, str(ROOT / "run_classify.py"), "--data", str(folder / "train.csv"), "--test-data",
        str(folder / "test.csv"), "--eval-data", str(folder / "test.csv"), "--epochs", str(options.epochs),
        "--batch-size", str(options.batch_size), "--learning-rate", "5e-5", "--report-to", "none", "--output-dir",
        str(out), "--cpu", *OURS[name],
    ]  # fmt: skip
    if options.max_steps > 0:
        words += ["--max-steps", str(options.max_steps)]
    begin = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, cwd=folder)
    found = json.loads((out / "metrics.json").read_text())
    train = found["train"]
    return {
        "rows/s": train["rows_per_second"],
        "tokens/s": train["tokens_per_second"],
        "accuracy": found["test"]["accuracy"],
        "wall": time.perf_counter() - begin,
    }


def run_theirs(name: str, folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Trainer in a process of its own (this file again, with --worker)."""
    words = [sys.executable, __file__, "--worker", name, "--folder", str(folder), "--data", "-", "--test-data", "-"]
    words += ["--epochs", str(options.epochs), "--batch-size", str(options.batch_size)]
    words += ["--max-steps", str(options.max_steps)]
    begin = time.perf_counter()
    done = subprocess.run(words, check=True, capture_output=True, text=True, cwd=folder)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {**found, "wall": time.perf_counter() - begin}


def worker(name: str, folder: Path, options: argparse.Namespace) -> None:
    """Train with Trainer, score the test rows, print one line of JSON."""
    import numpy as np
    import transformers
    from datasets import load_dataset

    from classify.config import DEFAULT_MODEL
    from classify.hub import resolve_model

    settings = dict(THEIRS[name])
    pad_to = settings.pop("pad_to", None)
    path = str(resolve_model(DEFAULT_MODEL).path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    data = load_dataset("csv", data_files={part: str(folder / f"{part}.csv") for part in ("train", "test")})
    labels = sorted({str(label) for label in data["train"]["label"]})
    way = {"padding": "max_length", "max_length": pad_to} if pad_to else {"max_length": 128}
    data = data.map(
        lambda rows: {
            **tokenizer(rows["text"], truncation=True, **way),
            "labels": [labels.index(str(label)) for label in rows["label"]],
        },
        batched=True,
        remove_columns=["text", "label"],
    )
    transformers.set_seed(42)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(path, num_labels=len(labels))
    arguments = transformers.TrainingArguments(
        output_dir=tempfile.mkdtemp(dir=folder), num_train_epochs=options.epochs, max_steps=options.max_steps,
        per_device_train_batch_size=options.batch_size, per_device_eval_batch_size=64, learning_rate=5e-5,
        weight_decay=0.01, warmup_steps=0.1, use_cpu=True, report_to="none", save_strategy="no", seed=42,
        disable_tqdm=True, logging_strategy="no", **settings,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model, arguments, train_dataset=data["train"], processing_class=tokenizer,
        data_collator=transformers.default_data_collator if pad_to else transformers.DataCollatorWithPadding(tokenizer),
    )  # fmt: skip
    done = trainer.train()
    steps_an_epoch = -(-len(data["train"]) // options.batch_size)
    rows = len(data["train"]) * trainer.state.global_step / steps_an_epoch
    tokens = sum(sum(mask) for mask in data["train"]["attention_mask"]) / len(data["train"]) * rows
    logits = trainer.predict(data["test"]).predictions
    accuracy = float((np.argmax(logits, axis=1) == np.array(data["test"]["labels"])).mean())
    seconds = done.metrics["train_runtime"]
    print(json.dumps({"rows/s": rows / seconds, "tokens/s": tokens / seconds, "accuracy": accuracy}))


def useful_gflops(tokens_per_second: float, tokens_per_row: float) -> float:
    """Arithmetic of forward and backward on real tokens: 6 layers of width 384, the embedding lookup is free."""
    layer = 12 * 384 * 384 + 2 * tokens_per_row * 384
    return 6e-9 * 6 * layer * tokens_per_second


def main() -> None:
    """Run every contestant in turn; print medians and ratios."""
    parser = argparse.ArgumentParser(description="Training speed beside transformers' Trainer.")
    parser.add_argument("--data", required=True)
    parser.add_argument("--test-data", required=True)
    parser.add_argument("--rows", type=int, help="train on the first so many rows")
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--max-steps", type=int, default=-1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="contestants (default: all)", choices=[*OURS, *THEIRS])
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    if options.worker:
        worker(options.worker, Path(options.folder), options)
        return
    names = options.only or [*OURS, *THEIRS]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_rows(Path(options.data).resolve(), folder / "train.csv", options.rows)
        write_rows(Path(options.test_data).resolve(), folder / "test.csv", None)
        for _ in range(options.repeats):
            for name in names:
                run = run_ours if name in OURS else run_theirs
                found[name].append(run(name, folder, options))
    report(found, options)


def report(found: dict[str, list[dict[str, float]]], options: argparse.Namespace) -> None:
    """One line a contestant: medians over the repeats, and the ratio to the first."""
    first = next(iter(found.values()))
    per_row = first[0]["tokens/s"] / first[0]["rows/s"]
    peaks = {name: peak(name, int(per_row * options.batch_size)) for name in ("float32", "bfloat16")}
    print(f"{options.data}: batch {options.batch_size}, {per_row:.1f} tokens a row")
    print("peak: " + ", ".join(f"{name} {value:.0f} GFLOP/s" for name, value in peaks.items()))
    base = statistics.median(run["rows/s"] for run in first)
    print(f"{'':34}  rows/s  tokens/s  of the first  share of peak  accuracy   wall")
    for name, runs in found.items():
        middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        share = useful_gflops(middle["tokens/s"], per_row) / peaks["bfloat16" if "bf16" in name else "float32"]
        print(
            f"{name:34}  {middle['rows/s']:6.1f}  {middle['tokens/s']:8.0f}  {middle['rows/s'] / base:12.2f}  "
            f"{share:13.1%}  {middle['accuracy']:8.4f}  {middle['wall']:5.1f}"
        )


if __name__ == "__main__":
    main()
