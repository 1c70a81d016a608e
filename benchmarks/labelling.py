"""Does the order of `classify suggest` teach more than rows at random?

    python benchmarks/labelling.py FOLDER [--sets trec sst2] [--draws 5]

FOLDER is that of benchmarks/quality.py. 2,000 training rows of each set are a pool: 100 at random have labels, then 5
times 50 more get theirs: those that `certainty` puts first, or for comparison others at random. The model is a logistic
regression on the frozen default encoder, so that hundreds of rounds take minutes. Printed: the difference in accuracy
on 1,000 further training rows, of the mean of the five rounds and of the last one, with 95 % intervals over all draws.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import classify
from benchmarks import quality
from classify.evaluation.inference import compute_logits
from classify.prediction.predictor import load_classifier
from classify.tasks import single_label

SETS = ("agnews", "banking77", "emotion", "irony", "sst2", "sst5", "trec")
FIRST, ROUNDS, MORE = 100, 5, 50


def compute_features(folder: Path, name: str) -> tuple[Any, Any, Any, Any]:
    """Unit features and labels of a set's pool, and of the rows to score on."""
    pool, scored = quality.draw_rows(folder, (name, "2000", 0), validation=True)
    with tempfile.TemporaryDirectory() as place:
        quality.write(Path(place) / "few.csv", pool[:400])
        classify.train(f"{place}/few.csv", preset="fast", output_dir=f"{place}/run", quiet=True).close()
        with load_classifier(f"{place}/run") as predictor:
            features = [encode(predictor, [text for text, _ in rows]) for rows in (pool, scored)]
    labels = [np.array([label for _, label in rows]) for rows in (pool, scored)]
    return features[0], labels[0], features[1], labels[1]


def encode(predictor: Any, texts: list[str]) -> Any:
    """The frozen encoder's features (len(texts), width), of length 1."""
    tokens = predictor.tokenize(texts)
    predictor.outputs(texts[:1])  # moves the model to its device
    features = compute_logits(predictor.classifier, tokens, np.arange(len(texts)), predictor.world, features=True)
    return features / np.linalg.norm(features, axis=1, keepdims=True)


def simulate(features: Any, labels: Any, scored: Any, targets: Any, seed: int, *, ranked: bool) -> list[float]:
    """Accuracy after each round."""
    generator, accuracies = np.random.default_rng(seed), list[float]()
    known = generator.choice(len(features), FIRST, replace=False)
    for number in range(ROUNDS + 1):
        model = LogisticRegression(C=10, max_iter=200).fit(features[known], labels[known])
        if number:
            accuracies.append(float((model.predict(scored) == targets).mean()))
        rest = np.setdiff1d(np.arange(len(features)), known)
        if ranked:
            certainty = single_label.make(list(model.classes_)).answers.certainty(model.predict_proba(features[rest]))
            more = rest[np.argsort(certainty, kind="stable")[:MORE]]
        else:
            more = generator.choice(rest, MORE, replace=False)
        known = np.concatenate([known, more])
    return accuracies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--draws", type=int, default=5)
    options = parser.parse_args()
    differences: list[Any] = []
    for name in options.sets:
        data = compute_features(options.folder, name)
        own = []
        for seed in range(options.draws):
            ranked, drawn = (np.array(simulate(*data, seed, ranked=choice)) for choice in (True, False))
            own.append(ranked - drawn)
        print(f"{name:10} mean of the rounds {np.mean(own):+.3f}, last {np.mean(own, axis=0)[-1]:+.3f}", flush=True)
        differences += own
    for name, values in (("mean", np.mean(differences, axis=1)), ("last", np.array(differences)[:, -1])):
        print(f"{name:10} {values.mean():+.4f} +- {1.96 * values.std(ddof=1) / len(values) ** 0.5:.4f}")


if __name__ == "__main__":
    main()
