"""benchmarks/training.py on the public data sets that the figures of benchmarks/RESULTS.md are about.

    python benchmarks/sets.py FOLDER [--processes 1 2] [flags of training.py, e.g. --repeats 1]

FOLDER holds sst2/train.tsv and sst2/dev.tsv (SST-2 of GLUE), banking77/train.csv and banking77/test.csv (Casanueva et
al., 2020), imdb/train.csv and imdb/test.csv (Maas et al., 2011, as text,label). All figures are kept in
runs/benchmarks.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

TRAINING = Path(__file__).resolve().parent / "training.py"
# Test rows: what scoring costs is the same for all contestants and is not part of rows/s.
SETS = {
    "sst2": ["train.tsv", "dev.tsv", "--rows", "6000"],
    "sst2-short": ["train.tsv", "dev.tsv", "--rows", "2000", "--epochs", "3"],
    "banking77": ["train.csv", "test.csv", "--test-rows", "1000"],
    "imdb": ["train.csv", "test.csv", "--rows", "1000", "--test-rows", "200", "--max-length", "256"],
}


def main() -> None:
    """Each set on each number of processes, one after the other; the first failure ends it."""
    parser = argparse.ArgumentParser(description="Training speed on public data sets.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    options, more = parser.parse_known_args()
    for name in options.sets:
        train, test, *words = SETS[name]
        folder = options.folder / name.partition("-")[0]
        for processes in options.processes:
            store = Path("runs/benchmarks") / f"{name}-{processes}.json"
            print(f"\n{name}, {processes} process(es)", flush=True)
            subprocess.run(
                [sys.executable, str(TRAINING), "--data", str(folder / train), "--test-data", str(folder / test),
                 *words, "--processes", str(processes), "--store", str(store), *more],
                check=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
