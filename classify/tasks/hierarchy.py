"""Labels that are paths, such as `billing > refund > late`: one class per row, and the nodes above it.

The classes are the leaves, trained as single labels are; a node's probability is the sum over the leaves below it.
Simple heads are as good as those that know the tree, if the inference does (Plaud et al., CoNLL 2024, 2410.01305). A
label that is an inner node trains what it says, the sum over its leaves, and is not scored: nobody knows its leaf.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from classify import evaluation, tasks
from classify.config.schema import TrainingConfig
from classify.data.reading import InputTables
from classify.data.soft_labels import SoftLabels
from classify.data.splits import mark_rows
from classify.errors import InputError, list_some
from classify.evaluation.metrics import INDEPENDENT, Array, Sampling, Scores as SplitScores, divide
from classify.evaluation.scored_rows import Threshold, find_threshold
from classify.findings import Finding, decided
from classify.tables.labels import ClassNames
from classify.tables.source import Question, QuestionError
from classify.tables.table import Table
from classify.tasks.base import FitRows, Layer, Loss, Task, Weights
from classify.tasks.single_label import ClassAnswers, ClassHead, ClassScores, ClassTargets

NAME = "hierarchy"
# What stands between the nodes of a path, in the order in which they are looked for.
SIGNS = (">", "::", "/", ":", ".")
# Those that hardly stand in a label by chance, so that one without them may be a leaf beside the branches.
_CLEAR = (">", "::")
# Branches with children from which labels are recognized as paths, where the sign is not clear.
_BRANCHES = 2
# Sum of a row's targets above which they name several leaves; probabilities sum to 1.
_SURELY_SEVERAL = 1.5
# Share of labels without a weak sign up to which that is a question, and signs of names that are no paths.
_FEW_OTHERS = 0.2
_NO_PATHS = ("//", "@", "->")
# Rounds in which the rows of inner nodes are given to the leaves that the others make likely.
_ROUNDS = 2

Path = tuple[str, ...]


def _nodes_above(paths: Iterable[Path]) -> list[Path]:
    return [path[:depth] for path in paths for depth in range(1, len(path))]


def split_path(label: str, sign: str) -> Path:
    return tuple(part.strip() for part in label.split(sign))


@dataclass(frozen=True, eq=False)
class Tree:
    """The paths of the leaves, in the order of the classes, and of all nodes above them.

    `written` are the labels of rows that are nodes, by their path; other nodes are named by their parts.
    """

    sign: str
    leaves: tuple[Path, ...]
    written: Mapping[Path, str] = field(default_factory=dict)

    @classmethod
    def of(cls, labels: Iterable[str], sign: str) -> Tree:
        """The tree of labels, of which those above others are inner nodes."""
        written = {split_path(label, sign): label for label in labels}
        above = _nodes_above(written)
        return cls(sign, tuple(path for path in written if path not in above), written)

    @functools.cached_property
    def inner(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(_nodes_above(self.leaves)))

    @functools.cached_property
    def inner_names(self) -> list[str]:
        return list(map(self.name, self.inner))

    @functools.cached_property
    def depths(self) -> npt.NDArray[np.int64]:
        """(leaves,) the number of nodes on the path of each."""
        return np.array(list(map(len, self.leaves)), dtype=np.int64)

    @functools.cached_property
    def levels(self) -> list[tuple[list[str], npt.NDArray[np.int64]]]:
        """For each level from the top the names of its nodes, and the node (leaves,) that each leaf is below, or is.

        A leaf above a level stands for itself there.
        """
        found = []
        for depth in range(1, int(self.depths.max()) + 1):
            paths = [path[:depth] for path in self.leaves]
            numbers = {path: number for number, path in enumerate(dict.fromkeys(paths))}
            names = [self.name(path) for path in numbers]
            found.append((names, np.array([numbers[path] for path in paths], dtype=np.int64)))
        return found

    def name(self, path: Path) -> str:
        """A node as it is written in the table, or as its parts would be."""
        joined = f" {self.sign} ".join(path) if self.sign.strip() == ">" else self.sign.join(path)
        return self.written.get(path, joined)

    @functools.cached_property
    def members(self) -> npt.NDArray[np.float32]:
        """(leaves + inner nodes, leaves) 1 for the leaves that a label may mean."""
        below = [[leaf[: len(path)] == path for leaf in self.leaves] for path in self.inner]
        every = np.concatenate([np.eye(len(self.leaves)), np.array(below).reshape(-1, len(self.leaves))])
        return every.astype(np.float32)

    def shared(self, first: Array, second: Array) -> npt.NDArray[np.int64]:
        """How many nodes, from the top, the paths of two leaves have in common; elementwise."""
        count = np.zeros(np.broadcast_shapes(first.shape, second.shape), dtype=np.int64)
        for depth, (_, node) in enumerate(self.levels, start=1):
            is_real = (self.depths[first] >= depth) & (self.depths[second] >= depth)
            count += (node[first] == node[second]) & is_real
        return count


@dataclass(frozen=True, eq=False)
class PathTargets(ClassTargets):
    """Leaf numbers (rows,), -1 for a row without a leaf; (rows, leaves) are 1 for each leaf that a row may have."""

    are_extended = False

    tree: Tree = field(default_factory=lambda: Tree(SIGNS[0], ()))

    def labelled(self, table: Table, column: str) -> npt.NDArray[np.bool_]:
        inner = set(self.tree.inner_names)
        return mark_rows(table, column, lambda cell: (name := self.classes.of(cell)) is not None and name not in inner)

    def encode(self, table: Table, column: str, known_from: str) -> npt.NDArray[np.int64]:
        numbers = self._number(table, column, known_from)
        return np.where(numbers < len(self.labels), numbers, -1)

    def partial(self, table: Table, column: str) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float32]]:
        numbers = self._number(table, column, "--data")
        is_inner = numbers >= len(self.labels)
        return is_inner, self.tree.members[numbers[is_inner]]

    def _number(self, table: Table, column: str, known_from: str) -> npt.NDArray[np.int64]:
        """The leaf of each row, or behind all leaves its inner node; -1 without a label."""
        everything = replace(self, labels=[*self.labels, *self.tree.inner_names])
        return ClassTargets.encode(everything, table, column, known_from)

    def soften(self, targets: Array, soft: SoftLabels) -> Array:
        if (targets < 0).any() and any(path in self.tree.written for path in self.tree.inner):
            raise InputError("some labels are inner nodes of a hierarchy, which have no probabilities; drop the flag.")
        return super().soften(targets, soft)

    def stratify_by(self, targets: Array) -> npt.NDArray[np.int64]:
        """The leaf, or behind all leaves the inner node."""
        if targets.ndim == 1:
            return super().stratify_by(targets)
        # A node is told by its first leaf and their number.
        members = self.tree.members[len(self.labels) :]
        known = {(int(row.argmax()), int(row.sum())): place for place, row in enumerate(members, len(self.labels))}
        sizes = np.where(_are_sets(targets), targets.sum(axis=1), 1).round().astype(int)
        keys = zip(targets.argmax(axis=1).tolist(), sizes.tolist(), strict=True)
        return np.array([known.get(key, key[0]) if key[1] > 1 else key[0] for key in keys], dtype=np.int64)

    def label_counts(self, targets: Array) -> npt.NDArray[np.int64]:
        return super().label_counts(targets if targets.ndim == 1 else targets[~_are_sets(targets)])

    def similarity(self, targets: Array) -> npt.NDArray[np.float32]:
        """That of classes: the share of a path in common makes leaves hard to tell apart (benchmarks/recipe.md).

        A row of an inner node has the cosine with its leaves.
        """
        found = super().similarity(targets)
        if targets.ndim > 1 and (is_inner := _are_sets(targets)).any():
            unit = targets / np.linalg.norm(targets, axis=1, keepdims=True)
            found = np.where(is_inner[:, None] | is_inner[None, :], unit @ unit.T, found).astype(np.float32)
        return found

    def settings(self) -> dict[str, Any]:
        written = [self.tree.written[path] for path in self.tree.inner if path in self.tree.written]
        return {**super().settings(), "hierarchy": {"separator": self.tree.sign, "inner": written}}


def _are_sets(targets: Array) -> npt.NDArray[np.bool_]:
    """Whether targets (rows, leaves) are 1 for several leaves, as those of inner nodes, and no probabilities."""
    return np.asarray(targets.sum(axis=1) > _SURELY_SEVERAL)


class PathHead(ClassHead):
    """An output per leaf, trained by cross-entropy of the label's leaves together."""

    def balance(self, targets: Array) -> Weights:
        return super().balance(targets if targets.ndim == 1 else targets[~_are_sets(targets)])

    def choose_standard(self, rows: FitRows) -> float:
        """On the rows of leaves alone."""
        return super().choose_standard(rows if rows.targets.ndim == 1 else rows.take(~_are_sets(rows.targets)))

    def loss(self, config: TrainingConfig, targets: Array) -> Loss:
        if targets.ndim == 1:
            return super().loss(config, targets)
        gamma = tasks.losses.FOCAL_GAMMA if config.loss == "focal" else 0.0
        weights = self.class_weights(config, targets)
        return tasks.losses.MarginalCrossEntropy(config.label_smoothing_factor, weights, gamma)

    def fit_standard(self, rows: FitRows, penalty: float | None) -> Layer:
        """Fit the rows of leaves, then all: a row of an inner node is one of each of its leaves, in shares."""
        is_inner = np.zeros(len(rows.targets), dtype=bool) if rows.targets.ndim == 1 else _are_sets(rows.targets)
        if not is_inner.any() or is_inner.all():
            return super().fit_standard(rows, penalty)
        inner, shares = rows.take(is_inner), rows.targets.astype(np.float32)
        layer = super().fit_standard(rows.take(~is_inner), penalty)
        for _ in range(_ROUNDS):
            likely = evaluation.metrics.softmax(inner.features @ layer[0].T + layer[1]) * inner.targets
            shares[is_inner] = likely / np.maximum(likely.sum(axis=1, keepdims=True), 1e-9)
            layer = super().fit_standard(rows._replace(targets=shares), penalty)
        return layer


@dataclass(frozen=True, eq=False)
class PathAnswers(ClassAnswers):
    """The most probable leaf; where a precision is asked for, the deepest node that is probable enough."""

    accepted_columns = ("accepted", "accepted_label")
    sections = tuple(name for one in ClassAnswers.sections for name in ((one, "levels") if one == "scores" else (one,)))

    tree: Tree = field(default_factory=lambda: Tree(SIGNS[0], ()))

    def top_nodes(self) -> tuple[list[str], npt.NDArray[np.int64]]:
        return self.tree.levels[0]

    def of_level(self, probabilities: Array, depth: int) -> npt.NDArray[np.float64]:
        """The probabilities (rows, nodes) of the nodes of a level, from 1: sums over the leaves below them."""
        names, node = self.tree.levels[depth - 1]
        summed = np.zeros((len(probabilities), len(names)))
        np.add.at(summed.T, node, probabilities.T)
        return summed

    def find_threshold(self, probabilities: Array, targets: Array, precision: float) -> Threshold | None:
        """The confidence from which the deepest nodes that have it are right so often.

        A row is accepted as soon as its first node has it: a lower confidence accepts more rows, and some deeper.
        """
        levels = list[tuple[Array, Array]]()
        for depth, (_, node) in enumerate(self.tree.levels, start=1):
            level = self.of_level(probabilities, depth)
            levels.append((level.max(axis=1), level.argmax(axis=1) == node[targets]))

        def right_at(required: float) -> npt.NDArray[np.bool_]:
            right = np.zeros(len(targets), dtype=bool)
            for confidence, hits in levels:
                is_sure = confidence >= required
                right[is_sure] = hits[is_sure]
            return right

        return find_threshold(levels[0][0], np.zeros(len(targets)), precision, right_at)

    def accept(self, probabilities: Array, least: float) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64]]:
        """The deepest node (rows,) whose probability is `least`, and that probability."""
        names, shares = np.full(len(probabilities), "", dtype=object), np.zeros(len(probabilities))
        for depth, (nodes, _) in enumerate(self.tree.levels, start=1):
            level = self.of_level(probabilities, depth)
            is_sure = level.max(axis=1) >= least
            names[is_sure] = np.array(nodes, dtype=object)[level[is_sure].argmax(axis=1)]
            shares[is_sure] = level[is_sure].max(axis=1)
        return names, shares


@dataclass(frozen=True, eq=False)
class PathScores(ClassScores):
    """Accuracy and F1 of leaves, of the nodes of each level, and the hierarchical F1."""

    answers: PathAnswers

    @property
    def selection(self) -> tuple[str, ...]:
        return (*super().selection, "hierarchical_f1")

    def with_labels(self, labels: Sequence[str]) -> Self:
        answers = replace(self.answers, labels=list(labels), tree=_grow(self.answers.tree, labels))
        return replace(self, labels=list(labels), answers=answers)

    def metrics(self, predicted: Array, targets: Array) -> dict[str, Any]:
        """Those of classes, and the F1 of all nodes on the paths (Kiritchenko et al., 2006)."""
        tree = self.answers.tree
        shared = tree.shared(predicted, targets).sum()
        total = tree.depths[predicted].sum() + tree.depths[targets].sum()
        return {**super().metrics(predicted, targets), "hierarchical_f1": float(2 * shared / max(1, total))}

    def score(
        self, logits: Array, targets: Array, seed: int, predicted: Array | None = None, sampling: Sampling = INDEPENDENT
    ) -> SplitScores:
        """`levels` has for each level how many nodes it has, accuracy and macro F1 of its most probable node."""
        scores, levels = super().score(logits, targets, seed, predicted, sampling), []
        probabilities = self.answers.probabilities(logits)
        for depth, (names, node) in enumerate(self.answers.tree.levels, start=1):
            best, truth = self.answers.of_level(probabilities, depth).argmax(axis=1), node[targets]
            right, guessed, rows = (
                np.bincount(values, minlength=len(names)) for values in (best[best == truth], best, truth)
            )
            f1 = divide(2.0 * right, (guessed + rows).astype(np.float64))[guessed + rows > 0]
            accuracy = float((best == truth).mean())
            levels.append({"level": depth, "nodes": len(names), "accuracy": accuracy, "macro_f1": float(f1.mean())})
        return replace(scores, levels=tuple(levels))


def make(labels: Sequence[str], tree: Tree, classes: ClassNames, findings: Sequence[Finding] = ()) -> Task:
    names = list(labels)
    answers = PathAnswers(names, tree=tree)
    targets = PathTargets(names, classes, tuple(findings), tree=tree)
    return Task(NAME, targets, PathHead(names), PathScores(names, answers), answers)


def from_classes(task: Task, tables: InputTables) -> Task | None:
    """The task of these classes where they are paths; None where they are not, or with --hierarchy none.

    With --task single they are plain classes, unless --hierarchy is given. Raises InputError where that is given and
    they are none, and QuestionError where that is doubtful.
    """
    config, labels, is_given = tables.config, task.labels, tables.config.hierarchy == "on"
    if not is_given and (config.hierarchy == "none" or config.task == "single"):
        return None
    sign: str | Question | None = config.label_separator if is_given else None
    sign = sign or find_sign(labels)
    if isinstance(sign, Question):
        raise QuestionError(tables.train.path, [sign])
    if sign is None and is_given:
        listed = list_some(labels, show=repr)
        raise InputError(
            f"--hierarchy: expected labels such as 'billing > refund', whose nodes one sign separates. Got {listed}; "
            "name the sign with --label-separator."
        )
    if sign is None or ((fault := _find_fault(labels, sign)) is not None and not is_given):
        return None
    if fault is not None:
        where = f"{tables.train.path}: column {tables.columns.label!r}"
        raise InputError(f"{where}: {fault}; correct it, or give --hierarchy none.")
    tree = Tree.of(labels, sign)
    leaves = [label for label in labels if split_path(label, sign) in tree.leaves]
    inner = [label for label in labels if label not in leaves]
    tree = _grow(tree, leaves)
    sizes = ", ".join(str(len(names)) for names, _ in tree.levels)
    what = f"{len(leaves)} leaves, by level {sizes} nodes"
    if inner:
        what += f"; rows of {list_some(inner, show=repr)} are not scored, but train towards the leaves below"
    why = f"nodes are separated by {sign!r}" if is_given else f"branches recur before {sign!r}"
    found = decided("hierarchy", what, why, "--hierarchy none", True)
    classes = f"one of {len(leaves)} classes"
    findings = [replace(one, text=classes) if one.where == "task" else one for one in task.targets.findings]
    return make(leaves, tree, task.targets.classes, [*findings, found])


def find_sign(labels: Sequence[str]) -> str | Question | None:
    """The sign that separates the nodes of labels; None where they are no paths.

    Two branches (of a clear sign one) have several labels, and every label has it or is a branch. Where nearly all have
    it, and it may be part of a name, it is a question. A sign that may stand in names has no space beside it, and
    letters in all parts.
    """
    if any(mark in label for label in labels for mark in _NO_PATHS):
        return None
    for sign in SIGNS:
        paths = {label: split_path(label, sign) for label in labels}
        parts = [part for label in labels for part in label.split(sign)]
        if sign not in _CLEAR and not all(part == part.strip() and any(map(str.isalpha, part)) for part in parts):
            continue
        children: dict[str, set[Path]] = {}
        for path in paths.values():
            if len(path) > 1:
                children.setdefault(path[0], set()).add(path)
        branches = sum(len(below) > 1 for below in children.values())
        if branches < (1 if sign in _CLEAR else _BRANCHES):
            continue
        others = [label for label, path in paths.items() if len(path) == 1 and path[0] not in children]
        if not others or sign in _CLEAR:
            return sign
        if len(others) <= _FEW_OTHERS * len(labels):
            example = next(label for label, path in paths.items() if len(path) > 1)
            asked = f"is the label {example!r} a path of nodes, beside {others[0]!r}"
            return Question(asked, (), (f"--hierarchy --label-separator {sign!r}", "--hierarchy none"))
    return None


def _find_fault(labels: Sequence[str], sign: str) -> str | None:
    """What keeps labels from being paths: an empty node, or two nodes that are above each other."""
    above: dict[tuple[str, str], str] = {}
    for label in labels:
        path = split_path(label, sign)
        if not all(path):
            return f"the label {label!r} has an empty node"
        above |= {pair: label for pair in itertools.pairwise(path) if pair[0] != pair[1]}
    for (parent, child), label in above.items():
        if (other := above.get((child, parent))) is not None:
            return f"{label!r} and {other!r} put two nodes above each other"
    return None


def _grow(tree: Tree, labels: Sequence[str]) -> Tree:
    """The tree with these leaves, in order."""
    return replace(tree, leaves=tuple(split_path(label, tree.sign) for label in labels))


def from_settings(labels: Sequence[str], settings: Mapping[str, Any]) -> Task:
    sign, names = settings["hierarchy"]["separator"], [*labels, *settings["hierarchy"]["inner"]]
    tree = _grow(Tree(sign, (), {split_path(name, sign): name for name in names}), labels)
    return make(labels, tree, ClassNames.from_settings(names, settings))
