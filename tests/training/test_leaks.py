"""Only training rows are learned from: by the steps on pairs, the head's start, the epochs and the baselines."""

from __future__ import annotations

from pathlib import Path

import pytest

from classify.training.inputs import check
from classify.training.run import train
from tests.support import tiny
from tests.support.findings import notes_of
from tests.support.runs import make_config, read_json

SPLITS = ("test", "train", "validation", "train")


def write_mixed(path: Path, other_labels: int) -> Path:
    """Write rows of all splits in turn; `other_labels` classes further is the label of rows that are not trained on."""
    classes = tuple(tiny.CLASS_WORDS)
    lines = []
    for number, (text, label) in enumerate(tiny.table_rows(160)):
        split = SPLITS[number % len(SPLITS)]
        shift = 0 if split == "train" else other_labels
        lines.append(f"{text},{classes[(classes.index(label) + shift) % len(classes)]},{split}")
    path.write_text("\n".join(["text,label,split", *lines]) + "\n")
    return path


@pytest.mark.parametrize(
    "course",
    [
        {"num_train_epochs": 0.0, "contrastive_steps": 0},  # the head's start alone
        {"num_train_epochs": 0.0, "contrastive_steps": 4},
        {"num_train_epochs": 1.0, "contrastive_steps": 0, "head": "random"},
        {"num_train_epochs": 1.0, "contrastive_steps": 4},
    ],
    ids=["probe", "pairs", "epochs", "all"],
)
def test_weights_depend_on_no_label_of_other_rows(
    model_folder: Path, tmp_path: Path, course: dict[str, object]
) -> None:
    weights = []
    for other_labels in (0, 1):
        table = write_mixed(tmp_path / f"{other_labels}.csv", other_labels)
        config = make_config(
            model_folder, table, tmp_path / f"out-{other_labels}", keep="last", calibrate="none", **course
        )
        weights.append((train(config) / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_the_largest_class_is_that_of_training_rows(model_folder: Path, tmp_path: Path) -> None:
    rows = [f"my card {number},{'card' if number % 3 else 'money'},train" for number in range(60)]
    rows += [f"my money {number},money,{('validation', 'test')[number % 2]}" for number in range(20)]
    (tmp_path / "my.csv").write_text("\n".join(["text,label,split", *rows]) + "\n")
    out = train(make_config(model_folder, tmp_path / "my.csv", tmp_path / "out", max_steps=1))
    assert read_json(out / "metrics.json")["majority"] == {"label": "card", "accuracy": 0.0, "macro_f1": 0.0}


def test_scores_on_rows_the_model_was_trained_on_are_noted(model_folder: Path, table: Path, tmp_path: Path) -> None:
    settings = {"num_train_epochs": 1.0, "contrastive_steps": 0}
    first = train(make_config(model_folder, table, tmp_path / "first", **settings, seed=1))
    for split_like, noted in ((None, True), (str(first), False)):
        inputs = check(make_config(first, table, tmp_path / "again", **settings, seed=2, split_like=split_like))
        assert any("was trained on" in note and "--split-like" in note for note in notes_of(inputs)) == noted
