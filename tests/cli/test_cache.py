"""`classify cache`: what is kept of tables between runs, how much that is, and how to forget them."""

from __future__ import annotations

from pathlib import Path

import pytest

from classify.cli import main


def test_what_is_kept_and_how_it_goes(
    model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "cache" / "classify" / "tables"
    assert main(["cache"]) == 0
    assert capsys.readouterr().out.startswith(f"{folder}: 0 entries, 0.0 of up to ")
    assert main(["inspect", "--data", str(table), "--model", str(model_folder)]) == 0
    capsys.readouterr()
    assert main(["cache"]) == 0
    assert f"{folder}: 1 entries" in capsys.readouterr().out
    assert folder.stat().st_mode & 0o077 == 0, "its owner's alone: it holds people's texts"
    assert main(["cache", "--clear"]) == 0
    assert f"{folder}: 0 entries" in capsys.readouterr().out
    assert main(["cache", "--clean"]) == 2
