"""run.json: settings, decisions, devices and the status of a run."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from classify.config.run_config import RunConfig
from classify.data.files import write_json
from classify.data.splits import Splits
from classify.decision import Decision
from classify.errors import Interrupted
from classify.training.output import Output
from classify.versions import versions


@dataclass
class RunRecord:
    """The content of run.json.

    `earlier` are the starts of this run before this one, which continues from `from_step`.
    """

    folder: Path
    config: RunConfig
    splits: Splits
    decisions: list[Decision]
    topology: list[dict[str, Any]] = field(default_factory=list)
    strategy: str = "none"
    launcher: str = "none"
    precision: str = "fp32"
    extra: dict[str, Any] = field(default_factory=dict)
    earlier: list[dict[str, Any]] = field(default_factory=list)
    from_step: int = 0

    def add(self, decision: Decision) -> None:
        """Add a decision of a run that has begun."""
        self.decisions.append(decision)

    @contextlib.contextmanager
    def track_status(self, output: Output) -> Iterator[Self]:
        """Write the status "interrupted" inside, since a killed process cannot; "failed" after an error."""
        with output.world.sync_errors(), output.writing("run.json"):
            if output.is_writer:
                self.write("interrupted")
        try:
            yield self
        except (Interrupted, KeyboardInterrupt):
            raise
        except BaseException:
            if output.is_writer:
                with contextlib.suppress(OSError):  # a full disk, say: what went wrong first is the error to report
                    self.write("failed")
            raise

    def write(self, status: str) -> None:
        """Write run.json with the run's status: finished, interrupted or failed."""
        table = self.splits.tables[0]
        write_json(
            self.folder / "run.json",
            {
                "command": sys.orig_argv,
                "commands": [*self.earlier, {"command": sys.orig_argv, "from_step": self.from_step, "status": status}],
                "cwd": os.getcwd(),
                "given": self.config.given(),
                "config": self.config.to_dict(),
                "sources": {name: str(source) for name, source in self.config.sources.items()},
                "guesses": [decision.as_json() for decision in self.decisions],
                "versions": versions(),
                "data": {
                    "path": table.path,
                    "sha256": table.sha256,
                    "form": table.form,
                    "rows": len(table),
                    "skipped": table.skipped,
                    "columns": table.columns,
                    "fingerprint": self.splits.fingerprint,
                },
                "seed": self.config.training.seed,
                "topology": self.topology,
                "strategy": self.strategy,
                "launcher": self.launcher,
                "precision": self.precision,
                **self.extra,
                "status": status,
            },
        )
