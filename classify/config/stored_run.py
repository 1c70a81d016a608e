"""Read settings and commands from the run.json of an earlier run, checked like a YAML file."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Any

from classify.config.run_config import AUTOMATIC, FIELDS
from classify.errors import InputError
from classify.files import read_json, split_paths

CHECKPOINTS = "checkpoints"
FILE = "run.json"
# What reading a file raises that is no record of a run.
_NO_RECORD = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


def run_folder(name: str) -> Path:
    """A run's folder from its own path, that of its checkpoints, or of one of them."""
    path = Path(name)
    if path.parent.name == CHECKPOINTS:
        return path.parent.parent
    return path.parent if path.name == CHECKPOINTS else path


def stored_values(folder: Path, flag: str = "--resume") -> dict[str, Any]:
    """The raw values by field of a run's settings that are not defaults and were not chosen automatically.

    `flag` named the folder. Relative paths are resolved against that run's working directory, if they still exist
    there. Raises InputError where run.json is missing or has no settings.
    """
    file = folder / FILE
    if not folder.is_dir():
        raise InputError(f"{flag} {folder}: no such folder. Expected a run's folder, or a checkpoint in it.")
    if not file.exists():
        raise InputError(
            f"{flag} {folder}: no {FILE} there, so the run's settings are unknown; give --data and the other flags "
            "of the run."
        )
    try:
        content = read_json(file)
        stored = {
            name: value for part in ("data", "model", "training") for name, value in content["config"][part].items()
        }
        base = Path(content.get("cwd") or ".")
        automatic = {name for name, source in content.get("sources", {}).items() if source in AUTOMATIC}
    except _NO_RECORD as error:
        raise InputError(
            f"{file}: expected the settings of a run under 'config'. Got something else ({type(error).__name__}: "
            f"{error}); give --data and the other flags of the run."
        ) from None
    # An option that was removed has no effect where it was off.
    unknown = [repr(name) for name, value in stored.items() if name not in FIELDS and value not in (None, False)]
    if unknown:
        raise InputError(
            f"{file}: unknown setting {', '.join(unknown)} under 'config'; give --data and the other flags of the run."
        )
    values = {}
    for name in [name for name in stored if name in FIELDS and name not in automatic]:
        value, spec = stored[name], FIELDS[name][1]
        if spec.metadata["restored"] and value != spec.default and value is not None:
            is_path = spec.metadata["is_path"] and isinstance(value, str)
            values[name] = _resolve_path(value, base) if is_path else value
    return values


def _resolve_path(name: str, base: Path) -> str:
    """A run's path, or list of paths, in its working directory `base`, where it is still there."""
    parts = split_paths(name)
    if len(parts) > 1:
        return ",".join(_resolve_path(part, base) for part in parts)
    there = base / name
    is_there = there.exists() or glob.glob(str(there), recursive=True)
    return str(there) if is_there and base.resolve() != Path.cwd() else name


def earlier_commands(folder: Path) -> list[dict[str, Any]]:
    """The recorded commands of a run, oldest first; empty where run.json has none."""
    try:
        content = read_json(folder / FILE)
        listed = content.get("commands", [{"command": content["command"], "status": content["status"]}])
        return [entry for entry in listed if isinstance(entry, dict)]
    except _NO_RECORD:
        return []
