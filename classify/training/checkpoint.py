"""Atomic checkpoints, written by rank 0 (or one process per machine).

A checkpoint is written into a temporary sibling folder: weights and optimizer state as safetensors, everything else
as JSON, then a manifest with every file's size and SHA-256 as the last file. Each file is flushed to the disk, the
folder renamed into place and the parent flushed. Only then is an older one removed, which is renamed first. Nothing is
ever unpickled.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from classify.errors import CheckpointError
from classify.files import TEMPORARY, atomic_path, file_sha256, flush, make_folders, read_json, remove_temporaries
from classify.training.progress import Progress

MANIFEST = "manifest.json"
_FORMAT = 1
# Keys of state.json. `resume.require_same_run` compares the last three with this run's.
STATE = {"step", "progress", "optimizer", "scaler", "identity", "model_folder", "settings"}
_FILES = ("model.safetensors", "optimizer.safetensors", "state.json")
_NAME = re.compile(r"step-(\d{8,})$")


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint on disk, with its state.json."""

    path: Path
    state: dict[str, Any]

    @property
    def step(self) -> int:
        return int(self.state["step"])

    @property
    def progress(self) -> Progress:
        """A copy of the progress of training. Raises TypeError where an unknown version wrote it."""
        return Progress(**self.state["progress"])

    def model_tensors(self) -> dict[str, torch.Tensor]:
        return load_file(self.path / "model.safetensors")

    def optimizer_tensors(self) -> dict[str, torch.Tensor]:
        return load_file(self.path / "optimizer.safetensors")


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


def save(
    folder: Path,
    step: int,
    weights: dict[str, torch.Tensor],
    optimizer: dict[str, torch.Tensor],
    state: dict[str, Any],
    *,
    keep: Callable[[list[int]], set[int]],
    files: Callable[[Path], None] | None = None,
) -> Path:
    """Write `folder`/step-<8 digits> from tensors by name; then remove checkpoints that `keep` leaves out.

    `files` adds more files to the new folder. `keep` gets the steps of all checkpoints, ascending, and returns those to
    keep; the new one always stays. Raises OSError, or safetensors' SafetensorError, if the disk is full or not
    writable; no partial checkpoint is left.
    """
    make_folders(folder)
    final = folder / folder_name(step)
    remove_temporaries(folder)
    # It exists where a run went back to an older checkpoint and came here again.
    with atomic_path(final, functools.partial(_remove, final)) as temporary:
        temporary.mkdir()
        save_file(weights, temporary / "model.safetensors")
        save_file(optimizer, temporary / "optimizer.safetensors")
        if files is not None:
            files(temporary)
        (temporary / "state.json").write_text(json.dumps({**state, "step": step}, indent=1) + "\n", encoding="utf-8")
        _write_manifest(temporary)
    steps = [number for number, _ in _entries(folder)]
    for number in sorted(set(steps) - keep(steps) - {step}):
        # A folder that cannot be removed now (an open file on a network disk) is removed with the next checkpoint.
        with contextlib.suppress(OSError):
            _remove(folder / folder_name(number))
    return final


def _remove(path: Path) -> None:
    """Remove a checkpoint, if it is there, atomically. Raises OSError where it stays."""
    if not path.exists():
        return
    removed = path.with_name(f"{TEMPORARY}removed-{path.name}")
    path.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


def find_newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Find the newest checkpoint that verifies, and a problem for each newer one that does not.

    Without a finished checkpoint there is None. Raises CheckpointError where there are some and none verifies.
    """
    problems: list[str] = []
    for path in reversed(list_finished(folder)):
        try:
            return load(path), problems
        except CheckpointError as error:
            problems.append(str(error))
    if problems:
        raise CheckpointError(
            f"{folder}: no checkpoint is valid: {'; '.join(problems)}. Restore one from a backup, or start over with "
            "--overwrite-output-dir."
        )
    return None, []


def list_finished(folder: Path) -> list[Path]:
    """List the checkpoints that were written to their end, oldest first, without verifying them."""
    return [path for _, path in _entries(folder) if (path / MANIFEST).exists()]


def load(path: Path) -> Checkpoint:
    """Read one checkpoint, checking every file against the manifest.

    Raises CheckpointError, saying which differs, and PermissionError.
    """
    try:
        manifest = read_json(path / MANIFEST)
        if manifest["format"] != _FORMAT:
            raise CheckpointError(f"{path} has format {manifest['format']}; this version reads {_FORMAT}")
        for name in {*_FILES, *manifest["files"]}:
            if _describe(path / name) != manifest["files"][name]:
                raise CheckpointError(f"{path / name} has changed since it was written (its size or SHA-256 differs)")
        state = read_json(path / "state.json")
    except FileNotFoundError as error:
        raise CheckpointError(f"{error.filename} is missing") from None
    except PermissionError:  # another user's checkpoint may be whole
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read ({type(error).__name__}: {error})") from None
    return Checkpoint(path, state)


def _entries(folder: Path) -> list[tuple[int, Path]]:
    if not folder.is_dir():
        return []
    entries = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return sorted(entries)


def _write_manifest(folder: Path) -> None:
    paths = sorted(folder.iterdir())
    with ThreadPoolExecutor() as pool:  # files are hashed while they are written to the disk
        flushes = [pool.submit(flush, path) for path in paths]
        files = {path.name: entry for path, entry in zip(paths, pool.map(_describe, paths), strict=True)}
    for done in flushes:
        done.result()
    manifest = {"format": _FORMAT, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _describe(file: Path) -> dict[str, Any]:
    return {"bytes": file.stat().st_size, "sha256": file_sha256(file)}
