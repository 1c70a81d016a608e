"""A safetensors file without its weights: what stands in it, and whether it is whole."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any


def header(path: Path) -> dict[str, dict[str, Any]]:
    """Type, shape and place of each tensor, by name (https://github.com/huggingface/safetensors, "Format").

    Raises ValueError, whose words follow the file's name, where the file is cut off or is none of that format.
    """
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > size:
                raise ValueError
            content = json.loads(file.read(length))
        tensors = {name: one for name, one in content.items() if name != "__metadata__"}
        end = 8 + length + max((one["data_offsets"][1] for one in tensors.values()), default=0)
    except (struct.error, ValueError, AttributeError, TypeError, KeyError, IndexError):
        raise ValueError("is no safetensors file, or was cut off") from None
    if end != size:
        raise ValueError(f"was cut off: expected {end} bytes. Got {size} instead")
    return tensors
