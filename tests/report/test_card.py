"""README.md of a result folder: metadata that the hub reads, the run's own scores, inert texts."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from classify.report.card import write_card
from classify.training.run import train
from tests.support import tiny
from tests.support.runs import make_config, read_json
from tests.support.tasks import CASES


@pytest.mark.parametrize("name", ["pair", "lists", "scores"])
def test_the_metadata_is_valid_and_the_scores_are_those_of_the_run(
    name: str, model_folder: Path, tmp_path: Path
) -> None:
    case = CASES[name]
    out = train(make_config(model_folder, case.write(tmp_path / "my.csv"), tmp_path / "out", folds=0, **case.options))
    card = ModelCard.load(write_card(out))
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
    text = write_card(out).read_text()
    assert "<script>" not in text
    assert "\\<script\\>\\*card\\*\\|\\`x\\` \\# y" in text


@pytest.mark.parametrize(("policy", "differs"), [("truncate", False), ("chunks", True)])
def test_the_pipeline_is_no_equal_where_it_reads_less(
    model_folder: Path, table: Path, tmp_path: Path, policy: str, differs: bool
) -> None:
    config = make_config(model_folder, table, tmp_path / "out", long_texts=policy, max_steps=1)
    assert ("the pipeline reads only the first" in write_card(train(config)).read_text()) == differs
