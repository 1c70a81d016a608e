"""Bars are for terminals and notebooks; columns are aligned."""

from __future__ import annotations

import contextlib
import os
import pty
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classify import console
from classify.config.schema import OutputConfig, TrainingConfig
from classify.console import ProgressLines, progress_bar
from classify.data.tokenize import load_tokenizer, tokenize
from classify.evaluation.inference import compute_logits
from classify.modeling.find import resolve_model
from classify.modeling.load import load_pretrained
from classify.training import terminal
from tests.support.worlds import start_world


@pytest.mark.parametrize(
    ("terminal", "notebook", "enabled", "shown"),
    [(False, False, True, False), (True, False, True, True), (False, True, True, True), (True, True, False, False)],
)
def test_where_a_bar_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, terminal: bool, notebook: bool, enabled: bool, shown: bool
) -> None:
    if notebook:
        monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    with progress_bar(4, 1, "row", enabled=enabled) as bar:
        bar.update(3)
        if not isinstance(bar, ProgressLines):
            bar.refresh()
    assert ("4/4" in capsys.readouterr().err) is shown


def test_a_terminal_that_has_closed_ends_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing to it fails with an input/output error; later lines go nowhere."""
    controller, terminal = pty.openpty()
    stream = os.fdopen(terminal, "w")
    monkeypatch.setattr(sys, "stdout", stream)
    console.print_line("before")
    os.close(controller)
    console.print_line("after")
    assert sys.stdout is not stream
    console.print_line("more")
    sys.stdout.close()
    with contextlib.suppress(OSError):  # "after" is still in its buffer
        stream.close()


@pytest.mark.parametrize(("options", "shown"), [({}, True), ({"quiet": True}, False), ({"json": True}, False)])
def test_passes_that_take_long_show_a_bar(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, options: dict[str, bool], shown: bool
) -> None:
    """Tokenising and scoring do, after two seconds, in a terminal, unless output is quiet or for programs."""
    monkeypatch.setattr(console, "_DELAY", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    terminal.configure_terminal(OutputConfig(**options))
    try:
        tokenizer = load_tokenizer(str(model_folder))
        tokens = tokenize(tokenizer, ["lost card"] * 300, 16)
        model = load_pretrained(resolve_model(str(model_folder)), ["a", "b"], seed=0, pad_token_id=0, dropout=0.0)
        compute_logits(model, tokens, np.arange(300), start_world(TrainingConfig(use_cpu=True)))
    finally:
        terminal.configure_terminal(OutputConfig())
    printed = capsys.readouterr().err
    assert ("text/s" in printed) is shown
    assert ("row/s" in printed) is shown


def test_a_reader_that_leaves_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `| head` does between two lines of progress."""
    monkeypatch.setattr(console, "_INTERVAL", 0.0)
    reader, writer = os.pipe()
    os.close(reader)
    stream = open(writer, "w", encoding="utf-8")  # noqa: SIM115 - closing it would flush it
    monkeypatch.setattr(sys, "stdout", stream)
    lines = ProgressLines(4, 0, "step")
    for _ in range(3):
        lines.update()
    assert sys.stdout.name == os.devnull
    with pytest.raises(BrokenPipeError):
        stream.close()


def test_where_there_is_no_terminal_progress_is_lines(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """One every ten seconds at most; none under --quiet and --json."""
    seconds = iter([0.0, 4.0, 11.0, 12.0, 22.0])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(seconds))
    with progress_bar(40, 0, "step", enabled=True) as bar:
        for postfix in ("", "loss 0.7", "loss 0.6", "loss 0.5"):
            bar.set_postfix_str(postfix)
            bar.update(5)
    assert capsys.readouterr().out.splitlines() == [
        "10 of 40 steps, 0.909 steps/s, 33 s left, loss 0.7",
        "20 of 40 steps, 0.909 steps/s, 22 s left, loss 0.5",
    ]
    monkeypatch.setattr(console, "_allowed", False)
    assert not isinstance(progress_bar(40, 0, "step", enabled=True), ProgressLines)
