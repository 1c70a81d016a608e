"""Bars are for terminals and notebooks; columns are aligned."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classify import console
from classify.config.output import OutputConfig
from classify.config.schema import TrainingConfig
from classify.console import align_columns, progress_bar
from classify.data import source
from classify.data.formats.registry import read_table
from classify.data.tokenize import load_tokenizer, tokenize
from classify.evaluation.inference import compute_logits
from classify.modeling.hub import resolve_model
from classify.modeling.loading import load_pretrained
from classify.training import terminal


@pytest.mark.parametrize(
    ("terminal", "notebook", "enabled", "shown"),
    [
        (False, False, True, False),
        (True, False, True, True),
        (False, True, True, True),
        (True, True, False, False),
    ],
)
def test_where_a_bar_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, terminal: bool, notebook: bool, enabled: bool, shown: bool
) -> None:
    if notebook:
        monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    with progress_bar(4, 1, "row", enabled=enabled) as bar:
        bar.update(3)
        bar.refresh()
    assert ("4/4" in capsys.readouterr().err) is shown


@pytest.mark.parametrize(("options", "shown"), [({}, True), ({"quiet": True}, False), ({"json": True}, False)])
def test_passes_that_take_long_show_a_bar(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, options: dict[str, bool], shown: bool
) -> None:
    """Tokenising and scoring do, after two seconds, in a terminal, unless output is quiet or for programs."""
    monkeypatch.setattr(console, "_DELAY", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    terminal.configure(OutputConfig(**options))
    try:
        tokenizer = load_tokenizer(str(model_folder))
        tokens = tokenize(tokenizer, ["lost card"] * 300, 16)
        model = load_pretrained(resolve_model(str(model_folder)), ["a", "b"], seed=0, pad_token_id=0, dropout=0.0)
        compute_logits(model, tokens, np.arange(300), TrainingConfig(use_cpu=True).start())
    finally:
        terminal.configure(OutputConfig())
    printed = capsys.readouterr().err
    assert ("text/s" in printed) is shown
    assert ("row/s" in printed) is shown


def test_a_long_file_is_read_with_a_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    rows = [f"text {number},{'ab'[number % 2]}" for number in range(300)]
    (tmp_path / "my.csv").write_text("\n".join(["text,label", *rows]))
    short = read_table(str(tmp_path / "my.csv"))
    monkeypatch.setattr(console, "_DELAY", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(source, "_LONG_BYTES", 100)
    assert read_table(str(tmp_path / "my.csv")).arrow == short.arrow
    assert "B/s" in capsys.readouterr().err


def test_columns_are_aligned() -> None:
    assert align_columns([("run", "score"), ("a longer name", "1"), ("b", "")]) == [
        "run            score",
        "a longer name  1",
        "b",
    ]
