"""A run is gone on with only as it began: each difference is refused by its own message."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from classify.errors import InputError
from classify.training.run import train
from tests.support import tiny
from tests.support.runs import make_config


@pytest.fixture(scope="module")
def finished(model_folder: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(make_config(model_folder, table, tmp_path_factory.mktemp("runs") / "out"))


TEXTS = "the texts, their labels or the rows chosen from them"


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"batch_size": 16}, "--batch-size was 32 and is 16"),
        ({"seed": 1}, "--seed was 42 and is 1"),
        ({"max_length": 10}, "--max-length was 64 and is 10"),
        ({"max_train_samples": 50}, TEXTS),
        ({"data": "labels"}, TEXTS),
        ({"data": "texts"}, TEXTS),
        ({"model": "another"}, "--model was "),
        ({"freeze_embeddings": True}, "--freeze-embeddings was False and is True"),
        ({"freeze_layers": 1}, "--freeze-layers was 0 and is 1"),
        ({"pooling": "mean"}, "--pooling was 'first' and is 'mean'"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_other_settings_are_refused(
    finished: Path, model_folder: Path, table: Path, tmp_path: Path, changes: dict[str, Any], fault: str
) -> None:
    shutil.copytree(finished, tmp_path / "out")
    rows = tiny.table_rows(120)
    if changes.get("data") == "labels":
        table = tiny.write_table(tmp_path / "my.csv", [*rows[:-1], (rows[-1][0], rows[0][1])])
    elif changes.get("data") == "texts":
        table = tiny.write_table(tmp_path / "my.csv", [*rows[:-1], ("another text", rows[-1][1])])
    elif "model" in changes:
        model_folder = tiny.make_model(tmp_path / "another", seed=1)
    changes = {name: value for name, value in changes.items() if name not in ("data", "model")}
    config = make_config(model_folder, table, tmp_path / "out", resume_from_checkpoint=True, **changes)
    with pytest.raises(InputError, match="the run was started with other settings: .*" + fault):
        train(config)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"label_texts": "none"}, "the label names as training texts (--label-texts, --language) differ"),
        ({"language": "de"}, "the label names as training texts (--label-texts, --language) differ"),
        ({"class_weights": "balanced"}, "--class-weights was none and is balanced"),
        ({"learning_rate": 0.1}, "--learning-rate was 0.001 and is 0.1"),
        ({"weight_decay": 0.1}, "--weight-decay was 0.01 and is 0.1"),
        ({"dropout": 0.3}, "--dropout was None and is 0.3"),
    ],
)
def test_what_a_run_without_epochs_learned_from_is_not_changed(
    model_folder: Path, table: Path, tmp_path: Path, changes: dict[str, Any], fault: str
) -> None:
    """Its head was fitted before the first checkpoint."""
    settings = {"num_train_epochs": 0.0, "folds": 0, "compact_vocabulary": False}
    train(make_config(model_folder, table, tmp_path / "out", **settings))
    config = make_config(model_folder, table, tmp_path / "out", resume_from_checkpoint=True, **{**settings, **changes})
    with pytest.raises(InputError, match="the run was started with other settings: " + re.escape(fault)):
        train(config)


def test_a_run_without_epochs_is_extended_by_some(model_folder: Path, table: Path, tmp_path: Path) -> None:
    settings = {"folds": 0, "compact_vocabulary": False}
    out = train(make_config(model_folder, table, tmp_path / "out", num_train_epochs=0.0, **settings))
    train(make_config(model_folder, table, out, num_train_epochs=1.0, resume_from_checkpoint=True, **settings))
    assert (out / "checkpoints" / "step-00000003").is_dir()
