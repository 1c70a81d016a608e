"""Judge the sources of labels that are not trusted, before a run begins: one that does not help is left out.

A source helps where a model scores higher on trusted rows, in cross-validation, with the source's rows among those that
it learns from. The model is the run's without epochs: an encoder that steps on pairs of trusted rows have tuned, with a
linear layer. Against a frozen encoder nearly every source would seem to help (benchmarks/recipe.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.data.sources import Verdict
from classify.data.split_rows import assign_folds, cap_rows
from classify.data.splits import Source, Split, Splits
from classify.distributed.world import World
from classify.errors import list_some
from classify.evaluation.inference import compute_logits
from classify.evaluation.metrics import ERRORS, NORMAL_QUANTILE, display_name, wilson_interval
from classify.findings import note
from classify.tasks.base import FitRows
from classify.training.contrastive import contrastive_warmup
from classify.training.inputs import RunInputs, apply_recipe
from classify.training.setup import load_for_training, place_model, tokenize_tables

_FOLDS = 3
# Steps on pairs that tune the encoder for each fold, at most.
_STEPS = 50
# Rows of a source, and trusted ones, that a linear layer learns from: more take longer and hardly change the verdict.
_MOST_ROWS = 2_000
# Standard errors that the gain of a column's source exceeds to be kept; benchmarks/recipe.md has what was compared.
_CONFIDENCE = 1.5

Array = npt.NDArray[np.float64]
Features = npt.NDArray[np.float32]


def judge_sources(inputs: RunInputs, world: World) -> RunInputs:
    """The inputs without the sources that do not help, and with a verdict on each. A collective.

    The largest source is judged first, each beside those that are kept already. Then the recipe chooses again.
    """
    found = world.broadcast(_judged_before(inputs) if world.is_main else None)
    if found is None:
        judge = _Judge(inputs, world)  # each rank computes its share of the features
        found = world.broadcast([asdict(verdict) for verdict in judge.compare()] if world.is_main else None)
    verdicts = [Verdict(**values) for values in found]
    kept, splits = {verdict.name for verdict in verdicts if verdict.is_kept}, inputs.splits
    sources = (source for source in splits.sources if source.name in kept or not source.is_judged)
    splits = replace(splits, sources=tuple(sources))
    known = set() if inputs.kept is None else inputs.kept.known
    if missing := _untrained_labels(splits, known):
        labels = list_some(missing, show=repr)
        splits = replace(splits, findings=(*splits.findings, note(f"no row that is trained on has the label {labels}")))
    return apply_recipe(replace(inputs, splits=splits, verdicts=tuple(verdicts)))


def _untrained_labels(splits: Splits, known: set[str]) -> list[str]:
    counts = np.sum([splits.encoder.label_counts(split.targets) for split in splits.learned], axis=0)
    return [label for label, count in zip(splits.labels, counts, strict=True) if not count and label not in known]


def _judged_before(inputs: RunInputs) -> list[dict[str, Any]] | None:
    """The verdicts of the run that is resumed: on other devices they might differ. None for a new run."""
    names = {source.name for source in inputs.splits.sources if source.is_judged}
    verdicts: list[dict[str, Any]] = inputs.output_dir.recorded.get("label_sources", [])
    return verdicts if {verdict["name"] for verdict in verdicts} == names else None


class _Judge:
    """The features of trusted rows and of sources, by an encoder tuned for each fold, and linear layers on them.

    Trusted rows are cross-validated. Where a teacher has learned from them all, the validation rows are scored.
    """

    def __init__(self, inputs: RunInputs, world: World):
        self.inputs, self.task, splits = inputs, inputs.task, inputs.splits
        judged = (source for source in splits.sources if source.is_judged)
        self.sources = sorted(judged, key=lambda source: -len(source.split))
        self.chosen = [self._sample(source.split) for source in self.sources]
        places = self._sample(splits.train)
        self.train = self.scored = splits.train.take(places)
        self.folds: npt.NDArray[np.int64] | None = None
        if splits.folds is not None:
            self.folds = splits.folds[places]
        elif any(source.is_taught for source in splits.sources):
            self.scored = splits.validation
        else:
            labels, hashes = self.task.targets.stratify_by(self.train.targets), self.train.hashes(splits.columns.text)
            self.folds = assign_folds(hashes, labels, _FOLDS, seed=inputs.config.training.seed)
        self.fold_numbers = [None] if self.folds is None else list(range(int(self.folds.max()) + 1))
        self.data = tokenize_tables(inputs)
        # The settings for trusted rows alone.
        alone = apply_recipe(replace(inputs, splits=replace(splits, sources=())))
        self.steps = min(_STEPS, alone.config.training.contrastive_steps or 0)
        self.strategy, _ = place_model(load_for_training(alone, self.data, world.device), alone, self.data, world)
        self.features = self._compute_features()

    def _sample(self, split: Split) -> npt.NDArray[np.int64]:
        labels = self.task.targets.stratify_by(split.targets)
        return cap_rows(labels, _MOST_ROWS, seed=self.inputs.config.training.seed)

    def _compute_features(self) -> list[tuple[Features, Features, list[Features]]]:
        """For each fold the features (rows, width) of training rows, scored rows, and rows of each source."""
        strategy, features = self.strategy, list[tuple[Features, Features, list[Features]]]()
        strategy.setup()
        initial = {name: tensor.clone() for name, tensor in strategy.state_dict(keep=True)[0].items()}

        def compute(split: Split) -> Features:
            tokens = self.data.of(split).tokens
            return compute_logits(strategy.classifier, tokens, split.rows, strategy.world, features=True)

        for fold in self.fold_numbers:
            if self.steps:
                strategy.setup(initial)
                contrastive_warmup(strategy, self.data.of(self._without(fold)), self.task, self.steps)
            elif features:  # the encoder is the same
                features.append(features[0])
                continue
            train = compute(self.train)
            of_sources = [compute(one.split.take(rows)) for one, rows in zip(self.sources, self.chosen, strict=True)]
            features.append((train, train if self.scored is self.train else compute(self.scored), of_sources))
        return features

    def _without(self, fold: int | None) -> Split:
        return self.train if fold is None else self.train.take(np.flatnonzero(self.folds != fold))

    def compare(self) -> list[Verdict]:
        kept, verdicts, before = list[int](), list[Verdict](), self._score([])
        for number, source in enumerate(self.sources):
            score = self._score([*kept, number])
            gain, error = float((score - before).mean()), float((score - before).std()) / np.sqrt(len(score))
            # A column's source must help, and a teacher's must do no harm.
            is_kept = gain >= -error if source.is_taught else gain > _CONFIDENCE * error
            is_kept = len(source.split) > 0 and (is_kept or self.inputs.config.data.keep_source)
            metric = self.task.scores.row_metric
            sign = -1 if metric in ERRORS else 1  # row scores are larger for better rows
            verdicts.append(Verdict(
                name=source.name, rows=len(source.split), metric=display_name(metric), trusted=len(score),
                without=sign * float(before.mean()), with_source=sign * float(score.mean()), gain=gain,
                interval=(gain - NORMAL_QUANTILE * error, gain + NORMAL_QUANTILE * error), is_kept=bool(is_kept),
                **self._agreement(source),
            ))  # fmt: skip
            if is_kept:
                kept, before = [*kept, number], score
        return verdicts

    def _score(self, numbers: Sequence[int]) -> Array:
        """The score (rows,) of each trusted row by a layer that learns from other trusted rows, and from sources."""
        head, config = self.task.head, self.inputs.config.training
        penalty = head.trained_penalty(is_final=True) if self.steps else None
        probabilities = np.empty((len(self.scored), len(self.task.labels)))
        for fold, (train, scored, of_sources) in zip(self.fold_numbers, self.features, strict=True):
            taken = [self.sources[number].of_fold(fold).take(self.chosen[number]) for number in numbers]
            rows = self.data.join([self._without(fold), *taken], self.task.targets)
            learned, held_out = (slice(None), slice(None)) if fold is None else (self.folds != fold, self.folds == fold)
            features = np.concatenate([train[learned], *(of_sources[number] for number in numbers)])
            fitted = FitRows(features, rows.targets, head.class_weights(config, rows.targets), rows.weights)
            if penalty is None:  # of the first fold for all: logits differ in scale by it
                penalty = head.choose_penalty(fitted)
            weight, bias = head.fit(fitted, penalty)
            probabilities[held_out] = self.task.answers.probabilities(scored[held_out] @ weight.T + bias)
        return self.task.scores.row_scores(self.task.answers.decide(probabilities), self.scored.targets)

    def _agreement(self, source: Source) -> dict[str, Any]:
        """How often a source labels a text as a trusted row does, with the interval."""
        if source.shared is None or not len(source.shared[0]) or not self.task.answers.has_labels:
            return {"shared": 0, "agreement": None, "agreement_interval": None}
        scores = self.task.scores.row_scores(*source.shared)
        interval = tuple(float(end) for end in wilson_interval(scores.sum(), len(scores)))
        return {"shared": len(scores), "agreement": float(scores.mean()), "agreement_interval": interval}
