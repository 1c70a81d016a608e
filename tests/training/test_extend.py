"""`--model RUN` with a new class: the head learns from new rows and from features that the run has kept."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import classify
from classify.errors import InputError
from classify.evaluation.scope import Scope, normalize
from classify.modeling.kept_features import FILE, KeptFeatures, choose_rows
from classify.report.comparison import compare
from classify.tables.labels import find_divided
from classify.training.inputs import check
from classify.training.run import train
from tests.support import tiny
from tests.support.processes import run
from tests.support.runs import make_config, read_json


def make_rows(count: int, *labels: str) -> list[tuple[str, str]]:
    """Rows whose texts name their class three times, so that a frozen random encoder can tell them apart."""
    draw = random.Random(str(labels))
    rows = [(labels[number % len(labels)], draw.choices(tiny.WORDS[:8], k=3)) for number in range(count)]
    return [(" ".join([*draw.choices(tiny.CLASS_WORDS[label], k=3), *others]), label) for label, others in rows]


OLD = make_rows(80, "card", "money")
NEW = make_rows(40, "app")
SETTINGS: dict[str, Any] = {"label_column": "label", "text_column": "text", "num_train_epochs": None}


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("earlier")
    return train(make_config(model_folder, tiny.write_table(folder / "old.csv", OLD), folder / "run"))


def accuracy(folder: Path, rows: list[tuple[str, str]]) -> float:
    with classify.load(folder, use_cpu=True) as model:
        return float(np.mean([a == b for a, (_, b) in zip(model.predict([r[0] for r in rows]), rows, strict=True)]))


def encoder(folder: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return {name: value for name, value in load_file(folder / "model.safetensors").items() if "classifier" not in name}


def test_a_run_keeps_features_of_each_class_and_no_text(earlier: Path) -> None:
    kept = KeptFeatures.read(str(earlier))
    assert kept is not None
    assert kept.labels == ("card", "money")
    assert kept.features.dtype == np.float16
    assert np.bincount(kept.targets).tolist() == [40, 40] or np.bincount(kept.targets).max() <= 50
    assert b"stolen" not in (earlier / FILE).read_bytes()


def test_a_class_is_added_and_none_forgotten(earlier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tiny.write_table(tmp_path / "new.csv", NEW)
    folder = train(make_config(earlier, table, tmp_path / "out", **SETTINGS))
    printed = capsys.readouterr().out
    assert "features of" in printed
    assert "texts of 2 classes" in printed
    assert "no training row has the label" not in printed
    assert read_json(folder / "metrics.json")["train"]["steps"] == 0
    before, after = encoder(earlier), encoder(folder)
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert accuracy(folder, NEW) > 0.9
    assert accuracy(folder, OLD) > accuracy(earlier, OLD) - 0.1
    kept = KeptFeatures.read(str(folder))
    assert kept is not None
    assert set(kept.targets.tolist()) == {0, 1, 2}
    (tmp_path / "more.csv").write_text("text,label\n" + "".join(f"{text},card\n" for text, _ in OLD[::2]))
    chained = train(make_config(folder, tmp_path / "more.csv", tmp_path / "chained", **SETTINGS))
    assert accuracy(chained, NEW) > 0.8  # rows of one class alone forget no other


def test_without_kept_features_the_old_classes_leave(model_folder: Path, tmp_path: Path) -> None:
    table = tiny.write_table(tmp_path / "old.csv", OLD)
    folder = train(make_config(model_folder, table, tmp_path / "run", keep_features=0))
    assert not (folder / FILE).exists()
    with pytest.raises(InputError, match="at least two classes"):
        train(make_config(folder, tiny.write_table(tmp_path / "new.csv", NEW), tmp_path / "out", **SETTINGS))


def test_classes_are_renamed_and_merged_in_the_model(earlier: Path, tmp_path: Path) -> None:
    table = tiny.write_table(tmp_path / "new.csv", NEW)
    settings = {**SETTINGS, "label_names": "card=cards,app=cards"}
    folder = train(make_config(earlier, table, tmp_path / "out", **settings))
    with classify.load(folder, use_cpu=True) as model:
        assert model.labels == ["cards", "money"]
    assert accuracy(folder, [(text, "cards" if label == "card" else label) for text, label in OLD]) > 0.6


def test_rows_of_a_divided_class_are_to_be_labelled_again(earlier: Path, tmp_path: Path) -> None:
    rows = [*NEW, *((text, "stolen" if "stolen" in text else "card") for text, label in OLD if label == "card")]
    rows = [(text, "lost" if label == "card" and "lost" in text else label) for text, label in rows]
    left = [text for text, label in rows if label == "card"]
    assert left
    settings = {**SETTINGS, "label_names": "card=stolen|lost"}
    folder = train(make_config(earlier, tiny.write_table(tmp_path / "new.csv", rows), tmp_path / "out", **settings))
    with (folder / "label-me.csv").open(encoding="utf-8", newline="") as file:
        written = list(csv.DictReader(file))
    assert [row["text"] for row in written] == left
    assert {row["label"] for row in written} == {"card"}
    with classify.load(folder, use_cpu=True) as model:
        assert model.labels == ["app", "lost", "money", "stolen"]


def test_which_labels_are_divided() -> None:
    assert find_divided("a=b|c", {"a", "b", "c"}, normalize=True) == {"a"}
    assert find_divided("a=B|c", {"a", "A", "b", "C"}, normalize=True) == {"a", "A"}
    assert find_divided("x=b|c", {"a"}, normalize=True) == frozenset()
    assert find_divided(None, {"a"}, normalize=True) == frozenset()
    for labels in ({"a", "b"}, {"a"}):
        with pytest.raises(InputError, match=r"no row has the label '[bd]'; label some first"):
            find_divided("a=b|d", labels, normalize=True)


def test_the_same_classes_in_another_case_train_the_encoder(earlier: Path, tmp_path: Path) -> None:
    table = tiny.write_table(tmp_path / "new.csv", [(text, label.title()) for text, label in OLD])
    assert check(make_config(earlier, table, tmp_path / "out", **SETTINGS)).kept is None


def test_a_class_that_only_validation_rows_have_is_not_forgotten(earlier: Path, tmp_path: Path) -> None:
    cards = tiny.write_table(tmp_path / "new.csv", [row for row in OLD if row[1] == "card"])
    other = tiny.write_table(tmp_path / "eval.csv", make_rows(20, "money", "card"))
    inputs = check(make_config(earlier, cards, tmp_path / "out", **SETTINGS, eval_data=str(other)))
    assert inputs.kept is not None


@pytest.mark.parametrize("changes", [{"keep_features": 0}, {"head": "random", "num_train_epochs": 1.0}])
def test_a_run_may_be_begun_without_the_earlier_classes(earlier: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    table = tiny.write_table(tmp_path / "new.csv", [(text, label + "s") for text, label in OLD])
    inputs = check(make_config(earlier, table, tmp_path / "out", **{**SETTINGS, **changes}))
    assert inputs.task.labels == ["cards", "moneys"]


def test_what_would_lose_the_earlier_classes_is_refused(earlier: Path, model_folder: Path, tmp_path: Path) -> None:
    table = tiny.write_table(tmp_path / "new.csv", NEW)
    texts = tmp_path / "texts.csv"
    texts.write_text("text\n" + "".join(f"{text} again\n" for text, _ in OLD))
    refused: list[dict[str, Any]] = [
        {"unlabelled_data": str(texts), "teacher": str(model_folder)},
        {"opt_level": "O2", "precision": "bf16", "num_train_epochs": 1.0},
        {"pooling": "mean"},
        {"text_pair_column": "second"},
    ]
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("text,second,label\n" + "".join(f"{text},{text} again,{label}\n" for text, label in NEW))
    said = "--teacher .* would not know|--opt-level O2: half weights|features of (its own pooling|single texts)"
    for changes in refused:
        of_pairs = "text_pair_column" in changes
        with pytest.raises(InputError, match=said):
            check(make_config(earlier, pairs if of_pairs else table, tmp_path / "out", **{**SETTINGS, **changes}))
    (tmp_path / "damaged").mkdir()
    for file in earlier.iterdir():
        if file.is_file():
            content = file.read_bytes()
            (tmp_path / "damaged" / file.name).write_bytes(content[:300] if file.name == FILE else content)
    with pytest.raises(InputError, match=r"features\.safetensors is damaged"):
        check(make_config(tmp_path / "damaged", table, tmp_path / "out", **SETTINGS))


def test_features_of_the_earlier_classes_are_in_scope(earlier: Path, tmp_path: Path) -> None:
    table = tiny.write_table(tmp_path / "new.csv", [*NEW, *((f"why how where {n}", "none") for n in range(30))])
    folder = train(make_config(earlier, table, tmp_path / "out", **SETTINGS, out_of_scope_label="none"))
    scope, kept = Scope.read(folder, read_json(folder / "classify.json")), KeptFeatures.read(str(earlier))
    assert scope is not None
    assert kept is not None
    similar = normalize(kept.features.astype(np.float32)) @ scope.examples.astype(np.float32).T
    np.testing.assert_allclose(similar.max(axis=1), 1, atol=1e-2)
    cards = tiny.write_table(tmp_path / "cards.csv", make_rows(40, "card"))
    later = check(make_config(folder, cards, tmp_path / "later", **SETTINGS))
    assert any("add --out-of-scope-label none to keep that" in finding.text for finding in later.findings)


def test_no_baseline_that_knows_the_new_classes_alone(
    earlier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tiny.write_table(tmp_path / "new.csv", NEW)
    folder = train(make_config(earlier, table, tmp_path / "out", **SETTINGS))
    assert read_json(folder / "metrics.json")["baseline"] is None
    printed = capsys.readouterr().out
    assert "always predicting" not in printed
    assert "TF-IDF" not in printed


def test_balanced_weights_are_not_balanced_again(earlier: Path, tmp_path: Path) -> None:
    table = tiny.write_table(tmp_path / "new.csv", [*NEW, *OLD[:2]])
    plain, balanced = (
        train(make_config(earlier, table, tmp_path / name, **SETTINGS, class_weights=name))
        for name in ("none", "balanced")
    )
    assert (plain / "model.safetensors").read_bytes() == (balanced / "model.safetensors").read_bytes()


def test_epochs_move_the_encoder_and_features_keep_the_classes(earlier: Path, tmp_path: Path) -> None:
    table = tiny.write_table(tmp_path / "new.csv", NEW)
    settings = {**SETTINGS, "num_train_epochs": 1, "learning_rate": 1e-5}
    folder = train(make_config(earlier, table, tmp_path / "out", **settings))
    assert read_json(folder / "metrics.json")["train"]["steps"] > 0
    assert accuracy(folder, OLD) > 0.6


def test_runs_that_know_other_classes_are_compared(earlier: Path, tmp_path: Path) -> None:
    """On the rows of the classes that both know."""
    rows = [*OLD[:40], *NEW]
    folder = train(make_config(earlier, tiny.write_table(tmp_path / "new.csv", rows), tmp_path / "out", **SETTINGS))
    comparison = compare([earlier, folder])[""]
    assert 0 < comparison.rows <= 40
    assert comparison.runs[1].metrics["accuracy"] >= 0.5


@pytest.mark.parametrize("label_names", [None, "card=pay,money=pay"])
def test_two_processes_extend_alike(earlier: Path, tmp_path: Path, label_names: str | None) -> None:
    table = tiny.write_table(tmp_path / "new.csv", [*NEW, *OLD[:20]])
    words = ["--model", str(earlier), "--data", str(table), "--label-column", "label", "--text-column", "text", "--cpu"]
    words += [] if label_names is None else ["--label-names", label_names]
    heads = []
    for count in (1, 2):
        out = tmp_path / f"by{count}"
        run(tmp_path, "run_classify.py", *words, "--nproc", str(count), "--output-dir", str(out)).check_returncode()
        from safetensors.numpy import load_file

        heads.append(load_file(out / "model.safetensors")["classifier.weight"])
    assert np.abs(heads[0] - heads[1]).max() < 1e-4


def test_rows_to_keep_are_some_of_each_class() -> None:
    numbers = np.repeat([0, 1, 3], [200, 7, 60])
    chosen = choose_rows(numbers, 50, seed=0)
    assert np.bincount(numbers[chosen]).tolist() == [50, 7, 0, 50]
    assert (np.diff(chosen) > 0).all()
    many = np.repeat(np.arange(1_000), 50)
    assert len(choose_rows(many, 50, seed=0)) == 20_000
