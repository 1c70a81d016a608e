"""The output folder: which one, whether it may be used, made, and kept from other runs by a lock.

It is planned before torch is imported, and acquired once there is a world.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock

from classify import training
from classify.config.run_config import FIELDS, RunConfig
from classify.config.stored_run import CHECKPOINTS, run_folder
from classify.errors import DiskError, InputError, disk_refusal
from classify.files import TEMPORARY, flush, make_folders, read_json, remove_temporaries, split_paths, why_not_writable
from classify.launch.launch import Launch
from classify.tables.source import stem_of

if TYPE_CHECKING:
    from classify.distributed.world import World

# The lock lies in the folder itself, since the folder above may not be writable. A folder with only it is empty.
LOCK = ".lock"
# Processes that only look whether a folder is free hold its lock for a moment.
_LOCK_SECONDS = 1.0
# Folder of the runs that are given no --output-dir.
_RUNS = Path("runs")


@dataclass(frozen=True)
class OutputDirPlan:
    """Plan of the output folder: its path (None: the next free runs/<stem>-<n>), and a checkpoint to resume.

    `overwrite` empties the folder first; `resume` continues the run in it.
    """

    folder: Path | None
    stem: str
    checkpoint: Path | None = None
    overwrite: bool = False
    resume: bool = False

    @property
    def recorded(self) -> dict[str, Any]:
        """run.json of the run that is resumed; {} where there is none, or nobody can read it."""
        with contextlib.suppress(OSError, ValueError):
            recorded = read_json(self.folder / "run.json") if self.resume and self.folder is not None else {}
            return recorded if isinstance(recorded, dict) else {}
        return {}


def plan_output_dir(config: RunConfig, launch: Launch) -> OutputDirPlan:
    """Choose the output folder without writing to disk. Raises InputError where it cannot be used."""
    settings = config.training
    assert config.data.data is not None
    stem, resume, checkpoint = stem_of(config.data.data), settings.resume_from_checkpoint, None
    folder = None if settings.output_dir is None else Path(settings.output_dir)
    if isinstance(resume, str):
        if launch.checks_output_dir and not Path(resume).is_dir():
            raise InputError(f"--resume {resume}: no such folder. Expected a run's folder, or a checkpoint in it.")
        checkpoint = Path(resume) if Path(resume).parent.name == CHECKPOINTS else None
        if folder is not None and folder.resolve() != run_folder(resume).resolve():
            raise InputError(
                f"--resume {resume} and --output-dir {folder} name different folders; give only one of them."
            )
        folder = run_folder(resume)
    elif resume and folder is None and (numbers := _list_numbers(stem)):
        folder = _RUNS / f"{stem}-{numbers[-1]}"
    plan = OutputDirPlan(folder, stem, checkpoint, settings.overwrite_output_dir, bool(resume))
    if not launch.checks_output_dir:
        return plan
    if folder is None:
        check_writable(_RUNS)
        return plan
    if (folder / LOCK).exists():
        with lock(folder):
            pass
    names = [name for name, (_, spec) in FIELDS.items() if spec.metadata["is_path"]]
    values = config.flat()
    check_folder(plan, folder, [path for name in names if values[name] for path in split_paths(values[name])])
    return plan


def check_folder(plan: OutputDirPlan, folder: Path, inputs: Sequence[str | None] = ()) -> None:
    """Raise InputError where a run may not go into a folder of this machine.

    A folder with files must hold a run to be resumed, or one to be overwritten that holds no input of this run.
    """
    check_writable(folder)
    if not folder.is_dir() or not any(_entries(folder)):
        return
    has_record = (folder / "run.json").exists()
    if plan.overwrite:
        if not has_record:
            raise InputError(
                f"--overwrite-output-dir: {folder} does not look like an earlier run (it has no run.json), so it is "
                "not emptied. Give another --output-dir, or empty it yourself."
            )
        inside = [name for name in inputs if name and Path(name).resolve().is_relative_to(folder.resolve())]
        if inside:
            raise InputError(
                f"--overwrite-output-dir: {folder} contains {inside[0]}, an input of this run; move it first."
            )
    elif not plan.resume:
        raise InputError(
            f"--output-dir {folder}: the folder exists and is not empty. Give another, --resume to continue "
            "its run, or --overwrite-output-dir to empty it."
        )
    elif not has_record and not (folder / CHECKPOINTS).is_dir():
        raise InputError(
            f"--resume: {folder} holds files but no run of this program (neither run.json nor {CHECKPOINTS}/). Give "
            "the output folder of a run."
        )


def check_writable(folder: Path) -> None:
    """Raise InputError where a folder is not writable, or cannot be made."""
    if folder.is_dir():
        # A trial as below would be seen by another rank, which looks whether the folder is empty.
        if not os.access(folder, os.W_OK | os.X_OK):
            raise InputError(f"--output-dir {folder}: not writable; give another folder.")
        return
    if folder.exists():
        raise InputError(f"--output-dir {folder}: expected a folder. Got a file instead.")
    above = next(path for path in folder.absolute().parents if path.exists())
    reason = why_not_writable(above)
    if reason is not None:
        cause = f"{above} is not writable ({reason})" if above.is_dir() else f"{above} is a file"
        raise InputError(f"--output-dir {folder}: cannot be made, because {cause}; give another folder.")


def _list_numbers(stem: str) -> list[int]:
    names = (path.name[len(stem) + 1 :] for path in _RUNS.glob(f"{glob.escape(stem)}-*"))
    return sorted(int(name) for name in names if name.isdecimal())


def _entries(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if path.name != LOCK and not path.name.startswith(TEMPORARY))


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Keep other runs out of an output folder until the block ends, or its process in any way.

    Raises InputError where another run holds the lock.
    """
    path = folder / LOCK
    held = filelock.FileLock(path)
    try:
        held.acquire(timeout=_LOCK_SECONDS)
    except filelock.Timeout:
        raise InputError(
            f"--output-dir {folder}: another run is using this folder. Wait until it ends, or give another "
            "--output-dir."
        ) from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # while the lock is held: who waits for it notices and makes a new one
            path.unlink()
        held.release()


@contextlib.contextmanager
def acquire_folder(plan: OutputDirPlan) -> Iterator[Path]:
    """Create the output folder on the process that is to write it, and lock it until the block ends.

    Raises InputError where another run holds it, or has used it since it was checked.
    """
    folder = plan.folder
    if folder is None:
        folder = _make_numbered(plan.stem)
    else:
        make_folders(folder)
    with lock(folder):
        check_folder(plan, folder)
        remove_temporaries(folder)
        remove_temporaries(folder / CHECKPOINTS)
        if plan.overwrite:
            for entry in _entries(folder):
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        yield folder


def _make_numbered(stem: str) -> Path:
    """Make the next free runs/<stem>-<n>; another run may take a number at the same time."""
    make_folders(_RUNS)
    while True:
        folder = _RUNS / f"{stem}-{max(_list_numbers(stem), default=0) + 1}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            flush(_RUNS)
            return folder


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
            kept = [f"{CHECKPOINTS}/{path.name}" for path in training.checkpoint.list_finished(self.checkpoints)]
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
