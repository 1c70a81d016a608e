"""The output folder: which one, whether it may be used, made, and kept from other runs by a lock."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from classify.config.run_config import FIELDS, RunConfig
from classify.config.stored_run import CHECKPOINTS, run_folder
from classify.errors import InputError
from classify.files import TEMPORARY, flush, make_folders, remove_temporaries, split_paths, why_not_writable
from classify.launch.launch import Launch
from classify.tables.source import stem_of

# The lock lies in the folder itself, since the folder above may not be writable. A folder with only it is empty.
LOCK = ".lock"
# Processes that only look whether a folder is free hold its lock for a moment.
_LOCK_SECONDS = 1.0


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


def plan_output_dir(config: RunConfig, launch: Launch) -> OutputDirPlan:
    """Choose the output folder without writing to disk. Raises InputError where it cannot be used."""
    training = config.training
    assert config.data.data is not None
    stem = stem_of(config.data.data)
    resume = training.resume_from_checkpoint
    named = Path(training.output_dir) if training.output_dir is not None else None
    checkpoint = None
    if isinstance(resume, str):
        requested_dir = Path(resume)
        if launch.checks_output_dir and not requested_dir.is_dir():
            raise InputError(f"--resume {resume}: no such folder. Expected a run's folder, or a checkpoint in it.")
        checkpoint = requested_dir if requested_dir.parent.name == CHECKPOINTS else None
        requested_dir = run_folder(str(requested_dir))
        if named is not None and named.resolve() != requested_dir.resolve():
            raise InputError(
                f"--resume {resume} and --output-dir {named} name different folders; give only one of them."
            )
        named = requested_dir
    elif resume and named is None:
        earlier = [path for _, path in _list_numbered(stem)]
        named = earlier[-1] if earlier else None
    plan = OutputDirPlan(named, stem, checkpoint, training.overwrite_output_dir, bool(resume))
    if named is None:
        if launch.checks_output_dir:
            _check_usable(Path("runs"), may_hold_files=True)
    elif launch.checks_output_dir:
        if (named / LOCK).exists():
            FolderLock(named).release()
        names = [name for name, (_, spec) in FIELDS.items() if spec.metadata["path"] == "table"]
        tables = [path for name in names if (paths := getattr(config.data, name)) for path in split_paths(paths)]
        check_folder(plan, named, [*tables, config.model.name])
    return plan


def check_folder(plan: OutputDirPlan, folder: Path, inputs: Sequence[str | None] = ()) -> None:
    """Raise InputError where a run may not go into a folder of this machine: its files may not be overwritten."""
    _check_usable(folder, may_hold_files=plan.resume or plan.overwrite)
    if plan.overwrite:
        _check_disposable(folder, inputs)
    elif plan.resume:
        _check_is_run(folder)


def _check_usable(folder: Path, *, may_hold_files: bool) -> None:
    if folder.is_dir():
        # A trial as below would be seen by another rank, which looks whether the folder is empty.
        if not os.access(folder, os.W_OK | os.X_OK):
            raise InputError(f"--output-dir {folder}: not writable; give another folder.")
        if not may_hold_files and any(_entries(folder)):
            raise InputError(
                f"--output-dir {folder}: the folder exists and is not empty. Give another, --resume to continue "
                "its run, or --overwrite-output-dir to empty it."
            )
        return
    if folder.exists():
        raise InputError(f"--output-dir {folder}: expected a folder. Got a file instead.")
    above = nearest_existing(folder)
    if not above.is_dir():
        raise InputError(f"--output-dir {folder}: cannot be made, because {above} is a file; give another folder.")
    reason = why_not_writable(above)
    if reason is not None:
        raise InputError(
            f"--output-dir {folder}: cannot be made, because {above} is not writable ({reason}); give another folder."
        )


def nearest_existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    above = folder.absolute()
    while not above.exists():
        above = above.parent
    return above


def _check_is_run(folder: Path) -> None:
    """Raise InputError where a folder with files is not that of a run, which alone is resumed."""
    holds_run = (folder / "run.json").exists() or (folder / CHECKPOINTS).is_dir()
    if folder.is_dir() and any(_entries(folder)) and not holds_run:
        raise InputError(
            f"--resume: {folder} holds files but no run of this program (neither run.json nor {CHECKPOINTS}/). Give "
            "the output folder of a run."
        )


def _check_disposable(folder: Path, inputs: Sequence[str | None]) -> None:
    """Raise InputError unless the folder is an earlier run's and holds no input of this run."""
    if not folder.is_dir() or not any(_entries(folder)):
        return
    if not (folder / "run.json").exists():
        raise InputError(
            f"--overwrite-output-dir: {folder} does not look like an earlier run (it has no run.json), so it is not "
            "emptied. Give another --output-dir, or empty it yourself."
        )
    inside = [name for name in inputs if name and Path(name).resolve().is_relative_to(folder.resolve())]
    if inside:
        raise InputError(f"--overwrite-output-dir: {folder} contains {inside[0]}, an input of this run; move it first.")


def _list_numbered(stem: str) -> list[tuple[int, Path]]:
    """List the existing folders runs/<stem>-<n>, by n."""
    base = Path("runs")
    if not base.is_dir():
        return []
    folders = [
        (int(path.name[len(stem) + 1 :]), path)
        for path in base.iterdir()
        if path.name.startswith(f"{stem}-") and path.name[len(stem) + 1 :].isdecimal()
    ]
    return sorted(folders)


def _entries(folder: Path) -> Iterator[Path]:
    """List a folder without its lock and the unfinished files of a killed process."""
    return (path for path in folder.iterdir() if path.name != LOCK and not path.name.startswith(TEMPORARY))


class FolderLock:
    """Keeps other runs out of an output folder until it is released, or its process has ended in any way."""

    def __init__(self, folder: Path):
        """Take the lock. Raises InputError where another run holds it."""
        import filelock

        self._path = folder / LOCK
        self._lock = filelock.FileLock(self._path)
        try:
            self._lock.acquire(timeout=_LOCK_SECONDS)
        except filelock.Timeout:
            raise InputError(
                f"--output-dir {folder}: another run is using this folder. Wait until it ends, or give another "
                "--output-dir."
            ) from None

    def release(self) -> None:
        """Release the lock and delete its file."""
        if self._lock.is_locked:
            with contextlib.suppress(OSError):  # while the lock is held: who waits for it notices and makes a new one
                self._path.unlink()
            self._lock.release()


def acquire_folder(plan: OutputDirPlan) -> tuple[Path, FolderLock]:
    """Create the output folder on the process that is to write it, and lock it, for the caller to release.

    Raises InputError where another run holds it, or has used it since it was checked.
    """
    folder = plan.folder
    if folder is None:
        folder = _make_numbered(plan.stem)
    else:
        make_folders(folder)
    lock = FolderLock(folder)
    try:
        check_folder(plan, folder)
        remove_temporaries(folder)
        remove_temporaries(folder / CHECKPOINTS)
        if plan.overwrite:
            for entry in _entries(folder):
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    except BaseException:
        lock.release()
        raise
    return folder, lock


def _make_numbered(stem: str) -> Path:
    """Make and return the next free runs/<stem>-<n>."""
    number = max((number for number, _ in _list_numbered(stem)), default=0)
    make_folders(Path("runs"))
    while True:
        number += 1
        folder = Path("runs") / f"{stem}-{number}"
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        flush(folder.parent)
        return folder
