"""report.html: its figures are those of metrics.json, for every task; hostile texts stay texts."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
import shlex
import tracemalloc
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from classify.cli import main
from classify.commands import load_command
from classify.evaluation.scored_rows import ScoredRows, sign_test
from classify.modeling.result_folder import read_settings, trained_texts
from classify.report.environment import show
from classify.report.page import render, write_report
from classify.report.result import Result
from classify.report.sections import confusion
from classify.tasks import single_label
from classify.training.run import train
from tests.support import tiny
from tests.support.runs import make_config, read_json
from tests.support.tasks import CASES, Case

HOSTILE = '<script>alert(1)</script> "><img src=x onerror=alert(2)> {{ 7*7 }} & <b>'


def train_words(table: Path, model: Path, out: Path) -> list[str]:
    return f"train --data {table} --model {model} --cpu --output-dir {out} --epochs 1".split()


class Page(HTMLParser):
    """The tags, their attributes and the text of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(folder: Path) -> str:
    return write_report(Result.read(folder)).read_text()


@pytest.fixture(scope="module", params=CASES)
def run(request: pytest.FixtureRequest, model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of each task."""
    case: Case = CASES[request.param]
    folder = tmp_path_factory.mktemp("report")
    return train(make_config(model_folder, case.write(folder / "my.csv"), folder / "out", folds=0, **case.options))


def test_it_says_what_the_metrics_say(run: Path) -> None:
    text = page_of(run)
    page, metrics = Page(text), read_json(run / "metrics.json")
    task = Result.read(run).task
    name = task.scores.share or task.scores.primary
    assert show(name, metrics["test"][name]) in page.text
    assert f"{metrics['test']['rows']} test rows" in page.text
    for decision in read_json(run / "run.json")["guesses"]:
        assert decision["value"] in page.text
    for label in metrics["test"]["per_class"]:
        assert label in page.text
    assert len(text) < 1 << 20
    pair = trained_texts(read_settings(str(run))).pair is not None
    assert ('("a text", "another")' in page.text) == ('"text_pair": "another"' in page.text) == pair


def test_its_commands_are_those_of_the_program(run: Path) -> None:
    lines = re.findall(r"^classify ([a-z]+ --model .*)$", Page(page_of(run)).text, re.MULTILINE)
    names = {line.split()[0] for line in lines}
    assert names >= {"predict", "evaluate", "serve", "export"}
    for line in lines:
        name, *flags = shlex.split(line)
        options, unknown = load_command(name).make_parser(f"classify {name}").parse_known_args(flags)
        assert not unknown
        assert options.model == str(run)


def test_nothing_is_requested_and_the_policy_allows_only_what_is_there(run: Path) -> None:
    text = page_of(run)
    page = Page(text)
    policy = next(a["content"] or "" for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    for tag in ("style", "script"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, flags=re.S)
        assert "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() in policy
    for tag, attributes in page.tags:
        assert "style" not in attributes, "the policy refuses inline styles"
        assert not any(name.startswith("on") for name in attributes)
        assert tag not in ("link", "iframe", "object", "form")
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/png;base64,")), attributes


def test_the_scored_rows_are_those_of_the_predictions(run: Path) -> None:
    result, metrics = Result.read(run), read_json(run / "metrics.json")
    assert len(result.rows.targets) == len(result.texts) == metrics["test"]["rows"]
    scored = result.task.scores.score(result.rows.logits, result.rows.targets, seed=42)
    for name, value in scored.metrics.items():
        assert value == pytest.approx(metrics["test"][name], abs=1e-6), name
    assert result.rows.baseline is not None
    own = result.task.scores.row_scores(result.predicted, result.rows.targets)
    other = result.task.scores.row_scores(result.rows.baseline, result.rows.targets)
    paired = metrics["baseline"]["paired"]
    name = result.task.scores.row_metric
    gain = abs(metrics["test"][name] - metrics["baseline"][name])
    assert abs(own.mean() - other.mean()) == pytest.approx(gain)
    assert (paired["better"], paired["worse"]) == (int((own > other).sum()), int((own < other).sum()))


def test_hostile_texts_and_labels_are_inert(model_folder: Path, tmp_path: Path, capsys: Any) -> None:
    """And a run ends with the report's path."""
    rows = [(f"{HOSTILE} {text}", f"<i>{label}</i>") for text, label in tiny.table_rows(60)]
    table = tiny.write_table(tmp_path / "my.csv", rows)
    assert main(train_words(table, model_folder, tmp_path / "out")) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {tmp_path / 'out' / 'report.html'}"
    page = Page((tmp_path / "out" / "report.html").read_text())
    assert "<i>card</i>" in page.text
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert not {"b", "i"} & {tag for tag, _ in page.tags}


def test_texts_carry_their_language(model_folder: Path, table: Path, tmp_path: Path) -> None:
    """A screen reader speaks them in it; of mixed or unclear texts nothing is claimed."""
    folder = train(make_config(model_folder, table, tmp_path / "out", max_steps=1))
    settings = read_json(folder / "classify.json")
    for shares, expected in (
        ({"ar": 0.9, "en": 0.1}, {"ar"}),
        ({"de": 0.5, "en": 0.5}, {None}),
        ({"unclear": 1.0}, {None}),
    ):
        (folder / "classify.json").write_text(json.dumps({**settings, "languages": shares}))
        cells = [attributes for tag, attributes in Page(page_of(folder)).tags if tag == "td"]
        texts = [attributes.get("lang") for attributes in cells if attributes.get("class") == "text sample"]
        assert expected <= set(texts) <= {*expected, None}


def test_a_failure_is_a_note(
    model_folder: Path, table: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("no pixels left")

    monkeypatch.setattr("classify.report.page.render", fail)
    assert main(train_words(table, model_folder, tmp_path / "out")) == 0
    assert "report.html is not written (ValueError: no pixels left)" in capsys.readouterr().out


def test_many_classes_and_rows_stay_small(run: Path, tmp_path: Path) -> None:
    """20,000 rows of 150 classes: below 1 MB."""
    if Result.read(run).task.name != "single_label":
        pytest.skip("one task does")
    draw = np.random.default_rng(0)
    targets = draw.integers(150, size=20_000)
    logits = draw.normal(size=(20_000, 150)).astype(np.float32)
    logits[np.arange(20_000), targets] += 2.5
    task = single_label.make([f"class {number}" for number in range(150)])
    scores = task.scores.score(logits, targets, seed=0).as_json()
    result = Result.read(run)
    result = dataclasses.replace(
        result,
        task=task,
        rows=ScoredRows(np.arange(20_000, dtype=np.uint64), targets, logits, None, None),
        texts=("a long text " * 50,) * 20_000,
        scores=scores,
    )
    assert len(render(result).encode()) < 1 << 20


def test_the_confusions_of_ten_thousand_classes_take_little_memory(run: Path) -> None:
    """The matrix of all would take gigabytes."""
    if Result.read(run).task.name != "single_label":
        pytest.skip("one task does")
    targets = np.arange(20_000) % 10_000
    predicted = np.where(np.arange(20_000) % 4, targets, (targets + 1) % 10_000)
    rows = ScoredRows(np.arange(20_000, dtype=np.uint64), targets, np.zeros((20_000, 1), np.float32), predicted, None)
    result = dataclasses.replace(
        Result.read(run),
        task=single_label.make([f"class {number}" for number in range(10_000)]),
        rows=rows,
        texts=("a text",) * 20_000,
    )
    tracemalloc.start()
    found = confusion(result)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found is not None
    assert found["table"] is None
    assert len(found["pairs"]) == 132
    assert peak < 50 << 20


def test_the_sign_test_is_the_exact_one() -> None:
    draw = np.random.default_rng(0)
    first, second = draw.random(200) < 0.8, draw.random(200) < 0.7
    actual = sign_test(first, second)
    better, worse = int((first & ~second).sum()), int((second & ~first).sum())
    assert (actual.better, actual.worse) == (better, worse)
    assert actual.p == pytest.approx(binomtest(better, better + worse).pvalue)
    assert sign_test(first, first).p == 1.0
    assert json.dumps(dataclasses.asdict(actual))
