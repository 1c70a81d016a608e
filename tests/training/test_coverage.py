"""Texts that the model does not know: said, refused where the model was not chosen, ids beyond its table."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import classify
from classify.config.run_config import RunConfig
from classify.config.schema import DEFAULT_MODEL, DataConfig, ModelConfig, TrainingConfig
from classify.errors import InputError
from classify.training.run import train
from tests.support import tiny

OPENINGS = ("ช่วยด้วย", "สวัสดีครับ", "ขอถามหน่อย", "เมื่อวานนี้", "ตอนเช้า")
CARD = ("บัตรของฉันหาย", "บัตรถูกขโมย", "บัตรใช้ไม่ได้", "ต้องการบัตรใหม่")
MONEY = ("เงินคืนยังไม่มา", "โอนเงินไม่สำเร็จ", "เงินหายจากบัญชี", "ต้องการเงินคืน")
THAI = [
    (f"{opening} {problem}", label)
    for opening, (label, problems) in itertools.product(OPENINGS, (("card", CARD), ("money", MONEY)))
    for problem in problems
]


@pytest.fixture(scope="module")
def thai(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_table(tmp_path_factory.mktemp("thai") / "thai.csv", THAI)


def config(table: Path, out: Path, model: str | None, **training: Any) -> RunConfig:
    return RunConfig(
        DataConfig(data=str(table), language="en", folds=0),
        ModelConfig(model=model),
        TrainingConfig(output_dir=str(out), use_cpu=True, max_steps=1, report_to="none", **training),
    )


@pytest.mark.embedded
def test_the_default_model_is_refused_for_texts_it_cannot_read(thai: Path, tmp_path: Path) -> None:
    for _ in range(2):  # the second time from the cache of tokens
        with pytest.raises(InputError) as caught:
            train(config(thai, tmp_path / "out", None))
        (line,) = caught.value.faults
        assert "thai.csv, column 'text': " in line
        assert f"% of the tokens of the training texts are unknown to {DEFAULT_MODEL}" in line
        assert "a multilingual one, such as FacebookAI/xlm-roberta-base" in line
        assert f"To train with it anyway, give --model {DEFAULT_MODEL}." in line
        assert not (tmp_path / "out").exists()


@pytest.mark.embedded
@pytest.mark.distributed
def test_two_processes_refuse_with_one_cause(thai: Path, command: Callable[..., Any]) -> None:
    done = command(
        "classify", "train", "--data", str(thai), "--language", "en", "--cpu", "--nproc", "2", "--output-dir", "out"
    )
    assert done.returncode == 2, done.stderr
    (line,) = set(done.stderr.splitlines())  # both may print it before the launcher ends the second
    assert "are unknown to" in line


def test_a_few_unknown_words_are_noted_in_training_and_prediction(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: Callable[..., Any]
) -> None:
    rows = [(f"{text} หาย บัตร", label) for text, label in tiny.table_rows(60)]
    table = tiny.write_table(tmp_path / "mixed.csv", rows)
    out = train(config(table, tmp_path / "out", str(model_folder)))
    (note,) = [line for line in capsys.readouterr().out.splitlines() if "unknown to" in line]
    assert note.startswith("note: ")
    done = command("classify", "predict", "--model", str(out), "--data", str(table), "--cpu")
    assert done.returncode == 0, done.stderr
    assert "of the tokens of the texts are unknown to the model\n" in done.stdout


def test_a_tokenizer_of_another_model_is_told_in_a_line(table: Path, tmp_path: Path) -> None:
    narrow = tiny.make_model(tmp_path / "narrow", vocab_size=40)
    with pytest.raises(InputError, match=r"--model .*narrow: .* ids below 40, .* Got the id \d+ for the token '\S+'"):
        train(config(table, tmp_path / "out", str(narrow)))
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_with_more_token_types_than_the_model(tmp_path: Path) -> None:
    """As in folders that combine the weights of a RoBERTa with the tokenizer of a BERT."""
    folder = tiny.make_model(tmp_path / "one-type", type_vocab_size=1)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    for piece in tokenizer["post_processor"]["pair"][-2:]:  # the second text and the token after it
        next(iter(piece.values()))["type_id"] = 1
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    table = tmp_path / "pairs.csv"
    table.write_text("sentence1,sentence2,label\n" + "".join(f"{a},{a},{label}\n" for a, label in tiny.table_rows(60)))
    with pytest.raises(InputError, match=r"token types below 1, the type_vocab_size in config\.json\. Got 1 instead"):
        train(config(table, tmp_path / "out", str(folder)))


def test_prediction_checks_the_tokenizer_too(model_folder: Path, table: Path, tmp_path: Path) -> None:
    out = train(config(table, tmp_path / "out", str(model_folder)))
    other = tiny.make_tokenizer()
    other.add_tokens([f"extra{number}" for number in range(200)])
    other.save_pretrained(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "tokenizer.json", out)
    with classify.load_classifier(str(out), use_cpu=True) as classifier:
        assert classifier.probabilities(["the my"]).shape == (1, 3)
        with pytest.raises(InputError, match=r"ids below 128, .* Got the id \d+ for the token 'extra199'"):
            classifier.probabilities(["the my", "it extra199"])
