"""A table that comes through a pipe."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT, rank_environments


def pipe_in(folder: Path, table: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    with table.open("rb") as stream:
        return subprocess.run(
            [sys.executable, ROOT / "run_classify.py", *words],
            stdin=stream,
            cwd=folder,
            env={**os.environ, "TMPDIR": str(folder), **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )


@pytest.mark.slow
def test_a_table_on_standard_input(model_folder: Path, table: Path, tmp_path: Path) -> None:
    words = ["--data", "-", "--model", str(model_folder), "--cpu", "--max-steps", "1", "--contrastive-steps", "0"]
    done = pipe_in(tmp_path, table, *words)
    assert done.returncode == 0, done.stderr
    assert "table: -, 120 rows" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["runs"], "what was written down is gone"
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["stdin-1"]


def test_several_readers_are_refused(table: Path, tmp_path: Path) -> None:
    done = pipe_in(tmp_path, table, "--data", "-", "--test-data", "-")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--data and --test-data both name standard input" in done.stderr
    done = pipe_in(tmp_path, table, "--data", "-", **rank_environments(2)[0])
    assert done.returncode == 2
    assert "only one of several processes can read a stream" in done.stderr
