"""The output folder of a run, acquired and locked."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from classify.config.stored_run import CHECKPOINTS
from classify.distributed.world import World
from classify.errors import DiskError, disk_refusal
from classify.training import checkpoint
from classify.training.output_dir import OutputDirPlan, acquire_folder


@dataclass(frozen=True)
class Output:
    """The output folder of a run that has begun.

    `is_writer` is True on the main process, and on one per machine under --save-on-each-node.
    """

    folder: Path
    plan: OutputDirPlan
    world: World
    is_writer: bool

    @property
    def resumes(self) -> bool:
        return self.plan.resume

    @property
    def checkpoints(self) -> Path:
        return self.folder / CHECKPOINTS

    @contextlib.contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """Raise DiskError if writing fails in this block; it names the checkpoints that the folder keeps."""
        try:
            yield
        except Exception as error:
            reason = disk_refusal(error)
            if reason is None:
                raise
            kept = [f"{CHECKPOINTS}/{path.name}" for path in checkpoint.list_finished(self.checkpoints)]
            raise DiskError(
                f"{self.folder}: {what} could not be written: {reason}. Kept: {', '.join(kept) or 'nothing yet'}. Fix "
                f"that (free some space, for example) and continue with --resume {shlex.quote(str(self.folder))}."
            ) from error


@contextlib.contextmanager
def acquire_output_dir(plan: OutputDirPlan, world: World, *, each_node: bool) -> Iterator[Output]:
    """Make the output folder and lock it until the block ends; with `each_node` on each machine. A collective.

    Raises InputError where it cannot be used, for example since two machines share the disk under --save-on-each-node.
    """
    with contextlib.ExitStack() as held:
        answer = None
        with world.sync_errors():
            if world.is_main:
                answer = str(held.enter_context(acquire_folder(plan)))
        plan = replace(plan, folder=Path(world.broadcast(answer)))
        assert plan.folder is not None
        is_writer = world.is_main or (each_node and world.is_local_main)
        with world.sync_errors():
            if is_writer and not world.is_main:
                held.enter_context(acquire_folder(plan))
        yield Output(plan.folder, plan, world, is_writer)
