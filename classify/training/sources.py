"""Judge the sources of labels that are not trusted, before a run begins: one that does not help is left out.

A source helps where a linear model on the frozen encoder's features scores higher on trusted rows, in cross-validation,
with the source's rows among those that it learns from. That costs a pass over the rows, where training twice would cost
hours; benchmarks/recipe.md compares its verdicts with what fine-tuning gains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.data.sources import Verdict
from classify.data.split_rows import assign_folds, cap_rows
from classify.data.splits import Source, Split
from classify.data.tokenize import TokenizedSplit
from classify.distributed.world import World
from classify.evaluation.inference import compute_logits
from classify.evaluation.metrics import NORMAL_QUANTILE, display_name, wilson_interval
from classify.modeling.classifier import choose_packing
from classify.modeling.precision import for_prediction
from classify.training.inputs import RunInputs, apply_recipe
from classify.training.setup import load_for_training, tokenize_tables

_FOLDS = 5
# Rows of a source that the judge learns from: more take longer, and hardly change its verdict.
_MOST_ROWS = 5_000

# Standard errors of its gain from which a source is kept: a column's must help, and a teacher's must do no harm.
_ERRORS = {False: 1.0, True: -1.0}

Array = npt.NDArray[np.float64]


def judge_sources(inputs: RunInputs, world: World) -> RunInputs:
    """The inputs without the sources that do not help, and with a verdict on each. A collective.

    The largest source is judged first, each beside those that are kept already. Then the recipe chooses again.
    """
    judge = _Judge(inputs, world)  # each rank computes its share of the features
    found = world.broadcast([asdict(verdict) for verdict in judge.compare()] if world.is_main else [])
    verdicts = [Verdict(**values) for values in found]
    kept, splits = {verdict.name for verdict in verdicts if verdict.is_kept}, inputs.splits
    splits = replace(splits, sources=tuple(source for source in splits.sources if source.name in kept))
    return apply_recipe(replace(inputs, splits=splits, verdicts=tuple(verdicts)))


class _Judge:
    """Linear models on the frozen features of trusted rows and of sources.

    Trusted rows are cross-validated. Where a teacher has learned from them all, the validation rows are scored.
    """

    def __init__(self, inputs: RunInputs, world: World):
        self.inputs, self.task, splits = inputs, inputs.task, inputs.splits
        self.train, self.scored, self.folds = splits.train, splits.train, splits.folds
        targets, seed = self.task.targets, inputs.config.training.seed
        if self.folds is None and any(source.is_taught for source in splits.sources):
            self.scored = splits.validation
        elif self.folds is None:
            labels, hashes = targets.stratify_by(splits.train.targets), splits.train.hashes(splits.columns.text)
            self.folds = assign_folds(hashes, labels, _FOLDS, seed=seed)
        self.sources = sorted(splits.sources, key=lambda source: -len(source.split))
        self.chosen = {
            source.name: cap_rows(targets.stratify_by(source.split.targets), _MOST_ROWS, seed=seed)
            for source in self.sources
        }
        self.data = tokenize_tables(inputs)
        classifier = load_for_training(inputs, self.data, world.device)
        classifier.to(world.device)
        classifier.set_precision(for_prediction("auto", world.device))
        choose_packing(classifier, world)

        def compute(split: Split) -> npt.NDArray[np.float32]:
            return compute_logits(classifier, self.data.of(split).tokens, split.rows, world, features=True)

        self.train_features = compute(self.train)
        self.scored_features = self.train_features if self.scored is self.train else compute(self.scored)
        self.features = {source.name: compute(source.split.take(self.chosen[source.name])) for source in self.sources}

    def compare(self) -> list[Verdict]:
        kept, verdicts, before = list[Source](), list[Verdict](), self._score([])
        for source in self.sources:
            score = self._score([*kept, source])
            gain, error = float((score - before).mean()), float((score - before).std()) / np.sqrt(len(score))
            is_kept = self.inputs.config.data.keep_source or gain > error * _ERRORS[source.is_taught]
            verdicts.append(Verdict(
                name=source.name, rows=len(source.split), metric=display_name(self.task.scores.row_metric),
                trusted=len(score), without=float(before.mean()), with_source=float(score.mean()),
                interval=(gain - NORMAL_QUANTILE * error, gain + NORMAL_QUANTILE * error), is_kept=bool(is_kept),
                **self._agreement(source),
            ))  # fmt: skip
            if is_kept:
                kept, before = [*kept, source], score
        return verdicts

    def _score(self, sources: Sequence[Source]) -> Array:
        """The score (rows,) of each trusted row by a linear model of other trusted rows and of `sources`.

        All folds share one penalty, that of all rows.
        """
        head, config, penalty = self.task.head, self.inputs.config.training, None
        probabilities = np.empty((len(self.scored), len(self.task.labels)))
        for fold in [None, *range(0 if self.folds is None else int(self.folds.max()) + 1)]:
            features, rows = self._learned(sources, fold)
            class_weights = head.class_weights(config, rows.targets)
            if fold is None and self.folds is not None:
                penalty = head.choose_penalty(features, rows.targets, class_weights, rows.weights)
                continue
            weight, bias = head.fit(features, rows.targets, penalty, class_weights, rows.weights)
            held_out = slice(None) if self.folds is None else self.folds == fold
            probabilities[held_out] = self.task.answers.probabilities(self.scored_features[held_out] @ weight.T + bias)
        return self.task.scores.row_scores(self.task.answers.decide(probabilities), self.scored.targets)

    def _learned(self, sources: Sequence[Source], fold: int | None) -> tuple[npt.NDArray[np.float32], TokenizedSplit]:
        """The features (rows, width) of the rows that a model learns from, without a fold's, and these rows."""
        places = np.arange(len(self.train)) if fold is None else np.flatnonzero(self.folds != fold)
        splits = [self.train.take(places), *(source.of_fold(fold).take(self.chosen[source.name]) for source in sources)]
        features = [self.train_features[places], *(self.features[source.name] for source in sources)]
        return np.concatenate(features), self.data.join(splits, self.task.targets)

    def _agreement(self, source: Source) -> dict[str, Any]:
        """How often a source labels a text as a trusted row does, with the interval."""
        if source.shared is None or not len(source.shared[0]) or not self.task.answers.has_labels:
            return {"shared": 0, "agreement": None, "agreement_interval": None}
        scores = self.task.scores.row_scores(*source.shared)
        interval = tuple(float(end) for end in wilson_interval(scores.sum(), len(scores)))
        return {"shared": len(scores), "agreement": float(scores.mean()), "agreement_interval": interval}
