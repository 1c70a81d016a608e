"""A table of a million rows, read, tokenized and trained for 200 steps: peak memory, and the tokenizing rate by rows.

    python benchmarks/large_table.py [--rows 1000000]
    python benchmarks/large_table.py --predict runs/tickets-1    # memory and rate of classify predict instead

The texts are 2 to 20 words drawn by chance from the default model's vocabulary.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.generated import write_texts

ROOT = Path(__file__).resolve().parent.parent


def tokenizing_rate(texts: list[str], model: str) -> tuple[float, float]:
    """Texts a second: this program's, without a cache; and the tokenizers library's alone, which makes no arrays."""
    from classify.data.tokenize import load_tokenizer, tokenize

    tokenizer = load_tokenizer(model)
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


def predict(table: Path, model: str, out: Path) -> tuple[float, float]:
    """Predict in a process of its own: (its peak memory in MiB, its seconds)."""
    begin = time.perf_counter()
    words = [sys.executable, "-m", "classify", "predict", "--model", model, "--data", str(table), "--out", str(out)]
    subprocess.run([*words, "--cpu", "--quiet"], env={**os.environ, "HF_HUB_OFFLINE": "1"}, check=True, cwd=ROOT)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024, time.perf_counter() - begin


def main() -> None:
    """Tokenise 10,000 rows (after a first pass), 100,000 and all; then train on 2,000 and on all."""
    parser = argparse.ArgumentParser(description="A large table: memory and tokenizing rate.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--predict", metavar="FOLDER", help="the output folder of a run")
    options = parser.parse_args()
    from classify.config.schema import DEFAULT_MODEL
    from classify.modeling.find import resolve_model
    from classify.tables.read import read_table

    model = str(resolve_model(DEFAULT_MODEL).path)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["XDG_CACHE_HOME"] = temporary
        for rows in (10_000, options.rows) if options.predict else ():
            path = folder / f"{rows}.csv"
            write_texts(path, rows, model, lambda draw: draw.randint(2, 20), seed=0)
            memory, seconds = predict(path, str(Path(options.predict).resolve()), folder / "p.csv")
            print(f"predicting {rows} rows: peak memory {memory:.0f} MiB, {seconds:.0f} s, {rows / seconds:.0f} rows/s")
        if options.predict:
            return
        small, large, held_out = folder / "small.csv", folder / "large.csv", folder / "held-out.csv"
        for seed, (path, rows) in enumerate({small: 2_000, large: options.rows, held_out: 500}.items()):
            write_texts(path, rows, model, lambda draw: draw.randint(2, 20), seed)
        print(f"{options.rows} rows, {large.stat().st_size / 1e6:.0f} MB")
        for table, name in ((small, "2,000 rows"), (large, "all rows")):
            memory, seconds = train(table, held_out, folder / table.stem)
            print(f"training, {name}: peak memory {memory:.0f} MiB, {seconds:.0f} s")
        texts = list(read_table(str(large)).column("text"))
        tokenizing_rate(texts[:1_000], model)
        for count in (10_000, 100_000, options.rows):
            own, library = tokenizing_rate(texts[:count], model)
            print(f"tokenizing {count} texts: {own:.0f} texts/s, the library alone {library:.0f} ({own / library:.0%})")


if __name__ == "__main__":
    main()
