"""Somebody who types commands in a folder of their own, and what they see; torch must not be imported too early."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.processes import ROOT

# Runs the program and says on descriptor 3 whether torch was imported, so that stdout and stderr stay the program's.
RUNNER = """
import os, sys
sys.path.insert(0, {root!r})
from classify.cli import main
try:
    code = main(sys.argv[2:], program=sys.argv[1])
except SystemExit as end:  # argparse ends the program after --help
    code = end.code
heavy = [name for name in ("torch", "transformers", "datasets", "pandas", "sklearn") if name in sys.modules]
with open({report!r}, "w") as file:
    file.write(",".join(heavy))
raise SystemExit(code)
"""


class Person:
    """Types commands in a folder of their own."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.report = folder.parent / "report.txt"

    def write(self, name: str, content: str | bytes) -> None:
        data = content.encode() if isinstance(content, str) else content
        (self.folder / name).write_bytes(data)

    def types(
        self, *words: str, program: str = "run_classify.py", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        code = RUNNER.format(root=str(ROOT), report=str(self.report))
        self.report.unlink(missing_ok=True)
        return subprocess.run(
            [sys.executable, "-c", code, program, *words],
            cwd=self.folder,
            env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    def fails(self, *words: str, program: str = "run_classify.py", **environment: str) -> str:
        """Assert all that holds for every bad input; returns the line."""
        before = sorted(self.folder.rglob("*"))
        done = self.types(*words, program=program, **environment)
        assert done.returncode == 2, done.stderr
        assert done.stdout == ""
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1, done.stderr
        assert sorted(self.folder.rglob("*")) == before
        assert self.report.read_text() == ""
        return done.stderr
