"""Weights that do not fit their configuration are refused; a DataParallel wrapper's are read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import load_file, save_file

from classify.errors import InputError
from classify.modeling.classifier import Classifier
from classify.modeling.find import resolve_model
from classify.modeling.load import load_pretrained
from classify.prediction.pytorch import load_trained
from tests.support import tiny


def load(folder: Path) -> Classifier:
    return load_pretrained(resolve_model(str(folder)), ["a", "b"], seed=0, pad_token_id=0)


def copy_with_config(model_folder: Path, folder: Path, **changes: Any) -> Path:
    shutil.copytree(model_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"num_hidden_layers": 4}, r"missing in the file \(32\): bert\.encoder\.layer\.2\."),
        ({"intermediate_size": 128}, r"of another shape \(6\): .*\(64 in the file, 128 by config"),
        ({"vocab_size": 64}, r"of another shape \(1\): bert\.embeddings\.word_embeddings"),
        ({"model_type": "distilbert"}, r"missing in the file \(3\d\): distilbert\."),
    ],
)
def test_an_encoder_that_would_be_random_is_refused(
    model_folder: Path, tmp_path: Path, changes: dict[str, Any], fault: str
) -> None:
    folder = copy_with_config(model_folder, tmp_path / "m", **changes)
    with pytest.raises(InputError, match=fault):
        load(folder)


@pytest.mark.parametrize("kind", ["AutoModelForMaskedLM", "AutoModelForSequenceClassification"])
@pytest.mark.parametrize("architecture", sorted(tiny.configurations()))
def test_a_new_head_and_pooler_are_no_fault(tmp_path: Path, architecture: str, kind: str) -> None:
    config = tiny.configurations()[architecture]
    config.num_labels = 5  # a different head from the run's
    getattr(transformers, kind).from_config(config).save_pretrained(tmp_path)
    tiny.make_tokenizer().save_pretrained(tmp_path)
    load(tmp_path)


def test_a_result_folder_without_all_weights_is_refused(model_folder: Path, tmp_path: Path) -> None:
    load(model_folder).model.save_pretrained(tmp_path / "result")
    folder = copy_with_config(tmp_path / "result", tmp_path / "m", num_hidden_layers=4)
    with pytest.raises(InputError, match=r"32 weights are missing in model\.safetensors: bert\.encoder\.layer\.2"):
        load_trained(folder, pad_token_id=0)
    weights = load_file(tmp_path / "result" / "model.safetensors")
    del weights["classifier.weight"]
    save_file(weights, tmp_path / "result" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"1 weights are missing in model\.safetensors: classifier\.weight"):
        load_trained(tmp_path / "result", pad_token_id=0)
