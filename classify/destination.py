"""The output folder: which one, whether it may be used, and made."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from classify import attempts, launch
from classify.config import RunConfig
from classify.errors import InputError

CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Destination:
    """Where a run goes: the folder (None: runs/<stem>-<n>, n above all there are), and a checkpoint to go on from.

    `overwrite` empties the folder first; `resume` goes on with the run in it.
    """

    folder: Path | None
    stem: str
    checkpoint: Path | None = None
    overwrite: bool = False
    resume: bool = False


def check_destination(config: RunConfig) -> Destination:
    """Settle the output folder as far as that goes without writing. Raises InputError where it cannot be used."""
    training = config.training
    assert config.data.data is not None
    stem = Path(config.data.data).stem
    resume = training.resume_from_checkpoint
    named = Path(training.output_dir) if training.output_dir is not None else None
    checkpoint = None
    if isinstance(resume, str):
        wanted = Path(resume)
        if wanted.parent.name == CHECKPOINTS and is_of_this_job(wanted.parent.parent):
            wanted = wanted.parent.parent  # an attempt before this one went on from there, and further
        if launch.looks_at_folders() and not wanted.is_dir():
            raise InputError(f"--resume {resume}: no such folder. Expected a run's folder, or a checkpoint in it.")
        if wanted.name == CHECKPOINTS:
            wanted = wanted.parent
        elif wanted.parent.name == CHECKPOINTS:
            checkpoint, wanted = wanted, wanted.parent.parent
        if named is not None and named.resolve() != wanted.resolve():
            raise InputError(f"--resume {resume} and --output-dir {named} name two runs; give one of them.")
        named = wanted
    elif resume and named is None:
        earlier = [path for _, path in _numbered(stem)]
        named = earlier[-1] if earlier else None
    destination = Destination(named, stem, checkpoint, training.overwrite_output_dir, bool(resume))
    if named is None:
        if launch.looks_at_folders():
            _check_usable(Path("runs"), may_hold_files=True)
    elif launch.looks_at_folders() and begun_before(destination) is None:
        data = config.data
        check_folder(destination, named, [data.data, data.eval_data, data.test_data, config.model.name])
    return destination


def check_folder(destination: Destination, folder: Path, inputs: Sequence[str | None] = ()) -> None:
    """Raise InputError where a run may not go into a folder of this machine: it holds files that are somebody's."""
    _check_usable(folder, may_hold_files=destination.resume or destination.overwrite)
    if destination.overwrite:
        _check_disposable(folder, inputs)
    elif destination.resume:
        _check_is_run(folder)


def begun_before(destination: Destination) -> Destination | None:
    """Where an earlier attempt of this job began, to go on from its newest checkpoint; None where none did.

    A launcher that starts a job anew gives the same command: --output-dir is not empty any more, and without it the
    next free folder would be taken.
    """
    folders = (
        [destination.folder] if destination.folder else [path for _, path in reversed(_numbered(destination.stem))]
    )
    found = next((folder for folder in folders if is_of_this_job(folder)), None)
    return None if found is None else Destination(found, destination.stem, resume=True)


def is_of_this_job(folder: Path) -> bool:
    """Whether the run in a folder was begun by this job of the launcher."""
    job = attempts.job_name()
    if job is None:
        return False
    try:
        found: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        return job in found["job"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _check_usable(folder: Path, *, may_hold_files: bool) -> None:
    if folder.is_dir():
        if not os.access(folder, os.W_OK | os.X_OK):
            raise InputError(f"--output-dir {folder}: not writable; give another folder.")
        if not may_hold_files and any(folder.iterdir()):
            raise InputError(
                f"--output-dir {folder}: the folder exists and is not empty. Give another, --resume to go on with "
                "its run, or --overwrite-output-dir to empty it."
            )
        return
    if folder.exists():
        raise InputError(f"--output-dir {folder}: expected a folder. Got a file instead.")
    above = folder.absolute()
    while not above.exists():
        above = above.parent
    if not above.is_dir():
        raise InputError(f"--output-dir {folder}: cannot be made, because {above} is a file.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"--output-dir {folder}: cannot be made, because {above} is not writable.")


def _check_is_run(folder: Path) -> None:
    """A run goes on in its own folder only: another one that holds files is somebody's work."""
    holds_run = (folder / "run.json").exists() or (folder / CHECKPOINTS).is_dir()
    if folder.is_dir() and any(folder.iterdir()) and not holds_run:
        raise InputError(
            f"--resume: {folder} holds files but no run of this program (neither run.json nor {CHECKPOINTS}/). Give "
            "the output folder of a run."
        )


def _check_disposable(folder: Path, inputs: Sequence[str | None]) -> None:
    """Emptying a folder is for earlier runs alone: never for a folder of other things, or one that is to be read."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not (folder / "run.json").exists():
        raise InputError(
            f"--overwrite-output-dir: {folder} does not look like an earlier run (it has no run.json), so it is not "
            "emptied. Give another --output-dir, or empty it yourself."
        )
    inside = [name for name in inputs if name and Path(name).resolve().is_relative_to(folder.resolve())]
    if inside:
        raise InputError(f"--overwrite-output-dir: {folder} holds {inside[0]}, which is to be read. Move it first.")


def _numbered(stem: str) -> list[tuple[int, Path]]:
    """Existing folders runs/<stem>-<n>, by n."""
    base = Path("runs")
    if not base.is_dir():
        return []
    found = [
        (int(path.name[len(stem) + 1 :]), path)
        for path in base.iterdir()
        if path.name.startswith(f"{stem}-") and path.name[len(stem) + 1 :].isdecimal()
    ]
    return sorted(found)


def make_folder(destination: Destination) -> Path:
    """Create the output folder, on the process that is to write it, and return it."""
    if destination.folder is not None:
        if destination.overwrite and destination.folder.is_dir():
            for entry in destination.folder.iterdir():
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        destination.folder.mkdir(parents=True, exist_ok=True)
        return destination.folder
    number = max((number for number, _ in _numbered(destination.stem)), default=0)
    Path("runs").mkdir(exist_ok=True)
    while True:
        number += 1
        folder = Path("runs") / f"{destination.stem}-{number}"
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
