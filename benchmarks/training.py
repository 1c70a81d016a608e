"""Training side by side: this program, and transformers' Trainer as its users and its experts set it up.

    python benchmarks/training.py --data sst2/train.tsv --test-data sst2/dev.tsv --rows 6000
    python benchmarks/training.py --data banking77/train.csv --processes 2 --batch-size 128
    python benchmarks/training.py --gpu --model random-bert-base --data sst2/train.tsv --test-data sst2/dev.tsv
    python benchmarks/training.py --gpu --model random-bert-base --generate 4096 --max-length 512 --batch-size 256
    python benchmarks/training.py --data sst2/train.tsv --test-data sst2/dev.tsv --rows 3000 --beside 1

Every contestant trains the same rows with the same model, global batch, number of epochs, learning rate and seed
(another in each repeat), evaluates after each epoch, keeps the best and writes a folder. Each runs in a process of its
own, in turn (A B C A B C), so that a noisy neighbour hits all alike. Read the ratios, not the rows/s. `of peak` is the
useful arithmetic of the real tokens (six times the encoder's parameters and attention, as if each layer computed each
token; padding is not) over the matrix-product peak measured in the same run and type. "Tuned" is the fastest Trainer
that took part. With --generate the texts are random words, as many as reviews of films have: enough for speed.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.contestants import OURS, THEIRS, UNTUNED, Race, run
from benchmarks.generated import write_texts

RANDOM_BERT = "random-bert-base"


def write_rows(source: Path, target: Path, first: int, last: int | None, shuffled: bool) -> None:
    """Rows `first` to `last` of a table as text,label; `shuffled` first, by a fixed seed."""
    from classify.tables.read import read_table
    from classify.tables.roles import find_columns

    table = read_table(str(source))
    columns = find_columns(table, None, None)
    rows = list(zip(table.column(columns.text), table.column(columns.label), strict=True))
    if shuffled:  # a table may be sorted by class
        random.Random(0).shuffle(rows)
    with target.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows[first:last]])


def review_words(draw: random.Random) -> int:
    """Words of a review: log-normal, with a median of 174 and a mean of 234 as in IMDB's 50,000."""
    return max(1, round(draw.lognormvariate(math.log(174), math.sqrt(2 * math.log(234 / 174)))))


def model_folder(name: str, tokenizer_folder: str, folder: Path) -> str:
    """The model's folder; "random-bert-base" is made on the spot, with a tokenizer from elsewhere."""
    from classify.config.schema import DEFAULT_MODEL
    from classify.modeling.find import resolve_model

    if name != RANDOM_BERT:
        return str(resolve_model(name or DEFAULT_MODEL).path)
    import transformers

    made = folder / RANDOM_BERT
    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder or str(resolve_model(DEFAULT_MODEL).path))
    transformers.BertModel(transformers.BertConfig(vocab_size=len(tokenizer))).save_pretrained(made)
    tokenizer.save_pretrained(made)
    return str(made)


def peak(dtype_name: str, tokens: int, config: dict[str, Any], gpu: bool) -> float:
    """Matrix-product peak in GFLOP/s, for products of the model's shapes, by whichever library this program takes."""
    import torch

    from classify.modeling.cpu_layers import capabilities, multiply, onednn_is_faster

    by_onednn = not gpu and dtype_name == "float32" and onednn_is_faster(capabilities())
    product = multiply if by_onednn else torch.nn.functional.linear
    device, dtype = "cuda" if gpu else "cpu", getattr(torch, dtype_name)
    wide, inner = config["hidden_size"], config["intermediate_size"]
    best = 0.0
    for rows, a, b in ((tokens, wide, wide), (tokens, wide, inner), (tokens, inner, wide), (4096, wide, inner)):
        left, right = (torch.randn(*shape, device=device).to(dtype) for shape in ((rows, a), (b, a)))
        count, begin = -5, 0.0
        while count < 10 or time.perf_counter() - begin < 0.4:
            if count == 0:
                begin = time.perf_counter()
            product(left, right)
            count += 1
            if gpu and count % 10 == 0:
                torch.cuda.synchronize()
        best = max(best, 2e-9 * rows * a * b * count / (time.perf_counter() - begin))
    return best


def useful_gflops(tokens_per_second: float, tokens_per_row: float, config: dict[str, Any]) -> float:
    """Arithmetic of forward and backward on real tokens through all layers; the embedding lookup is free."""
    wide, inner = config["hidden_size"], config["intermediate_size"]
    layer = 4 * wide * wide + 2 * wide * inner + 2 * tokens_per_row * wide
    return 6e-9 * config["num_hidden_layers"] * layer * tokens_per_second


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run so many processes that compute without end, as other programs of the same machine do."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def contestants(gpu: bool) -> list[str]:
    """All but the compiled one on CPUs, Trainer in bf16 where it would be emulated.

    This program takes bf16 by itself where it is fast; elsewhere it need not take part in fp32 twice.
    """
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    fast = gpu or "avx512_bf16" in flags or "amx_bf16" in flags
    left_out = [*([] if gpu else ["compiled"]), *([] if fast else ["bf16", "classify, fp32"])]
    return [name for name in [*OURS, *THEIRS] if not any(word in name for word in left_out)]


def report(found: dict[str, list[dict[str, float]]], race: Race, data: str) -> dict[str, Any]:
    """One line a contestant: medians over the repeats; then ratios. Returns all figures."""
    config = json.loads((Path(race.model) / "config.json").read_text())
    first = next(iter(found.values()))
    per_row = first[0]["tokens/s"] / first[0]["rows/s"]
    types = {name: "bfloat16" if runs[0]["half"] else "float32" for name, runs in found.items()}
    tokens = int(per_row * race.batch_size)
    peaks = {kind: peak(kind, tokens, config, race.gpu) for kind in sorted({"float32", *types.values()})}
    print(f"{data}: batch {race.batch_size}, {per_row:.1f} tokens a row, {race.processes} process(es)")
    print("peak: " + ", ".join(f"{name} {value:.0f} GFLOP/s" for name, value in peaks.items()))
    print(f"{'':32}  rows/s  tokens/s  GFLOP/s  of peak  accuracy  wall s  first step s  memory MiB")
    figures: dict[str, Any] = {"peaks": peaks, "tokens_per_row": per_row}
    for name, runs in found.items():
        middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        useful = useful_gflops(middle["tokens/s"], per_row, config)
        figures[name] = {**middle, "gflops": useful, "share_of_peak": useful / peaks[types[name]]}
        print(
            f"{name:32}  {middle['rows/s']:6.1f}  {middle['tokens/s']:8.0f}  {useful:7.0f}  "
            f"{useful / peaks[types[name]]:7.1%}  {middle['accuracy']:8.4f}  {middle['wall']:6.1f}  "
            f"{middle['start']:12.1f}  {middle['memory']:10.0f}"
        )
    compare(figures, [name for name in found if name in OURS], [name for name in found if name in THEIRS])
    return figures


def compare(figures: dict[str, Any], ours: list[str], theirs: list[str]) -> None:
    """Print and add to the figures, for each of this program's runs, its rate and wall time over each Trainer's."""
    tuned = max((name for name in theirs if name != UNTUNED), key=lambda name: figures[name]["rows/s"], default=None)
    for mine in ours:
        for other in theirs:
            rate = figures[mine]["rows/s"] / figures[other]["rows/s"]
            wall = figures[mine]["wall"] / figures[other]["wall"]
            figures[mine][f"over {other}"] = {"rows/s": rate, "wall": wall}
            mark = " (tuned)" if other == tuned else ""
            print(f"{mine} over {other}{mark}: {rate:.2f} x the rows/s, {wall:.2f} x the wall time")


def main() -> None:
    """Run every contestant in turn; print and store medians and ratios."""
    parser = argparse.ArgumentParser(description="Training speed beside transformers' Trainer.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path)
    source.add_argument("--generate", type=int, metavar="N", help="N long texts of random words instead of a table")
    parser.add_argument(
        "--test-data", type=Path, help="rows to score on; otherwise 200 of --data, left out of training"
    )
    parser.add_argument("--model", default="", help=f"a folder or {RANDOM_BERT} (default: this program's)")
    parser.add_argument("--tokenizer", default="", help=f"a folder, for {RANDOM_BERT} (default: the default model's)")
    parser.add_argument(
        "--rows", type=int, help="train on so many rows: the first ones, or some by chance without --test-data"
    )
    parser.add_argument("--test-rows", type=int, help="score on so many rows only")
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--max-steps", type=int, default=-1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument(
        "--beside", type=int, default=0, metavar="N", help="busy processes that share the cores (default: %(default)s)"
    )
    parser.add_argument("--only", nargs="+", help="contestants", choices=[*OURS, *THEIRS])
    parser.add_argument("--store", type=Path, default=Path("runs/benchmark.json"), help="all figures (%(default)s)")
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    names = options.only or contestants(options.gpu)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = model_folder(options.model, options.tokenizer, folder)
        table = options.data and options.data.resolve()
        if table is None:
            table = folder / "generated.csv"
            write_texts(table, options.generate, model, review_words, seed=0)
        rest, cut = (options.test_data or table).resolve(), not options.test_data
        held_out = (options.test_rows or 200) if cut else 0
        write_rows(table, folder / "train.csv", held_out, options.rows and held_out + options.rows, shuffled=cut)
        write_rows(rest, folder / "test.csv", 0, held_out if cut else options.test_rows, shuffled=cut)
        race = Race(
            folder, model, options.epochs, options.max_steps, options.batch_size, options.max_length,
            options.processes, options.gpu, seed=42,
        )  # fmt: skip
        with busy_processes(options.beside):
            for repeat in range(options.repeats):
                for name in names:
                    found[name].append(run(name, replace(race, seed=42 + repeat)))
        data = str(options.data or f"{options.generate} texts of random words")
        beside = f", beside {options.beside} busy process(es)" if options.beside else ""
        figures = report(found, race, data + beside)
    options.store.parent.mkdir(parents=True, exist_ok=True)
    options.store.write_text(json.dumps({"arguments": sys.argv[1:], "figures": figures, "runs": found}, indent=1))


if __name__ == "__main__":
    main()
