"""Texts, labels, columns and paths in any script come out as they went in."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from classify.tables.read import read_table
from tests.support import tiny
from tests.support.runs import read_json

# By label, the words that tell a text's class.
CLASSES = {
    "银行卡": ("卡", "丢失", "card"),
    "استرداد المال": ("مال", "استرداد", "refund"),
    "📱 приложение": ("📱", "экран", "app"),
}
OTHERS = ("我", "的", "请", "أنا", "من", "فضلك", "🙂", "🚚", "мой", "the", "my", "help")
TEXT, LABEL = "رسالة 💬", "类别"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table (数据.csv), one without labels (جديد.csv) and a model (модель 🤖)."""
    folder = tmp_path_factory.mktemp("scripts") / "文件夹 مجلد 📁"
    folder.mkdir()
    draw = random.Random(0)
    rows = []
    for number in range(120):
        label = list(CLASSES)[number % len(CLASSES)]
        words = [*draw.choices(OTHERS, k=draw.randint(2, 9)), *draw.choices(CLASSES[label], k=2)]
        draw.shuffle(words)
        rows.append((" ".join(words), label))
    tiny.write_table(folder / "数据.csv", rows, header=(TEXT, LABEL))
    tiny.write_table(folder / "جديد.csv", rows, header=(TEXT, LABEL))
    tiny.make_model(folder / "модель 🤖", words=[*OTHERS, *itertools.chain(*CLASSES.values())], vocab_size=256)
    return folder


def training(place: Path) -> list[str]:
    return [
        *("--data", str(place / "数据.csv"), "--model", str(place / "модель 🤖"), "--text-column", TEXT),
        *("--label-column", LABEL, "--cpu", "--epochs", "2", "--learning-rate", "1e-3"),
        *("--batch-size", "32", "--keep", "best", "--contrastive-steps", "0"),
    ]


def test_from_a_table_to_predictions_and_a_stock_pipeline(
    place: Path, command: Callable[..., Any], tmp_path: Path
) -> None:
    from transformers import pipeline

    done = command("run_classify.py", *training(place), "--output-dir", "输出 🚀")
    assert done.returncode == 0, done.stderr
    assert "unknown to" not in done.stdout, "the model knows all words"
    for words in ("result: 输出 🚀\n", " predict --model '输出 🚀' --data new.csv", *CLASSES):
        assert words in done.stdout
    out = tmp_path / "输出 🚀"
    done = command(
        "classify", "predict", "--model", "输出 🚀", "--data", str(place / "جديد.csv"), "--out", "النتائج.csv"
    )
    assert done.returncode == 0, done.stderr
    given, got = read_table(str(place / "جديد.csv")), read_table(str(tmp_path / "النتائج.csv"))
    assert got.columns == [
        TEXT,
        LABEL,
        "predicted_label",
        "confidence",
        *(f"prob_{label}" for label in sorted(CLASSES)),
    ]
    assert got.column(TEXT) == given.column(TEXT)
    assert got.column(LABEL) == given.column(LABEL)
    right = sum(a == b for a, b in zip(got.column("predicted_label"), given.column(LABEL), strict=True))
    assert right >= 90, f"{right} of 120; guessing has 40"
    classify = pipeline("text-classification", model=str(out), device="cpu")
    assert [one["label"] for one in classify(given.column(TEXT)[:9])] == got.column("predicted_label")[:9]
    assert read_json(out / "metrics.json")["test"]["per_class"].keys() == CLASSES.keys()
    assert read_table(str(out / "predictions.csv")).columns == got.columns
    assert read_json(out / "run.json")["config"]["data"]["text_column"] == TEXT
