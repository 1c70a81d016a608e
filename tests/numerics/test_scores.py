"""Scores, the probe's weights and the learning rate against independent computations."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score, log_loss
from sklearn.model_selection import PredefinedSplit, cross_val_score
from transformers import get_scheduler

from classify.config.schema import TrainingConfig
from classify.evaluation import metrics
from classify.evaluation.bootstrap import macro_f1_interval
from classify.tasks import baseline, heads, multi_label, single_label
from classify.tasks.base import FitRows
from classify.tasks.heads import TRAINED_ENCODER_C
from classify.tasks.losses import CrossEntropy, loss_by_chance
from classify.training.optimizer import learning_rate_factor
from classify.training.progress import Progress


@pytest.fixture
def logits() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32) * 3


@pytest.fixture
def targets() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 4, 200)


def test_scores_are_scikit_learns(logits: np.ndarray, targets: np.ndarray) -> None:
    result = single_label.make(["a", "b", "c", "d"]).scores.score(logits, targets, seed=0)
    predicted = logits.argmax(axis=1)
    assert result["accuracy"] == accuracy_score(targets, predicted)
    assert result["macro_f1"] == f1_score(targets, predicted, average="macro")
    assert result["loss"] == pytest.approx(log_loss(targets, metrics.softmax(logits)))
    assert sum(values["support"] for values in result.per_class.values()) == 200


@pytest.mark.parametrize(("right", "rows"), [(20, 20), (0, 20), (1, 1), (0, 1), (10, 12), (900, 1000)])
def test_the_interval_of_accuracy_is_wilsons(right: int, rows: int) -> None:
    """Against the closed form (Wilson, 1927); of few rows it is wide also where all or none are right."""
    z, share = 1.959963984540054, right / rows
    centre = (share + z * z / (2 * rows)) / (1 + z * z / rows)
    half = z * math.sqrt(share * (1 - share) / rows + z * z / (4 * rows * rows)) / (1 + z * z / rows)
    targets = np.zeros(rows, dtype=np.int64)
    logits = np.where(np.arange(rows)[:, None] < right, [[1.0, 0.0]], [[0.0, 1.0]])
    low, high = single_label.make(["a", "b"]).scores.score(logits, targets, seed=0).intervals["accuracy"] or (0, 0)
    assert (low, high) == (pytest.approx(centre - half, abs=1e-9), pytest.approx(centre + half, abs=1e-9))
    assert high - low > 0.03


@pytest.mark.parametrize("right", [True, False])
def test_resamples_that_are_all_alike_give_no_interval_of_macro_f1(right: bool) -> None:
    targets = np.arange(20) % 2
    result = single_label.make(["a", "b"]).scores.score(np.eye(2)[targets if right else 1 - targets], targets, seed=0)
    assert result["macro_f1"] == float(right)
    assert result.as_json()["macro_f1_interval"] is None
    accuracy, f1 = metrics.table(result).splitlines()[-2:]
    assert "95 % CI" in accuracy
    assert "CI" not in f1


def test_an_absent_class_does_not_break_a_score() -> None:
    result = single_label.make(["a", "b", "c"]).scores.score(
        np.eye(3, dtype=np.float32)[[0, 1, 0]], np.array([0, 1, 1]), seed=0
    )
    assert result.per_class["c"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 0}
    assert result["accuracy"] == pytest.approx(2 / 3)


def test_softmax_and_loss_stand_large_logits() -> None:
    logits = np.array([[1e4, 0.0], [-1e4, 0.0]], dtype=np.float32)
    np.testing.assert_array_equal(metrics.softmax(logits), [[1, 0], [0, 1]])
    assert metrics.cross_entropy(logits, np.array([0, 1])) == 0.0
    assert metrics.cross_entropy(logits[:0], np.array([], dtype=np.int64)) == 0.0


@pytest.mark.parametrize("classes", [2, 5])
def test_the_folded_probe_has_the_regressions_probabilities(classes: int) -> None:
    """Two classes become -w/2 and +w/2; the standardization is folded into weights and biases."""
    draw = np.random.default_rng(classes)
    labels = draw.integers(0, classes, 300)
    features = (draw.normal(size=(300, 8)) * draw.uniform(0.01, 20, 8) + 5 + labels[:, None]).astype(np.float32)
    weight, bias = single_label.make("abcde"[:classes]).head.fit(FitRows(features, labels))
    assert weight.shape == (classes, 8)
    mean, scale = features.mean(axis=0, dtype=np.float64), features.std(axis=0, dtype=np.float64) + 1e-6
    standard = ((features - mean) / scale).astype(np.float32)
    own = LogisticRegression(C=heads.choose_c(standard, labels), max_iter=200, tol=1e-3).fit(standard, labels)
    got = metrics.softmax(features.astype(np.float64) @ weight.T + bias)
    np.testing.assert_allclose(got, own.predict_proba(standard), atol=2e-4)
    if classes == 2:
        np.testing.assert_allclose(weight[0], -weight[1])


def test_the_probe_weights_the_rows_of_each_class() -> None:
    """As scikit-learn's class_weight="balanced" does; --class-weights has an effect where no epochs are trained."""
    draw = np.random.default_rng(3)
    labels = draw.choice(3, 200, p=[0.8, 0.15, 0.05])
    features = (draw.normal(size=(200, 6)) + 0.7 * np.eye(6)[labels]).astype(np.float32)
    task, config = single_label.make(["a", "b", "c"]), TrainingConfig(class_weights="balanced")
    weights = task.head.class_weights(config, labels)
    weight, bias = task.head.fit(FitRows(features, labels, weights), task.head.trained_penalty(is_final=True))
    mean, scale = features.mean(axis=0, dtype=np.float64), features.std(axis=0, dtype=np.float64) + 1e-6
    own = LogisticRegression(C=TRAINED_ENCODER_C, class_weight="balanced", tol=1e-6, max_iter=500)
    own.fit((features - mean) / scale, labels)
    got = metrics.softmax(features.astype(np.float64) @ weight.T + bias)
    np.testing.assert_allclose(got, own.predict_proba((features - mean) / scale), atol=2e-3)
    plain = np.add(
        features @ (fit := task.head.fit(FitRows(features, labels), task.head.trained_penalty(is_final=True)))[0].T,
        fit[1],
    )
    assert (plain.argmax(axis=1) == 2).sum() < (got.argmax(axis=1) == 2).sum()


def test_the_rarer_of_two_classes_that_are_alike_is_predicted() -> None:
    """Contrastive steps draw them close; with the penalty of few classes the larger one takes all rows."""
    draw = np.random.default_rng(0)
    labels = np.repeat(np.arange(8), [42, 25, 40, 38, 45, 40, 35, 34])
    centers = 3 * np.eye(8, 40)
    centers[1] = centers[0] + 1.2 * np.eye(8, 40)[1] / 3
    features = (draw.normal(size=(299, 40)) * 0.25 + centers[labels]).astype(np.float32)
    task = single_label.make([str(number) for number in range(8)])
    recalls = []
    for penalty in (TRAINED_ENCODER_C, task.head.trained_penalty(is_final=True)):
        weight, bias = task.head.fit(FitRows(features, labels), penalty)
        recalls.append(((features @ weight.T + bias).argmax(axis=1) == labels)[labels == 1].mean())
    assert recalls[0] < 0.1 < 0.4 < recalls[1], recalls


@pytest.mark.parametrize("value", [1.0, 20.0])
def test_the_probe_of_several_labels_weights_the_rows_with_a_label(value: float) -> None:
    draw = np.random.default_rng(4)
    targets = (draw.random((300, 2)) < [0.05, 0.4]).astype(np.uint8)
    features = (draw.normal(size=(300, 4)) + np.pad(targets, ((0, 0), (0, 2)))).astype(np.float32)
    task = multi_label.make(["a", "b"])
    plain, weighted = (
        np.add(
            features
            @ (fit := task.head.fit(FitRows(features, targets, given), task.head.trained_penalty(is_final=True)))[0].T,
            fit[1],
        )
        for given in (None, np.array([value, 1.0], dtype=np.float32))
    )
    assert ((weighted[:, 0] > 0).sum() > (plain[:, 0] > 0).sum()) == (value > 1)
    np.testing.assert_allclose(weighted[:, 1], plain[:, 1])


@pytest.mark.parametrize(
    ("rule", "metric", "best", "last", "rows", "kept"),
    [
        ("auto", "macro_f1", 0.79, 0.70, 100, "last"),  # a standard error is 0.046
        ("auto", "macro_f1", 0.80, 0.70, 100, "best"),
        ("auto", "accuracy", 0.73, 0.70, 2_000, "best"),
        ("best", "accuracy", 0.71, 0.70, 100, "best"),
        ("last", "macro_f1", 0.99, 0.70, 100, "last"),
        ("auto", "macro_f1", 0.70, 0.70, 100, "last"),
        ("auto", "loss", 0.71, 0.70, 100, "best"),  # no standard error is known of it
    ],
)
def test_weights_before_the_last_are_kept_where_they_are_clearly_better(
    rule: str, metric: str, best: float, last: float, rows: int, kept: str
) -> None:
    scores = {
        name: {"step": step, "epoch": step, "macro_f1": value, "accuracy": value, "loss": 1 - value}
        for step, (name, value) in enumerate({"best": best, "last": last}.items())
    }
    progress = Progress(best=scores["best"], last_eval=scores["last"])
    assert progress.choose_kept(rule, metric, "accuracy", rows) is scores[kept]


@pytest.mark.parametrize(("metric", "best"), [("macro_f1", 3), ("accuracy", 1), ("loss", 2)])
def test_each_score_has_its_best_step(metric: str, best: int) -> None:
    """Of equal ones the lower loss counts; `epochs_without_improvement` is how many came after the best."""
    progress = Progress()
    for macro_f1, accuracy, loss in [(0.5, 0.9, 0.7), (0.4, 0.8, 0.5), (0.6, 0.8, 0.8), (0.6, 0.8, 0.9)]:
        progress.step += 1
        progress.add_score({"macro_f1": macro_f1, "accuracy": accuracy, "loss": loss}, float(progress.step), metric)
    assert progress.best is not None
    assert progress.best["step"] == best
    assert progress.epochs_without_improvement == 4 - best
    assert [progress.is_out_of_patience(patience) for patience in (4 - best, 5 - best, None)] == [True, False, False]


def test_epochs_have_time_to_get_ahead_of_the_start() -> None:
    """Waiting begins with the first epoch, though the start scored better."""
    progress, waited = Progress(), []
    for step, score in enumerate([0.9, 0.5, 0.6, 0.7, 0.95, 0.8]):
        progress.step = step
        progress.add_score({"macro_f1": score, "accuracy": score, "loss": 1 - score}, float(step), "macro_f1")
        waited.append(progress.epochs_without_improvement)
    assert waited == [0, 0, 1, 2, 0, 1]


@pytest.mark.parametrize("noise", [0.0, 0.3, 1.0])
def test_the_probes_strength_is_the_best_of_cross_validation(noise: float) -> None:
    """As scikit-learn finds it by the same folds; the noisier the labels, the stronger the regularization."""
    draw = np.random.default_rng(5)
    labels = draw.integers(0, 3, 120)
    features = draw.normal(size=(120, 16)).astype(np.float32)
    features[:, :3] += 6 * np.eye(3, dtype=np.float32)[labels]
    labels = np.where(draw.random(120) < noise, draw.integers(0, 3, 120), labels)
    fold = np.empty(120, dtype=np.int64)
    fold[np.argsort(labels, kind="stable")] = np.arange(120) % 3
    losses = [
        -cross_val_score(
            LogisticRegression(C=c, max_iter=1_000), features, labels, cv=PredefinedSplit(fold),
            scoring="neg_log_loss",
        ).mean()
        for c in heads.C_VALUES
    ]  # fmt: skip
    chosen = heads.choose_c(features, labels)
    assert chosen == heads.C_VALUES[int(np.argmin(losses))]
    if noise == 1.0:
        assert chosen == min(heads.C_VALUES)
    if noise == 0.0:
        assert chosen == max(heads.C_VALUES)


def test_cross_validation_with_classes_of_one_row() -> None:
    """A class with no row outside a fold has probability zero there; that ends nothing."""
    features = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    assert heads.choose_c(features, np.array([0, 0, 0, 0, 0, 0, 0, 1, 2])) in heads.C_VALUES
    assert heads.choose_c(features[:2], np.array([0, 1])) in heads.C_VALUES


@pytest.mark.parametrize("present", [[0, 2], [1]])
def test_only_classes_of_the_training_part_are_predicted(present: list[int]) -> None:
    draw = np.random.default_rng(0)
    labels = draw.choice(present, 100)
    features = (draw.normal(size=(100, 4)) + labels[:, None]).astype(np.float32)
    weight, bias = single_label.make("abc").head.fit(FitRows(features, labels))
    assert set((features @ weight.T + bias).argmax(axis=1)) == set(present)


@pytest.mark.parametrize(("most", "rows"), [(20_000, 60), (40, 40)])
def test_the_baseline_learns_from_a_part_of_a_large_table(
    most: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baseline, "MAX_ROWS", most)
    texts = [f"the {word} is here {i}" for i in range(30) for word in ("card", "bank")]
    task = single_label.make("ab")
    result = baseline.fit(task, texts, np.array([0, 1] * 30), ["my card", "a bank"], np.array([0, 1]), 0)
    assert (result.metrics, result.rows) == ({"accuracy": 1.0, "macro_f1": 1.0}, rows)


def test_the_interval_of_many_classes_holds_the_true_value() -> None:
    """Percentiles of macro F1 with three rows a class hold it in half of all draws: both means are too low."""
    draw, classes, rows = np.random.default_rng(0), 77, 200

    def answer(targets: Any) -> Any:
        wrong = draw.random(len(targets)) > 0.8
        return np.where(wrong, draw.integers(0, classes, len(targets)), targets)

    many = draw.integers(0, classes, 200_000)
    truth, held = f1_score(many, answer(many), average="macro"), 0
    for seed in range(40):
        targets = draw.integers(0, classes, rows)
        low, high = macro_f1_interval(targets, answer(targets), seed, metrics.INDEPENDENT) or (0.0, 0.0)
        held += low <= truth <= high
    assert held >= 32


@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_the_loss_of_guessing(gamma: float) -> None:
    """That of a model whose outputs are 0, with the weights and the form of the loss that is trained."""
    targets = np.array([0, 1, 1, 2, 2, 2, 2])
    loss = CrossEntropy(0.0, np.array([4.0, 1.0, 0.5], dtype=np.float32), gamma)
    assert loss_by_chance(loss, targets, 3) == pytest.approx(math.log(3) * (2 / 3) ** gamma)
    assert loss_by_chance(CrossEntropy(), targets, 3) == pytest.approx(math.log(3))


def test_learning_rate_rises_and_falls() -> None:
    shape = [learning_rate_factor(step, 20, 0.1) for step in range(20)]
    assert shape[:3] == [0.5, 1.0, 1.0]
    assert shape[-1] == pytest.approx(1 / 18)
    assert all(a >= b for a, b in itertools.pairwise(shape[1:]))
    assert [learning_rate_factor(step, 10, 4) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert learning_rate_factor(0, 5, 0.0) == 1.0
    assert learning_rate_factor(1.4, 20, 0.1) == 1.0  # a step of a time limit
    assert learning_rate_factor(9, 3, 0.5) == 0.0


@pytest.mark.parametrize("warmup", [0, 5])
@pytest.mark.parametrize("name", ["linear", "cosine", "constant_with_warmup", "inverse_sqrt"])
def test_schedules_are_those_of_transformers(name: str, warmup: int) -> None:
    """But for the first step, in which theirs is 0: its rate rises a step later, and this one falls a step later."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=30)
    theirs = []
    for _ in range(30):
        theirs.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    ours = [learning_rate_factor(step, 30, float(warmup), name) for step in range(30)]
    assert ours[:warmup] == pytest.approx([(step + 1) / max(1, warmup) for step in range(warmup)])
    late = 1 if name == "inverse_sqrt" else 0
    assert ours[warmup : 30 - late] == pytest.approx(theirs[warmup + late :])
