"""Default paths in Amazon SageMaker's training container.

A container puts each input channel into a folder, SM_CHANNEL_<NAME>, and uploads SM_MODEL_DIR at the end.
Hyperparameters arrive as `--name value`, like flags. The variables are those of
https://github.com/aws/sagemaker-training-toolkit, section "Environment Variables".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from classify.config.fields import as_switch
from classify.errors import InputError

# Fields, and the usual names of the channels that hold their table.
_CHANNELS = {"data": ("TRAIN", "TRAINING"), "eval_data": ("VALIDATION", "VALID", "EVAL", "DEV"), "test_data": ("TEST",)}
# Of several files, the one with such a suffix is the table; others may describe it.
_TABLES = (".csv", ".tsv")


def container_values(environment: Mapping[str, str], explicit: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return {field: (value, variable)} for settings missing from `explicit`; empty outside a container.

    --data replaces all channels, a folder of --resume the output folder. Raises InputError for a channel that does not
    hold one table.
    """
    fields: dict[str, tuple[str, str]] = {}
    if "SM_MODEL_DIR" not in environment:
        return fields
    resume = explicit.get("resume_from_checkpoint")
    if "output_dir" not in explicit and (resume is None or as_switch(resume, or_name=True) is not None):
        fields["output_dir"] = (environment["SM_MODEL_DIR"], "SM_MODEL_DIR")
    for field, names in _CHANNELS.items() if "data" not in explicit else ():
        for name in (f"SM_CHANNEL_{name}" for name in names):
            if name in environment and field not in fields and field not in explicit:
                fields[field] = (_only_table(Path(environment[name]), name), name)
    return fields


def _only_table(folder: Path, variable: str) -> str:
    files = sorted(path for path in folder.glob("[!.]*") if path.is_file())
    tables = [path for path in files if path.suffix.lower() in _TABLES] or files
    if len(tables) != 1:
        listed = ", ".join(path.name for path in tables[:3]) or "none"
        raise InputError(
            f"{variable}={folder}: expected one table (.csv, .tsv, .jsonl, ...). Got {len(tables)} ({listed}) instead; "
            "leave one there, or name it with --data, --eval-data or --test-data."
        )
    return str(tables[0])
