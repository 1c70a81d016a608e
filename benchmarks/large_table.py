"""A table of a million rows, read, tokenised and trained for 200 steps: peak memory, and the tokenising rate by rows.

    python benchmarks/large_table.py [--rows 1000000]

The texts are 2 to 20 words drawn by chance from the default model's vocabulary, the labels follow from one of them.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def write(path: Path, rows: int, seed: int) -> None:
    """A table of so many rows."""
    from classify.config import DEFAULT_MODEL
    from classify.data.tokens import load_tokenizer
    from classify.hub import resolve_model

    vocabulary = load_tokenizer(str(resolve_model(DEFAULT_MODEL).path)).get_vocab()
    words = sorted(word for word in vocabulary if word.isascii() and word.isalpha())
    draw = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label"))
        for _ in range(rows):
            label = draw.choice(("up", "down"))
            writer.writerow((" ".join([label, *draw.choices(words, k=draw.randint(1, 19))]), label))


def tokenising_rate(texts: list[str]) -> tuple[float, float]:
    """Texts a second: this program's, without a cache; and the tokenizers library's alone, which makes no arrays."""
    from classify.config import DEFAULT_MODEL
    from classify.data.tokens import load_tokenizer, tokenize
    from classify.hub import resolve_model

    tokenizer = load_tokenizer(str(resolve_model(DEFAULT_MODEL).path))
    begin = time.perf_counter()
    tokenize(tokenizer, texts, 512)
    middle = time.perf_counter()
    for start in range(0, len(texts), 1000):
        tokenizer.backend_tokenizer.encode_batch_fast(texts[start : start + 1000], add_special_tokens=False)
    end = time.perf_counter()
    return len(texts) / (middle - begin), len(texts) / (end - middle)


def train(table: Path, held_out: Path, folder: Path) -> tuple[float, float]:
    """Train 200 steps in a process of its own, scored on few rows: (its peak memory in MiB, its seconds)."""
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, str(ROOT / "run_classify.py"), "--data", str(table), "--eval-data", str(held_out),
         "--test-data", str(held_out), "--cpu", "--max-steps", "200", "--head", "random", "--report-to", "none",
         "--output-dir", str(folder)],
        env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr)
    # Of the largest child so far: tables grow from one call to the next.
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024, time.perf_counter() - begin


def main() -> None:
    """Tokenise 10,000 rows (after a first pass), 100,000 and all; then train on 2,000 and on all."""
    parser = argparse.ArgumentParser(description="A large table: memory and tokenising rate.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    from classify.data.read import read_table

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["XDG_CACHE_HOME"] = temporary
        small, large, held_out = folder / "small.csv", folder / "large.csv", folder / "held-out.csv"
        write(small, 2_000, seed=0)
        write(large, options.rows, seed=1)
        write(held_out, 500, seed=2)
        print(f"{options.rows} rows, {large.stat().st_size / 1e6:.0f} MB")
        for table, name in ((small, "2,000 rows"), (large, "all rows")):
            memory, seconds = train(table, held_out, folder / table.stem)
            print(f"training, {name}: peak memory {memory:.0f} MiB, {seconds:.0f} s")
        texts = list(read_table(str(large)).column("text"))
        tokenising_rate(texts[:1_000])
        for count in (10_000, 100_000, options.rows):
            own, library = tokenising_rate(texts[:count])
            print(f"tokenising {count} texts: {own:.0f} texts/s, the library alone {library:.0f} ({own / library:.0%})")


if __name__ == "__main__":
    main()
