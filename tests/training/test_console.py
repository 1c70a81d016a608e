"""Bars are for terminals and notebooks; columns are aligned."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from classify.console import align_columns, progress_bar


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


def test_columns_are_aligned() -> None:
    assert align_columns([("run", "score"), ("a longer name", "1"), ("b", "")]) == [
        "run            score",
        "a longer name  1",
        "b",
    ]
