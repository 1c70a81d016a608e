"""Read the header of a safetensors file and check that the file is complete."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any


def header(path: Path) -> dict[str, dict[str, Any]]:
    """Return dtype, shape and offsets of each tensor, by name (https://github.com/huggingface/safetensors, "Format").

    Raises ValueError if the file is truncated or not safetensors; its message continues the file's name.
    """
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > size:
                raise ValueError
            content = json.loads(file.read(length))
        tensors = {name: tensor for name, tensor in content.items() if name != "__metadata__"}
        end = 8 + length + max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
    except (struct.error, ValueError, AttributeError, TypeError, KeyError, IndexError):
        raise ValueError("is not a safetensors file, or is truncated") from None
    if end != size:
        raise ValueError(f"is truncated: expected {end} bytes. Got {size} instead")
    return tensors
