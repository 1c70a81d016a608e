"""train_log.jsonl: a line for every few steps and for every evaluation."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from classify.data.files import whole_file


class TrainLog:
    """train_log.jsonl: one JSON object a line. A resumed run first drops the lines beyond its checkpoint."""

    def __init__(self, path: Path, after_step: int):
        kept: list[str] = []
        if after_step and path.exists():
            kept = [line for line in _json_lines(path) if json.loads(line).get("step", 0) <= after_step]
        with whole_file(path) as file:
            file.writelines(kept)
        self._file = path.open("a", encoding="utf-8")

    def write(self, values: dict[str, Any]) -> None:
        """Append one line and hand it to the operating system."""
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _json_lines(path: Path) -> Iterable[str]:
    """Complete lines of a file that may end in the middle of one."""
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            json.loads(line)
        except ValueError:
            continue
        if line.endswith("\n"):
            yield line
