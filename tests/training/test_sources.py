"""Rows of --source-column that are not --trusted are never scored, and are trained on if they help."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import pytest

from classify.config.schema import DataConfig
from classify.data.reading import read_tables
from classify.data.split_table import split_table
from classify.data.splits import Splits
from classify.errors import InputError
from classify.modeling.result_folder import read_settings
from classify.prediction.evaluate import read_labelled
from classify.prediction.inputs import read_texts
from classify.tasks.registry import recognize
from classify.training.run import train
from tests.support import tiny
from tests.support.comparison import difference
from tests.support.processes import run
from tests.support.runs import make_config, read_json

HEADER = ["text", "label", "origin"]
TRUSTED = [[text, label, "human"] for text, label in tiny.table_rows(60)]
MORE = tiny.table_rows(240, seed=1)
SETTINGS: dict[str, Any] = {"dropout": 0.0, "contrastive_steps": 3, "source_column": "origin", "trusted": "human"}


def write(path: Path, rows: list[list[object]], header: list[str] = HEADER) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def random_labels(seed: int = 0) -> list[list[object]]:
    draw = random.Random(seed)
    return [[text, draw.choice(["app", "card", "money"]), "script"] for text, _ in MORE]


def right_labels(name: str = "gpt") -> list[list[object]]:
    return [[text, label, name] for text, label in MORE]


def split(path: Path, **settings: Any) -> Splits:
    tables = read_tables(DataConfig(data=str(path), **settings))
    return split_table(tables, recognize(tables).targets, seed=42)


def probable(text: str, label: str) -> list[object]:
    """A row of gpt with probabilities."""
    return [text, "", "gpt", *(0.8 if name == label else 0.1 for name in ("app", "card", "money"))]


def refuse(path: Path, **settings: Any) -> str:
    with pytest.raises(InputError) as caught:
        split(path, **settings)
    assert len(caught.value.faults) == 1
    return caught.value.faults[0]


def test_a_source_is_kept_if_it_helps(model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On trusted rows alone; the others are left out, and what was left out does not change the model."""
    trusted = [[text, label, "human"] for text, label in tiny.table_rows(200)]
    good = [[text, label, "gpt"] for text, label in tiny.table_rows(900, seed=2)]
    tables = {"both": write(tmp_path / "both.csv", [*trusted, *good, *random_labels()])}
    tables["good"] = write(tmp_path / "good.csv", [*trusted, *good])
    runs = {
        name: train(make_config(model_folder, table, tmp_path / name, **SETTINGS)) for name, table in tables.items()
    }
    printed = capsys.readouterr().out
    assert "source: 900 rows of 'gpt' kept (accuracy of 160 trusted rows" in printed
    assert "source: 240 rows of 'script' left out" in printed
    assert difference(runs["both"], runs["good"]) < 1e-5
    record = read_json(runs["both"] / "run.json")
    gpt, script = record["label_sources"]
    assert (gpt["name"], gpt["rows"], gpt["is_kept"], script["is_kept"]) == ("gpt", 900, True, False)
    assert gpt["interval"][0] < gpt["with_source"] - gpt["without"] < gpt["interval"][1]
    with (runs["both"] / "predictions.csv").open(encoding="utf-8", newline="") as file:
        assert {row["origin"] for row in csv.DictReader(file)} == {"human"}


def test_all_sources_train_where_they_are_kept(model_folder: Path, tmp_path: Path) -> None:
    table = write(tmp_path / "my.csv", [*TRUSTED, *random_labels()])
    folder = train(make_config(model_folder, table, tmp_path / "run", **SETTINGS, keep_source=True))
    assert [source["is_kept"] for source in read_json(folder / "run.json")["label_sources"]] == [True]
    # The run has learned from the source's texts, too.
    found, texts = read_texts(str(table), read_settings(str(folder)))
    assert read_labelled(str(folder), found, texts).trained[len(TRUSTED) :].all()


def test_a_trusted_text_is_not_trained_on_twice(tmp_path: Path) -> None:
    """A source's label of a trusted text shows how often it agrees; texts of the test table stay out, too."""
    again = [[text, label if number % 4 else "money", "gpt"] for number, (text, label, _) in enumerate(TRUSTED[:20])]
    tested = tiny.write_table(tmp_path / "test.csv", MORE[:5])
    table = write(tmp_path / "my.csv", [*TRUSTED, *again, *right_labels()])
    splits = split(table, test_data=str(tested), source_column="origin", trusted="human")
    (source,) = splits.sources
    texts = set(source.split.texts("text"))
    assert not texts & {*(str(row[0]) for row in TRUSTED), *(text for text, _ in MORE[:5])}
    assert len(source.split) == len(MORE) - 5
    assert source.shared is not None
    assert len(source.shared[0]) == 20
    assert 15 <= (source.shared[0] == source.shared[1]).sum() < 20
    assert len(splits.train) + len(splits.validation) == 60


def test_a_pair_the_other_way_round_is_the_same(tmp_path: Path) -> None:
    """Neither a source nor a teacher brings back a pair that is scored."""
    pairs = [(text, other, label) for (text, label, _), (other, _) in zip(TRUSTED, MORE, strict=False)]
    rows = [[*pair, "human"] for pair in pairs] + [[second, first, label, "gpt"] for first, second, label in pairs]
    rows += [[first, second, label, "gpt"] for (first, label), (second, _) in zip(MORE, MORE[60:], strict=False)]
    table = write(tmp_path / "my.csv", rows, ["sentence1", "sentence2", "label", "origin"])
    texts = write(tmp_path / "texts.csv", [*([b, a] for a, b, _ in pairs), ["new", "text"]], ["sentence1", "sentence2"])
    splits = split(table, source_column="origin", trusted="human", unlabelled_data=str(texts))
    assert len(splits.sources[0].split) == 180
    assert splits.to_teach is not None
    assert splits.to_teach.texts("sentence1") == ["new"]


def test_untrusted_rows_of_further_tables_are_not_scored(tmp_path: Path) -> None:
    table = write(tmp_path / "my.csv", [*TRUSTED, *right_labels()])
    tested = [
        [text, label, "gpt" if number % 2 else "human"] for number, (text, label) in enumerate(tiny.table_rows(30, 3))
    ]
    splits = split(table, source_column="origin", trusted="human", test_data=str(write(tmp_path / "t.csv", tested)))
    assert splits.test is not None
    assert set(splits.test.texts("origin")) == {"human"}
    assert any("15 rows whose label is not trusted are not scored" in finding.sentence for finding in splits.findings)
    gold = write(tmp_path / "gold.csv", [[*row, "gold"] for row in tiny.table_rows(30, 3)])
    fault = refuse(table, source_column="origin", trusted="human", test_data=str(gold))
    assert "none of its rows is trusted" in fault


def test_rows_without_probabilities_are_trusted(tmp_path: Path) -> None:
    rows = [*([*row, "", "", ""] for row in TRUSTED), *(probable(*row) for row in MORE)]
    table = write(tmp_path / "my.csv", rows, [*HEADER, "prob_app", "prob_card", "prob_money"])
    splits = split(table, soft_labels=True, source_column="origin")
    assert [source.name for source in splits.sources] == ["gpt"]
    assert splits.sources[0].split.soft_targets is not None
    assert len(splits.train) + len(splits.validation) + len(splits.test or ()) == 60


def test_what_cannot_be_judged_is_refused(tmp_path: Path) -> None:
    table = write(tmp_path / "my.csv", [*TRUSTED, *right_labels()])
    asked = refuse(table, source_column="origin")
    assert "which values are trusted: 'gpt' (240 rows), 'human' (60 rows)? Give them with --trusted." in asked
    assert "no row of" in refuse(table, source_column="origin", trusted="people")
    assert "all rows of" in refuse(table, source_column="origin", trusted="human,gpt")
    assert "--trusted needs the column" in refuse(table, trusted="human")
    few = write(tmp_path / "few.csv", [*TRUSTED[:15], *right_labels()])
    assert refuse(few, source_column="origin", trusted="human").endswith(
        "15 trusted rows have a label, and only these are validated and tested on; label 5 more."
    )


@pytest.mark.parametrize("soft", [pytest.param(False, marks=pytest.mark.slow), True])
def test_two_processes_train_the_same_model(model_folder: Path, tmp_path: Path, soft: bool) -> None:
    header, rows = HEADER, [*TRUSTED, *right_labels()]
    flags = ["--source-column", "origin", "--trusted", "human", "--keep-source", "--dropout", "0", "--epochs", "2"]
    if soft:
        header = [*HEADER, "prob_app", "prob_card", "prob_money"]
        rows = [*([*row, "", "", ""] for row in TRUSTED), *(probable(*row) for row in MORE)]
        flags.append("--soft-labels")
    write(tmp_path / "my.csv", rows, header)
    words = ["run_classify.py", "--data", "my.csv", "--model", str(model_folder), "--cpu", *flags]
    for name, more in (("one", []), ("two", ["--nproc", "2"])):
        done = run(tmp_path, *words, *more, "--output-dir", name)
        assert done.returncode == 0, done.stderr
    assert difference(tmp_path / "one", tmp_path / "two") < 1e-5
