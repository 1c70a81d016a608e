"""How long a command takes to begin: --help, and the first step beside importing the libraries and loading the model.

    python benchmarks/start.py --data my.csv [--repeats 5]

In turn, each in a process of its own: `--help`; a training's first step with a random head; and what nobody can do
without, `import torch, transformers` and loading the model.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

BARE = """
import torch, transformers
transformers.AutoModelForSequenceClassification.from_pretrained({model!r}, num_labels=2)
"""


def seconds(*words: str) -> float:
    """How long python takes with these arguments."""
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, *words], env={**os.environ, "HF_HUB_OFFLINE": "1"}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    return time.perf_counter() - begin


def first_step(data: str, folder: Path) -> float:
    """From the command to the first step, as the run itself tells."""
    script = str(ROOT / "run_classify.py")
    seconds(script, "--data", data, "--cpu", "--head", "random", "--max-steps", "1", "--report-to", "none",
            "--max-train-samples", "1000", "--output-dir", str(folder))  # fmt: skip
    return float(json.loads((folder / "metrics.json").read_text())["start_seconds"])


def main() -> None:
    """Medians of a few turns."""
    parser = argparse.ArgumentParser(description="How long a command takes to begin.")
    parser.add_argument("--data", required=True)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    from classify.config.schema import DEFAULT_MODEL
    from classify.modeling.find import resolve_model

    model = str(resolve_model(DEFAULT_MODEL).path)
    found: dict[str, list[float]] = {"--help": [], "imports and the model": [], "first step": []}
    with tempfile.TemporaryDirectory() as temporary:
        for turn in range(options.repeats):
            found["--help"].append(seconds(str(ROOT / "run_classify.py"), "--help"))
            found["imports and the model"].append(seconds("-c", BARE.format(model=model)))
            found["first step"].append(first_step(options.data, Path(temporary) / str(turn)))
    for name, times in found.items():
        print(f"{name:22} {statistics.median(times):6.2f} s  ({', '.join(f'{t:.2f}' for t in times)})")


if __name__ == "__main__":
    main()
