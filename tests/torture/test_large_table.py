"""A table of 100,000 rows: seconds, and little memory."""

from __future__ import annotations

import json
import random
import resource
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from classify.cli import main
from classify.tables.read import read_table
from tests.support import tiny
from tests.support.processes import Process, unlaunched
from tests.support.runs import read_json

pytestmark = pytest.mark.slow

ROWS, STEPS, BATCH = 100_000, 5, 32
# Of a core: many times what it takes, so that only what grows faster than the rows is refused.
SECONDS, MIB = 90, 600


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each text is another one: 4 to 8 words."""
    draw = random.Random(0)
    labels = list(tiny.CLASS_WORDS)
    rows = []
    for number in range(ROWS):
        label = labels[number % len(labels)]
        words = [draw.choice(tiny.CLASS_WORDS[label]), *draw.choices(tiny.WORDS, k=draw.randint(2, 6)), str(number)]
        rows.append((" ".join(words), label))
    return tiny.write_table(tmp_path_factory.mktemp("large") / "large.csv", rows)


def run_and_measure(words: Sequence[str], report: Path) -> int:
    """The program; writes its seconds of a core, and the MiB it took above what the process began with."""
    begin, start = time.process_time(), psutil.Process().memory_info().rss
    code = main(words)
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - start / 2**20
    report.write_text(json.dumps({"seconds": time.process_time() - begin, "MiB": taken}))
    return code


def measured(folder: Path, *words: str) -> dict[str, float]:
    done = Process(run_and_measure, (list(words), folder / "report.json"), folder, unlaunched()).finish()
    assert done.returncode == 0, done.stderr
    return read_json(folder / "report.json")


def test_it_is_trained_on_and_predicted_in_seconds(large: Path, model_folder: Path, tmp_path: Path) -> None:
    flags = f"--cpu --contrastive-steps 0 --report-to none --max-steps {STEPS} --batch-size {BATCH} --output-dir out"
    trained = measured(tmp_path, "train", "--data", str(large), "--model", str(model_folder), *flags.split())
    run, metrics = read_json(tmp_path / "out" / "run.json"), read_json(tmp_path / "out" / "metrics.json")
    (parts,) = [guess["value"] for guess in run["guesses"] if guess["what"] == "split"]
    assert parts == "train 80,000, validation 10,000, test 10,000"
    assert run["data"]["rows"] == ROWS
    assert metrics["train"]["steps"] == STEPS
    assert metrics["train"]["epochs"] == STEPS * BATCH / 80_000
    assert (metrics["eval"]["rows"], metrics["test"]["rows"]) == (10_000, 10_000)
    assert len(read_table(str(tmp_path / "out" / "predictions.csv"))) == 10_000
    predicted = measured(tmp_path, "predict", "--model", "out", "--data", str(large), "--cpu")
    assert len(read_table(str(tmp_path / "predictions.csv"))) == ROWS
    assert trained["seconds"] + predicted["seconds"] < SECONDS, (trained, predicted)
    assert max(trained["MiB"], predicted["MiB"]) < MIB, (trained, predicted)
