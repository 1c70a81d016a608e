"""README.md of a result folder: metadata that the hub reads, the run's own scores, inert texts."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.utils import filter_repo_objects

import classify
from classify.report.page import write_card
from classify.report.result import Result
from classify.training.run import train
from tests.support import tiny
from tests.support.processes import ROOT
from tests.support.runs import make_config, read_json
from tests.support.tasks import CASES


@pytest.mark.parametrize("name", ["pair", "lists", "scores"])
def test_the_metadata_is_valid_and_the_scores_are_those_of_the_run(
    name: str, model_folder: Path, tmp_path: Path
) -> None:
    case = CASES[name]
    out = train(make_config(model_folder, case.write(tmp_path / "my.csv"), tmp_path / "out", folds=0, **case.options))
    card = ModelCard.load(write_card(Result.read(out)))
    assert card.data.pipeline_tag == "text-classification"
    metrics = read_json(out / "metrics.json")["test"]
    results = card.data.eval_results
    assert results
    inspection = read_json(out / "run.json")["inspection"]
    assert f"characters per text: median {inspection['characters']['median']:.0f}, " in card.text
    assert "- split: train " in card.text
    for result in results:
        assert result.metric_value == pytest.approx(metrics[result.metric_type], abs=1e-4)
        assert f"| {metrics[result.metric_type]:.3f} |" in card.text


def test_labels_are_inert_in_markdown(model_folder: Path, tmp_path: Path) -> None:
    rows = [(text, f"<script>*{label}*|`x`\n# y") for text, label in tiny.table_rows(60)]
    out = train(make_config(model_folder, tiny.write_table(tmp_path / "my.csv", rows), tmp_path / "out", folds=0))
    text = write_card(Result.read(out)).read_text()
    assert "<script>" not in text
    assert "\\<script\\>\\*card\\*\\|\\`x\\` \\# y" in text


@pytest.mark.parametrize(("policy", "differs"), [("truncate", False), ("chunks", True)])
def test_the_pipeline_is_no_equal_where_it_reads_less(
    model_folder: Path, table: Path, tmp_path: Path, policy: str, differs: bool
) -> None:
    config = make_config(model_folder, table, tmp_path / "out", long_texts=policy, max_steps=1)
    assert ("the pipeline reads only the first" in write_card(Result.read(train(config))).read_text()) == differs


def test_the_documented_upload_takes_the_model_alone(model_folder: Path, table: Path, tmp_path: Path) -> None:
    """Neither texts nor paths: the other files of the folder stay here."""
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    words = shlex.split(page[page.index("hf upload") :].replace("\\\n", " ").partition("\n")[0])
    patterns = [words[place + 1] for place, word in enumerate(words) if word == "--include"]
    out = classify.train(make_config(model_folder, table, tmp_path / "out", folds=3, num_train_epochs=0.0))
    files = [str(file.relative_to(out)) for file in out.rglob("*") if file.is_file()]
    uploaded = set(filter_repo_objects(files, allow_patterns=patterns))
    names = {"model.safetensors", "config.json", "classify.json", "tokenizer.json", "tokenizer_config.json"}
    assert uploaded == {*names, "README.md"} < set(files)
    assert "--include in_scope.safetensors" in page
    rows = [text for text, _ in tiny.table_rows(120)]
    for name in uploaded - {"model.safetensors"}:
        content = (out / name).read_text(encoding="utf-8")
        assert not [text for text in rows if text in content]
        assert str(model_folder) not in content
        assert str(table) not in content


def test_the_card_names_how_the_rows_were_scored(model_folder: Path, table: Path, tmp_path: Path) -> None:
    out = train(make_config(model_folder, table, tmp_path / "out", folds=2, num_train_epochs=0.0))
    results = ModelCard.load(write_card(Result.read(out))).data.eval_results
    assert {result.dataset_split for result in results} == {"2-fold cross-validation"}
