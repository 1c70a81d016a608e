"""Two commits side by side: whether they train the same bits, and how their step times compare.

    python benchmarks/paired.py OLD NEW [--sums] [--speed] [--data my.csv] [--batch-size 32] [--turns 40]

OLD and NEW are commits (each is checked out into a temporary worktree), or `.` for the working tree. Without --sums or
--speed both are done.

Sums: six runs by each tree, one after the other on fixed thread counts, and the SHA-256 of each model.safetensors.
Speed: one process a tree trains on the same table. In turn each does four optimizer steps while the other waits; the
median of the turns' ratios is printed, with quartiles. A ratio above 1 means that NEW is slower.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import runpy
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STEPS_A_TURN = 4
# Turns that do not count: threads start, and memory is taken for the first time.
WARM_UP = 3
# Steps of the runs whose sums are compared.
LENGTH = ("--epochs", "1", "--contrastive-steps", "4", "--max-steps")
HALF, WHOLE = "8", "16"
TWO = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29555")
# Name, launcher and flags of a run; one with a first half is resumed from there.
RUNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "fp32": ((), ("--precision", "fp32")),
    "bf16": ((), ("--precision", "bf16")),
    "torchrun 2": (TWO, ("--precision", "fp32")),
    "fsdp 2": (TWO, ("--precision", "fp32", "--strategy", "fsdp")),
    "lora": ((), ("--precision", "fp32", "--lora")),
    "resumed": ((), ("--precision", "fp32")),
}


def environment(tree: Path, threads: int) -> dict[str, str]:
    """Variables of a process that imports `classify` from that tree."""
    own = {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **own}


def train(tree: Path, launcher: tuple[str, ...], flags: list[str], threads: int) -> None:
    """One run; what it prints is shown where it fails."""
    words = [sys.executable, *launcher, "run_classify.py", "--cpu", "--report-to", "none", *flags]
    done = subprocess.run(words, cwd=tree, env=environment(tree, threads), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{tree}: {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def sum_of(tree: Path, name: str, data: str, folder: Path) -> str:
    """SHA-256 of the weights that a run of RUNS ends with, cut to 16 digits."""
    launcher, flags = RUNS[name]
    out = ["--data", data, *flags, "--output-dir", str(folder), *LENGTH]
    threads = 1 if launcher else 2
    if name == "resumed":
        train(tree, launcher, [*out, HALF], threads)
        out.append(WHOLE)
        out.append("--resume")
    else:
        out.append(WHOLE)
    train(tree, launcher, out, threads)
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:16]
    shutil.rmtree(folder)
    return digest


def compare_sums(trees: tuple[Path, Path], data: str, names: list[str]) -> bool:
    """Print the sums of each run by both trees; whether all are equal."""
    equal = True
    with tempfile.TemporaryDirectory() as temporary:
        for name in names:
            old, new = (sum_of(tree, name, data, Path(temporary) / "run") for tree in trees)
            equal = equal and old == new
            print(f"{name:12} {old}  {new}  {'equal' if old == new else 'DIFFERENT'}", flush=True)
    return equal


def compare_speed(trees: tuple[Path, Path], flags: list[str], turns: int, threads: int) -> None:
    """Print the median of the turns' time ratios, NEW over OLD."""
    with tempfile.TemporaryDirectory() as temporary:
        workers = [
            subprocess.Popen(
                [sys.executable, str(Path(__file__).resolve()), "--worker", "--", "--cpu", "--report-to", "none",
                 "--output-dir", str(Path(temporary) / str(number)), *flags],
                cwd=tree, env=environment(tree, threads), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            for number, tree in enumerate(trees)
        ]  # fmt: skip
        try:
            ratios = []
            for turn in range(WARM_UP + turns):
                seconds = [0.0, 0.0]
                for place in (0, 1) if turn % 2 else (1, 0):
                    seconds[place] = turn_of(workers[place])
                if turn >= WARM_UP:
                    ratios.append(seconds[1] / seconds[0])
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"step time, new / old: median {middle:.3f} (quartiles {low:.3f}, {high:.3f}; {turns} turns)")


def turn_of(worker: subprocess.Popen[str]) -> float:
    """Seconds that a worker took for its turn."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()
    for line in worker.stdout:  # what the run prints is among it
        if line.startswith("turn "):
            return float(line.split()[1])
    sys.exit("a run ended before its turns did; give a larger --data, or fewer --turns")


def work(arguments: list[str]) -> None:
    """Train by the tree that this process imports from, and wait for a word after each turn.

    A hook of torch counts the optimizer's steps, so that it does not matter how the tree is laid out.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook

    done, begin = 0, 0.0

    def after_step(*_: object) -> None:
        nonlocal done, begin
        done += 1
        if done % STEPS_A_TURN:
            return
        if done > STEPS_A_TURN:
            print(f"turn {time.perf_counter() - begin}", flush=True)
        sys.stdin.readline()
        begin = time.perf_counter()

    register_optimizer_step_post_hook(after_step)
    script = Path.cwd() / "run_classify.py"
    sys.path[0] = str(script.parent)
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")


def main() -> None:
    """Check out what is compared, and compare it."""
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description="Whether two commits train the same bits, and as fast.")
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--sums", action="store_true")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS), help="whose sums are compared")
    parser.add_argument("--data", default="data/tickets.csv", help="the table of the speed test")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=40)
    options = parser.parse_args()
    both = options.sums == options.speed
    with tempfile.TemporaryDirectory() as temporary:
        trees = []
        for number, commit in enumerate((options.old, options.new)):
            tree = ROOT if commit == "." else Path(temporary) / str(number)
            if tree != ROOT:
                subprocess.run(
                    ["git", "-C", str(ROOT), "worktree", "add", "-q", "--detach", str(tree), commit], check=True
                )
            trees.append(tree)
        try:
            equal = not (both or options.sums) or compare_sums(
                (trees[0], trees[1]), str(ROOT / "data" / "tickets.csv"), options.runs
            )
            if both or options.speed:
                flags = ["--data", str(Path(options.data).resolve()), "--batch-size", str(options.batch_size)]
                flags += ["--max-length", str(options.max_length), "--precision", options.precision]
                flags += ["--head", "random", "--contrastive-steps", "0", "--epochs", "1000"]
                compare_speed((trees[0], trees[1]), flags, options.turns, options.threads)
        finally:
            for tree in trees:
                if tree != ROOT:
                    subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(tree)], check=True)
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
