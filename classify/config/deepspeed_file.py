"""The file behind --deepspeed, looked at before anything heavy is imported."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from classify.errors import InputError

# Keys of what this program decides.
_OURS = {
    "optimizer": "AdamW is this program's own",
    "scheduler": "the schedule is --lr-scheduler-type",
    "data_types": "gradients add up in the weights' type",
}


# Keys that turn the weights to half precision, the second being bf16's older name.
_HALVES = {"bfloat16": "bf16", "bf16": "bf16", "fp16": "fp16"}
_OFFLOADED = ("offload_optimizer", "offload_param")


def check_file(path: str) -> str:
    """The precision that a DeepSpeed file asks for. Raises InputError for what is wrong with it or not installed."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        zero = content.get("zero_optimization", {})
        stage = int(zero.get("stage", 0))
        # "auto" means what DeepSpeed takes unless told: off.
        halves = [kind for key, kind in _HALVES.items() if content.get(key, {}).get("enabled") is True]
        offloaded = [key for key in _OFFLOADED if zero.get(key, {}).get("device", "none") != "none"]
    except OSError as error:
        raise InputError(
            f"--deepspeed {path}: cannot be read ({error.strerror}); give a DeepSpeed JSON file."
        ) from None
    except (ValueError, AttributeError, TypeError) as error:
        raise InputError(f"--deepspeed {path}: not a DeepSpeed JSON file ({error}).") from None
    faults = [f"--deepspeed {path}: {key!r} takes an optimizer of DeepSpeed's own; drop it." for key in offloaded]
    faults += [
        f"--deepspeed {path}: {why}; drop {key!r} from the file." for key, why in _OURS.items() if key in content
    ]
    if stage not in (1, 2):
        more = "; --strategy fsdp cuts the weights, too" if stage == 3 else ""
        faults.append(f"--deepspeed {path}: zero_optimization must have stage 1 or 2 here. Got {stage} instead{more}.")
    if importlib.util.find_spec("deepspeed") is None:
        faults.append("--deepspeed: the package deepspeed is not installed; pip install deepspeed, or drop the flag.")
    if faults:
        raise InputError(*faults)
    return halves[0] if halves else "fp32"
