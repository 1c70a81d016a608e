"""Amazon SageMaker's training container: its folders stand for flags that are not given.

The variables are those of the sagemaker-training toolkit (https://github.com/aws/sagemaker-training-toolkit, section
"Environment Variables"). A container puts each input channel into a folder, SM_CHANNEL_<NAME>, and uploads what it
finds in SM_MODEL_DIR at the end. Hyperparameters arrive as `--name value`, like flags.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from classify.config.fields import as_switch
from classify.errors import InputError

# A field of the run, and the channels that may hold its table, by the names people give them.
_CHANNELS = {
    "data": ("TRAIN", "TRAINING"),
    "eval_data": ("VALIDATION", "VALID", "EVAL", "DEV"),
    "test_data": ("TEST",),
}
_TABLES = (".csv", ".tsv")


def container_values(environment: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """{field: (value, variable)} of what the container says and the person does not; empty elsewhere.

    Who names a table names all; who names a folder to resume from has named the output too. Raises InputError for a
    channel that does not hold one table.
    """
    fields: dict[str, tuple[str, str]] = {}
    if "SM_MODEL_DIR" not in environment:
        return fields
    resume = given.get("resume_from_checkpoint")
    if "output_dir" not in given and (resume is None or as_switch(resume) is not None):
        fields["output_dir"] = (environment["SM_MODEL_DIR"], "SM_MODEL_DIR")
    for field, names in _CHANNELS.items() if "data" not in given else ():
        for name in (f"SM_CHANNEL_{name}" for name in names):
            if name in environment and field not in fields and field not in given:
                fields[field] = (_only_table(Path(environment[name]), name), name)
    return fields


def _only_table(folder: Path, variable: str) -> str:
    tables = sorted(path for path in folder.glob("*") if path.suffix.lower() in _TABLES)
    if len(tables) != 1:
        listed = ", ".join(path.name for path in tables[:3]) or "none"
        raise InputError(
            f"{variable}={folder}: expected one table (.csv or .tsv). Got {len(tables)} ({listed}) instead; leave one "
            "there, or name it with --data, --eval-data or --test-data."
        )
    return str(tables[0])
