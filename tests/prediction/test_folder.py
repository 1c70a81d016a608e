"""What a result folder says is what prediction does."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classify import load_classifier, train
from classify.errors import InputError
from tests.support import tiny
from tests.support.runs import make_config, read_json

TEXTS = [text for text, _ in tiny.table_rows(12, seed=5)]


@pytest.fixture(scope="module")
def trained(model_folder: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(make_config(model_folder, table, tmp_path_factory.mktemp("runs") / "out"))


def predict(folder: Path, texts: list[str] = TEXTS) -> Any:
    with load_classifier(str(folder), use_cpu=True, precision="fp32") as classifier:
        return classifier.probabilities(texts)


def copy_with(trained: Path, folder: Path, **settings: Any) -> Path:
    shutil.copytree(trained, folder)
    (folder / "classify.json").write_text(json.dumps({**read_json(folder / "classify.json"), **settings}))
    return folder


def test_texts_are_cut_as_in_training(trained: Path, tmp_path: Path) -> None:
    """Each word is one token here, and two more stand around them."""
    short = predict(copy_with(trained, tmp_path / "short", max_length=5))
    first_words = [" ".join(text.split()[:3]) for text in TEXTS]
    np.testing.assert_allclose(short, predict(trained, first_words), atol=1e-5)
    assert np.abs(short - predict(trained)).max() > 1e-3


@pytest.mark.parametrize("settings", [{}, {"lora": True}, {"opt_level": "O2"}, {"opt_level": "O3"}])
def test_scores_are_those_of_the_saved_weights(
    settings: dict[str, Any], model_folder: Path, table: Path, tmp_path: Path
) -> None:
    """Merged, and not rounded: the loss and accuracy reported for both splits are those of the folder."""
    texts, labels = zip(*tiny.table_rows(30, seed=5), strict=True)
    held_out = tiny.write_table(tmp_path / "held_out.csv", list(zip(texts, labels, strict=True)))
    files = {"eval_data": str(held_out), "test_data": str(held_out)}
    out = train(make_config(model_folder, table, tmp_path / "out", **settings, **files))
    names = list(read_json(out / "config.json")["label2id"])
    targets = [names.index(label) for label in labels]
    result = predict(out, texts)
    losses = -np.log(result[np.arange(len(texts)), targets])
    metrics = read_json(out / "metrics.json")
    for part in ("eval", "test"):
        assert metrics[part]["loss"] == pytest.approx(float(losses.mean()), abs=2e-5), part
        assert metrics[part]["accuracy"] == np.mean(result.argmax(axis=1) == targets), part


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [None, "", "[1, 2]", '{"a": '])
def test_a_damaged_tokenizer_is_refused(trained: Path, tmp_path: Path, name: str, content: str | None) -> None:
    folder = copy_with(trained, tmp_path / "copy")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(InputError, match=r"tokenizer.*; copy the folder again"):
        predict(folder)


def test_lone_surrogates_are_replaced(trained: Path) -> None:
    np.testing.assert_array_equal(predict(trained, ["card \ud800 app"]), predict(trained, ["card \ufffd app"]))


def test_scores_far_from_zero_survive_half_precision(model_folder: Path, tmp_path: Path) -> None:
    """The output layer of a regression holds the mean of the scores: rounded to 8 bits it would swallow differences."""
    years = {"app": 1990, "card": 2001, "money": 2012}
    rows = [(text, str(years[label] + number % 4)) for number, (text, label) in enumerate(tiny.table_rows(90))]
    table = tiny.write_table(tmp_path / "years.csv", rows)
    with pytest.raises(InputError, match="--save-dtype float16"):
        train(make_config(model_folder, table, tmp_path / "half", task="regression", save_dtype="float16"))
    folder = train(make_config(model_folder, table, tmp_path / "out", task="regression", learning_rate=1e-3))
    scores = {}
    for precision in ("fp32", "bf16"):
        with load_classifier(str(folder), use_cpu=True, precision=precision) as classifier:
            scores[precision] = classifier.probabilities(TEXTS)[:, 0]
    assert scores["fp32"].std() > 1
    np.testing.assert_allclose(scores["bf16"], scores["fp32"], atol=0.2 * scores["fp32"].std())


def test_a_loaded_model_survives_that_its_file_is_overwritten(trained: Path, tmp_path: Path) -> None:
    """In place, as cp does: what is mapped would be gone, and the process would die of SIGBUS."""
    folder = copy_with(trained, tmp_path / "copy")
    code = (
        "import sys, classify\n"
        "with classify.load_classifier(sys.argv[1], use_cpu=True) as one:\n"
        "    open(sys.argv[1] + '/model.safetensors', 'wb').write(b'x')\n"
        "    print(one.probabilities(['my card']).max())\n"
    )
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(predict(trained, ["my card"]).max())
