"""Labels that are paths, such as `billing > refund`: leaves are classes, and a node is as probable as its leaves."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import classify
from classify.cli import main
from classify.config.schema import TrainingConfig
from classify.errors import InputError
from classify.report.result import Result
from classify.tables.labels import ClassNames
from classify.tables.source import Question, QuestionError
from classify.tasks import hierarchy, single_label
from classify.tasks.base import FitRows
from classify.tasks.hierarchy import Tree, find_sign
from classify.tasks.losses import CrossEntropy, MarginalCrossEntropy
from classify.training.inputs import check
from classify.training.run import train
from tests.support.runs import make_config, read_json
from tests.support.tasks import words_of

LEAVES = ["billing > charge", "billing > refund > late", "billing > refund > lost", "other"]
TREE = Tree.of([*LEAVES, "billing"], ">")


def make_task() -> Any:
    return hierarchy.make(LEAVES, TREE, ClassNames())


@pytest.mark.parametrize(
    ("labels", "sign"),
    [
        (["billing > refund", "billing > charge", "shipping > late", "shipping > lost"], ">"),
        (["billing > refund", "billing > charge", "shipping > late", "shipping > lost", "billing", "other"], ">"),
        (["LOC:city", "LOC:state", "NUM:date", "NUM:count", "ABBR:exp"], ":"),
        (["comp.graphics", "comp.sys.mac", "rec.autos", "rec.sport", "sci.med"], "."),
        (["World", "Sports", "Business", "Sci/Tech"], None),
        (["a.b", "c.d", "e.f"], None),
        (["1.5", "1.6", "2.5", "2.6"], None),
        (["07:30", "07:45", "08:30", "08:45"], None),
        (["A::x", "A::y", "B"], "::"),
        (["A/x", "A/y", "B"], None),
        (["A > x", "B"], None),
        (["Games > 18", "Games > Kids", "Food > Fruit", "Food > Veg"], ">"),
        (["J. Smith", "J. Doe", "A. Poe", "A. Bell"], None),
        (["https://a.com/x", "https://a.com/y", "http://b.com/x", "http://b.com/y"], None),
        (["AB.12", "AB.13", "CD.12", "CD.14"], None),
        (["yes/no", "yes", "no"], None),
    ],
)
def test_paths_are_found_where_branches_recur(labels: list[str], sign: str | None) -> None:
    assert find_sign(labels) == sign


def test_what_may_be_a_name_is_asked() -> None:
    asked = find_sign(["comp.graphics", "comp.mac", "comp.win", "rec.autos", "rec.sport", "misc"])
    assert isinstance(asked, Question)
    assert "'misc'" in asked.text


def test_a_node_is_as_probable_as_its_leaves() -> None:
    probabilities = np.array([[0.1, 0.4, 0.3, 0.2], [0.7, 0.1, 0.1, 0.1]])
    answers = make_task().answers
    assert TREE.levels[0][0] == ["billing", "other"]
    assert TREE.levels[1][0] == ["billing > charge", "billing > refund", "other"]
    np.testing.assert_allclose(answers.of_level(probabilities, 1), [[0.8, 0.2], [0.9, 0.1]])
    np.testing.assert_allclose(answers.of_level(probabilities, 2), [[0.1, 0.7, 0.2], [0.7, 0.2, 0.1]])
    names, shares = answers.accept(probabilities, 0.6)
    assert names.tolist() == ["billing > refund", "billing > charge"]
    np.testing.assert_allclose(shares, [0.7, 0.7])
    assert answers.accept(probabilities, 0.95)[0].tolist() == ["", ""]
    assert answers.accept(probabilities, 0.75)[0].tolist() == ["billing", "billing"]


def test_scores_count_the_nodes_of_both_paths() -> None:
    task, targets = make_task(), np.array([1, 2, 0, 3])
    predicted = np.array([2, 2, 3, 3])
    # Paths of 3, 3, 2 and 1 nodes against 3, 3, 1 and 1; common are 2, 3, 0 and 1.
    assert task.scores.metrics(predicted, targets)["hierarchical_f1"] == pytest.approx(2 * 6 / 17)
    logits = np.log(np.array([[0.1, 0.3, 0.5, 0.1], [0.3, 0.3, 0.2, 0.2], [0.5, 0.2, 0.2, 0.1], [0.1, 0.1, 0.1, 0.7]]))
    levels = task.scores.score(logits.astype(np.float32), targets, 0).levels
    assert [one["nodes"] for one in levels] == [2, 3, 4]
    # The second row's leaf is wrong, its parent is right: its two leaves together are the most probable.
    assert [one["accuracy"] for one in levels] == [1.0, 1.0, 0.5]


def test_rows_of_an_inner_node_are_like_those_of_its_leaves() -> None:
    task = make_task()
    rows = np.concatenate([np.eye(4), [[1, 1, 1, 0]], [[0, 1, 1, 0]]]).astype(np.float32)
    three, two, both = 3**-0.5, 2**-0.5, 2 / 6**0.5
    expected = np.eye(6)
    expected[4, :3] = expected[:3, 4] = three
    expected[5, 1:3] = expected[1:3, 5] = two
    expected[4, 5] = expected[5, 4] = both
    np.testing.assert_allclose(task.targets.similarity(rows), expected, rtol=1e-6)
    np.testing.assert_allclose(task.targets.similarity(np.arange(4)), np.eye(4))


def test_an_inner_node_trains_the_sum_over_its_leaves() -> None:
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    targets = torch.tensor([[1.0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]])
    loss = MarginalCrossEntropy().loss_sum(logits, torch.cat([targets]))
    probabilities = logits.softmax(dim=1)
    expected = -(probabilities * targets).sum(dim=1).log().sum()
    torch.testing.assert_close(loss, expected)
    one_hot = torch.eye(4)[[2, 0, 3]]
    classes = torch.tensor([2, 0, 3])
    for smoothing in (0.0, 0.1):
        torch.testing.assert_close(
            MarginalCrossEntropy(smoothing).loss_sum(logits, one_hot), CrossEntropy(smoothing).loss_sum(logits, classes)
        )
    padded = torch.cat([targets, torch.zeros(1, 4)])
    more = torch.cat([logits, torch.ones(1, 4)])
    torch.testing.assert_close(MarginalCrossEntropy().loss_sum(more, padded), loss)
    loss.backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    # Within the leaves that a row may have nothing says which.
    grad, share = logits.grad[0], probabilities[0].detach()
    torch.testing.assert_close(grad[:3] / share[:3], (grad[0] / share[0]).expand(3))


def test_the_head_gives_rows_of_inner_nodes_to_likely_leaves() -> None:
    draw = np.random.default_rng(0)
    middles = np.array([[3, 0, 0], [0, 3, 0], [0, 0, 3], [-3, -3, -3]])
    classes = np.repeat(np.arange(4), 30)
    features = (middles[classes] + draw.normal(size=(120, 3))).astype(np.float32)
    aims = np.eye(4, dtype=np.float32)[classes]
    aims[(classes == 1) & (draw.random(120) < 0.6)] = [0, 1, 1, 0]
    task = make_task()
    weight, bias = task.head.fit(FitRows(features, aims), 0.1)
    assert ((features @ weight.T + bias).argmax(axis=1) == classes).mean() > 0.95


def test_a_precision_is_reached_by_nodes_together() -> None:
    """Leaves cannot be told apart in half of the rows; their parent can."""
    draw = np.random.default_rng(0)
    targets = draw.integers(0, 4, 2000)
    logits = 8 * np.eye(4)[targets]
    unclear = (targets < 3) & (draw.random(2000) < 0.5)
    logits[unclear] = [4, 4, 4, 0]
    logits += draw.normal(size=logits.shape)
    task = make_task()
    probabilities = task.answers.probabilities(logits)
    found = task.answers.find_threshold(probabilities, targets, 0.95)
    flat = single_label.make(LEAVES).answers.find_threshold(probabilities, targets, 0.95)
    assert found is not None
    assert flat is not None
    assert found.accepted > flat.accepted + 500
    assert found.right / found.accepted > 0.95
    names, _ = task.answers.accept(probabilities, found.confidence)
    assert (names != "").sum() == found.accepted
    right = [LEAVES[target].startswith(name) for target, name in zip(targets, names, strict=True) if name]
    assert sum(right) == found.right


def write(path: Path, labels: list[str], count: int = 120) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for number in range(count):
            label = labels[number % len(labels)]
            words = {"billing": "card stolen", "shipping": "money transfer", "other": "app phone"}
            leaves = {"refund": "pin", "charge": "code", "late": "login", "lost": "screen"}
            nodes = label.split(" > ")
            text = f"{words[nodes[0]]} {leaves.get(nodes[-1], '')} {words_of(number, [])} {number}"
            writer.writerow([text, label])
    return path


LABELS = ["billing > refund", "billing > charge", "shipping > late", "shipping > lost", "billing", "other"]


@pytest.fixture(scope="module")
def run(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hierarchy")
    table = write(folder / "my.csv", LABELS, 240)
    options: dict[str, Any] = {"folds": 0, "contrastive_steps": 3, "num_train_epochs": 6.0}
    return train(make_config(model_folder, table, folder / "run", **options))


def test_a_run_has_levels_and_learns_from_inner_nodes(run: Path) -> None:
    metrics = read_json(run / "metrics.json")
    assert metrics["task"] == "hierarchy"
    assert [one["nodes"] for one in metrics["test"]["levels"]] == [3, 5]
    assert {"hierarchical_f1", "accuracy"} <= set(metrics["test"])
    with (run / "predictions.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == metrics["test"]["rows"] == 20
    assert not any(row["label"] == "billing" for row in rows)
    assert "prob_billing" not in rows[0]
    assert "prob_billing > refund" in rows[0]
    # 160 rows of leaves, and 40 of an inner node.
    assert metrics["train"]["epochs"] == 6
    assert round(metrics["train"]["rows_per_second"] * metrics["train"]["seconds"]) == 6 * 200
    assert not list(run.glob("unlabelled*.csv"))
    guesses = {one["what"]: one["value"] for one in read_json(run / "run.json")["guesses"]}
    assert guesses["hierarchy"].startswith("5 leaves, by level 3, 5 nodes; rows of 'billing' are not scored")
    assert read_json(run / "classify.json")["hierarchy"] == {"separator": ">", "inner": ["billing"]}


def test_what_a_text_is_about_is_said_as_deep_as_it_is_sure(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, out = write(tmp_path / "new.csv", LABELS), tmp_path / "out.csv"
    words = ["predict", "--model", str(run), "--data", str(table), "--out", str(out), "--cpu", "--overwrite"]
    assert main([*words, "--min-confidence", "0.6"]) == 0
    with out.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        label, path = row["accepted_label"], row["predicted_label"]
        assert row["accepted"] == ("true" if label else "false")
        leaves = [name for name in row if name.startswith(f"prob_{label}")]
        assert not label or sum(float(row[name]) for name in leaves) >= 0.6 - 1e-6
        assert float(row["confidence"]) < 0.6 or label == path
    assert (
        main(["evaluate", "--model", str(run), "--data", str(table), "--output-dir", str(tmp_path / "e"), "--cpu"]) == 0
    )
    assert "level 1 (3 nodes)" in capsys.readouterr().out
    assert read_json(tmp_path / "e" / "metrics.json")["test"]["rows"] == 100
    with classify.load(run, use_cpu=True) as model:
        assert set(model.predict(["stolen card pin"])) <= set(LABELS) - {"billing"}


def test_a_server_answers_with_the_deepest_sure_node(run: Path) -> None:
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    from classify.prediction.predictor import load_classifier
    from classify.serving.app import describe

    with load_classifier(str(run), use_cpu=True) as model:
        probabilities = np.full((1, 5), 0.05, dtype=np.float32)
        probabilities[0, [model.labels.index("billing > refund"), model.labels.index("billing > charge")]] = 0.45, 0.4
        unsure, sure = (describe(model, probabilities, None, least)[0].model_dump() for least in (0.9, 0.6))
    assert (unsure["accepted"], unsure["accepted_label"]) == (False, None)
    assert (sure["accepted"], sure["accepted_label"], sure["prediction"]) == (True, "billing", "billing > refund")


def test_the_page_has_the_levels(run: Path) -> None:
    from classify.report.page import render

    page = render(Result.read(run))
    assert "<h2>Levels</h2>" in page
    assert "within the right branch" in page


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (["a > b", "b > a", "a > c", "b > d"], {"hierarchy": "on"}, "put two nodes above each other"),
        (["a > b", "a > ", "b > c", "b > d"], {"hierarchy": "on", "label_separator": ">"}, "has an empty node"),
        (["x", "y"], {"hierarchy": "on"}, "expected labels such as 'billing > refund'"),
    ],
)
def test_labels_that_are_no_paths_are_one_line(
    model_folder: Path, tmp_path: Path, labels: list[str], options: dict[str, Any], message: str
) -> None:
    path = tmp_path / "t.csv"
    rows = "".join(f"{words_of(n, [])} {n},{labels[n % len(labels)]}\n" for n in range(40))
    path.write_text("text,label\n" + rows, encoding="utf-8")
    with pytest.raises(InputError, match=message) as caught:
        check(make_config(model_folder, path, tmp_path / "out", **options))
    assert len(caught.value.faults) == 1


def test_flags_decide(model_folder: Path, tmp_path: Path) -> None:
    labels = ["comp.graphics", "comp.mac", "rec.autos", "rec.sport", "misc"]
    path = tmp_path / "t.csv"
    rows = "".join(f"{words_of(n, [])} {n},{labels[n % 5]}\n" for n in range(60))
    path.write_text("text,label\n" + rows, encoding="utf-8")
    with pytest.raises(QuestionError, match="--hierarchy none"):
        check(make_config(model_folder, path, tmp_path / "out"))
    flat = check(make_config(model_folder, path, tmp_path / "out", hierarchy="none"))
    assert flat.task.name == single_label.NAME
    options = {"hierarchy": "on", "label_separator": "."}
    deep = check(make_config(model_folder, path, tmp_path / "out", **options))
    assert deep.task.name == hierarchy.NAME
    loss = deep.task.head.loss(TrainingConfig(), deep.splits.train.targets)
    assert isinstance(loss, CrossEntropy)


def test_probabilities_of_a_teacher_are_no_sets() -> None:
    """Soft targets train as they do without a hierarchy, beside rows of inner nodes."""
    task, draw = make_task(), np.random.default_rng(0)
    soft = draw.dirichlet([1, 1, 1, 1], 6).astype(np.float32)
    logits = torch.from_numpy(draw.normal(size=(6, 4)).astype(np.float32))
    loss, plain = (one.head.loss(TrainingConfig(), soft) for one in (task, single_label.make(LEAVES)))
    torch.testing.assert_close(
        loss.loss_sum(logits, torch.from_numpy(soft)), plain.loss_sum(logits, torch.from_numpy(soft))
    )
    assert loss.weight_sum(soft) == pytest.approx(plain.weight_sum(soft))
    np.testing.assert_array_equal(task.targets.stratify_by(soft), soft.argmax(axis=1))


def test_labels_keep_their_spelling() -> None:
    tree = Tree.of(["a>b", "a>b>x", "a>b>y", "a/c>z"], ">")
    assert tree.inner_names == ["a", "a>b", "a/c"]
    assert [names for names, _ in tree.levels] == [["a", "a/c"], ["a>b", "a/c>z"], ["a>b>x", "a>b>y", "a/c>z"]]
    assert (
        hierarchy.from_settings(
            ["a>b>x", "a>b>y", "a/c>z"],
            {
                "hierarchy": {"separator": ">", "inner": ["a>b"]},
                "label_spelling": {"names": {}, "unlabelled": [], "normalized": True},
            },
        ).targets.tree.inner_names
        == tree.inner_names
    )  # type: ignore[attr-defined]


def test_inner_nodes_count_for_no_leaf() -> None:
    task, leaves = make_task(), np.eye(4, dtype=np.float32)
    rows = np.concatenate([leaves[[0, 1, 1, 2, 3]], [[1, 1, 1, 0]] * 20]).astype(np.float32)
    assert task.targets.label_counts(rows).tolist() == [1, 2, 1, 1]
    np.testing.assert_allclose(task.head.balance(rows), task.head.balance(np.array([0, 1, 1, 2, 3])))


def test_a_row_of_an_inner_node_tells_of_no_scored_one(model_folder: Path, tmp_path: Path) -> None:
    """Its text is in no split, it is in no part that is held out, and with groups it is left out."""
    path = tmp_path / "t.csv"
    lines = ["text,label,split,owner"]
    for number in range(240):
        label, split = LABELS[number % 6], ("train", "train", "test")[number // 6 % 3]
        lines.append(f"{words_of(number, [])} {number},{label},{split},{number // 2}")
    lines += [f"{words_of(number, [])} {number},billing,train,x" for number in (0, 1, 2)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    splits = check(make_config(model_folder, path, tmp_path / "out")).splits
    (source,) = splits.sources
    owner = splits.train.table.take("split", source.split.rows)
    assert set(owner) == {"train"}
    assert len(source.split) == 27
    by_group = make_config(model_folder, path, tmp_path / "out", group_column="owner", split_column="none")
    assert not check(by_group).splits.sources
    capped = check(make_config(model_folder, path, tmp_path / "out", max_train_samples=30, contrastive_steps=None))
    assert len(capped.splits.train) == 30
