"""How many of the first suspects are wrong labels: this program's suspects.csv, and cleanlab on the same probabilities.

    pip install cleanlab
    python benchmarks/label_noise.py --data sst2/train.tsv --rows 2000

A share of the labels is replaced by another class by chance. The run is cross-validated; both rank its out-of-fold
probabilities. Without cleanlab its row is left out.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def main() -> None:
    """Flip labels, train, compare."""
    parser = argparse.ArgumentParser(description="Wrong labels found, beside cleanlab.")
    parser.add_argument("--data", required=True)
    parser.add_argument("--text-column", default="text")
    parser.add_argument("--label-column", default="label")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--flip", type=float, default=0.05)
    parser.add_argument("--preset", default="fast")
    options = parser.parse_args()
    import classify
    from classify.evaluation.suspects_file import find_suspects
    from classify.report.result import Result
    from classify.tables.read import read_table

    table, draw = read_table(options.data), np.random.default_rng(0)
    chosen = np.sort(draw.permutation(len(table))[: options.rows])
    texts, labels = table.take(options.text_column, chosen), table.take(options.label_column, chosen)
    names = sorted(set(labels))
    wrong = np.sort(draw.permutation(len(texts))[: round(options.flip * len(texts))])
    for row in wrong.tolist():
        labels[row] = str(draw.choice([name for name in names if name != labels[row]]))
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "noisy.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "label"), *zip(texts, labels, strict=True)])
        run = classify.train(path, folds=5, preset=options.preset, output_dir=Path(temporary) / "out", report_to="none")
        result = Result.read(run.folder)
        # Rows without a text, say, are left out: the order of predictions.csv is that of the table.
        assert len(result.texts) == len(texts)
    ranked = {"suspects.csv": find_suspects(result.probabilities, result.rows.targets).rows}
    try:
        from cleanlab.filter import find_label_issues
    except ImportError:
        print("cleanlab is not installed")
    else:
        ranked["cleanlab"] = find_label_issues(
            result.rows.targets, result.probabilities, return_indices_ranked_by="normalized_margin"
        )
    for name, rows in ranked.items():
        first = rows[: len(wrong)]
        print(
            f"{name}: {len(rows)} suspects; of the first {len(first)}, {np.isin(first, wrong).mean():.3f} are wrong "
            f"({len(wrong)} of {len(texts)} labels flipped; recall {np.isin(wrong, rows).mean():.3f})"
        )


if __name__ == "__main__":
    main()
