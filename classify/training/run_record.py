"""run.json: settings, decisions, devices and the status of a run."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from classify.config.stored_run import earlier_commands
from classify.data.sampler import BatchSampler, balance_by_cost, token_cost
from classify.data.tokenize import TokenizedSplit
from classify.errors import Interrupted
from classify.files import write_json
from classify.findings import Finding, decisions, notes
from classify.modeling.result_folder import describe_start
from classify.training.output_dir import Output
from classify.training.setup import TrainingContext
from classify.training.table_report import count_tokens
from classify.training.terminal import Timeline


@dataclass
class RunRecord:
    """The content of run.json: `values`, and what changes during the run.

    `commands` are all starts of the run; the last one is this.
    """

    folder: Path
    values: dict[str, Any]
    commands: list[dict[str, Any]]
    findings: list[Finding]
    timeline: Timeline

    @contextlib.contextmanager
    def track_status(self, output: Output) -> Iterator[Self]:
        """Record "interrupted" while the block runs, since a killed process cannot later; "failed" after an error."""
        with output.world.sync_errors(), output.writing("run.json"):
            if output.is_writer:
                self.write("interrupted")
        try:
            yield self
        except (Interrupted, KeyboardInterrupt):
            raise
        except BaseException:
            if output.is_writer:
                with contextlib.suppress(OSError):  # e.g. a full disk: the first error is the one to report
                    self.write("failed")
            raise

    def write(self, status: str) -> None:
        """Write run.json with the run's status: finished, interrupted or failed."""
        *earlier, this = self.commands
        changing = {
            "commands": [*earlier, {**this, "status": status}],
            "guesses": [decision.as_guess() for decision in decisions(self.findings)],
            "findings": [finding.as_json() for finding in notes(self.findings)],
            "status": status,
            "seconds": self.timeline.seconds,
        }
        write_json(self.folder / "run.json", {**self.values, **changing})


def make_record(context: TrainingContext, learned: TokenizedSplit, batches: BatchSampler) -> RunRecord:
    """Make the record of a run that begins, or continues; `learned` are the rows that it trains on."""
    config, splits, world, data = context.config, context.splits, context.world, context.data
    inspection, table, train = context.inputs.inspection, splits.tables[0], data.of(splits.train)
    if context.output.is_writer:
        cap = context.inputs.model.max_length
        count_tokens(inspection, splits, train.tokens, data.max_length, cap, data.tokenizer)
    # Texts are shared by token cost, so the ranks' rows of a step may differ by a few.
    lengths = learned.tokens.lengths(learned.rows[batches.step_at(0).indices])
    shards = balance_by_cost(token_cost(lengths, context.classifier.hidden_size), world.world_size)
    start = describe_start(table, context.inputs.task.name)
    values = {
        **start,
        "commands": [],
        "given": config.explicit_values(),
        "config": config.to_dict(),
        "sources": dict(config.sources),
        "data": {**start["data"], "fingerprint": splits.fingerprint},
        "label_sources": [asdict(verdict) for verdict in context.inputs.verdicts],
        "seed": config.training.seed,
        "topology": [
            {**entry, "rows_per_step": len(shard)} for entry, shard in zip(world.topology, shards, strict=True)
        ],
        "parts": context.inputs.parts.names(),
        "strategy": world.plan.strategy,
        "launcher": world.plan.launch.launcher,
        "precision": context.classifier.precision.name,
        "parallel_mode": world.plan.parallel_mode.value,
        "n_gpu": world.plan.n_gpu,
        "packed": context.classifier.packed,
        "kernels": list(context.classifier.kernels),
        "max_length": data.max_length,
        "batch_size": batches.batch_size,
        "inspection": asdict(inspection),
    }
    folder = context.output.folder
    this = {"command": sys.orig_argv, "from_step": 0 if context.checkpoint is None else context.checkpoint.step}
    return RunRecord(folder, values, [*earlier_commands(folder), this], list(context.findings), context.timeline)
