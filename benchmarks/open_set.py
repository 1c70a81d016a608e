"""How well does `--out-of-scope-label` reject the rows of classes that a model has never seen?

    python benchmarks/open_set.py FOLDER [--sets trec emotion] [--draws 2] [--size 2000]

FOLDER is that of benchmarks/quality.py. A fifth of the classes, drawn by the seed, is taken out of the training rows;
their rows are scored beside 1,000 further training rows. Printed: the AUROC of `in_scope` and of the largest
probability alone, the share of known rows that is accepted, and accepted and right, and of the others rejected.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import classify
from benchmarks import quality
from classify.files import read_json
from classify.tables.read import read_table

SETS, LABEL = ("agnews", "banking77", "emotion", "trec"), "out of scope"


def score(folder: Path, name: str, size: str, seed: int) -> dict[str, float]:
    """Train without a fifth of the classes, and return the scores."""
    rows, scored = quality.draw_rows(folder, (name, size, seed), validation=True)
    classes = sorted({label for _, label in rows})
    unknown = set(random.Random(100 + seed).sample(classes, max(1, round(len(classes) / 5))))
    test = [(text, LABEL if label in unknown else label) for text, label in scored]
    test += [(text, LABEL) for text, label in rows if label in unknown][:500]
    with tempfile.TemporaryDirectory() as place:
        quality.write(Path(place) / "train.csv", [row for row in rows if row[1] not in unknown])
        quality.write(Path(place) / "test.csv", test)
        options: dict[str, Any] = {"test_data": f"{place}/test.csv", "out_of_scope_label": LABEL, "seed": seed}
        classify.train(f"{place}/train.csv", output_dir=f"{place}/run", quiet=True, report_to="none", **options)
        found = read_json(Path(place) / "run" / "metrics.json")["in_scope"]
        sure = [largest(Path(place) / "run" / file) for file in ("predictions.csv", "out_of_scope.csv")]
    is_known = np.repeat([1, 0], [len(part) for part in sure])
    plain = float(roc_auc_score(is_known, np.concatenate(sure)))
    return {"probability": plain, **{key: found[key] for key in ("auroc", "accepted", "accuracy", "recall")}}


def largest(file: Path) -> Any:
    """The largest probability of each row (rows,)."""
    table = read_table(str(file))
    columns = [table.column(name) for name in table.columns if name.startswith("prob_")]
    return np.array(columns, dtype=float).max(axis=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--size", default="2000")
    options = parser.parse_args()
    results = []
    for name in options.sets:
        for seed in range(options.draws):
            results.append(score(options.folder, name, options.size, seed))
            print(f"{name:10} {seed}  " + show(results[-1]), flush=True)
    print(f"{'mean':12} " + show({key: float(np.mean([one[key] for one in results])) for key in results[0]}))


def show(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in values.items())


if __name__ == "__main__":
    main()
