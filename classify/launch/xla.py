"""TPUs, and whatever else torch_xla compiles for (PJRT_DEVICE=TPU; CPU for a try without one).

XLA records operations and compiles a program for each shape it meets, for seconds at a time. So batches come in few
shapes: texts are padded to a power of two, and so is their number. Nothing runs until `flush`.
https://docs.pytorch.org/xla/release/r2.9/learn/pytorch-on-xla-devices.html
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

# The smallest batch: shorter texts and fewer rows are filled up to it.
_TOKENS = 16
_ROWS = 8


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Whether the person wants XLA, and torch_xla is there."""
    return "PJRT_DEVICE" in environment and importlib.util.find_spec("torch_xla") is not None


def device_count() -> int:
    """Devices of this process."""
    import torch_xla.world

    return int(torch_xla.world.addressable_device_count())


def flush() -> None:
    """Compile, where this is new, and run what has been recorded."""
    import torch_xla

    torch_xla.sync()


def seed(value: int) -> None:
    """Seed the device's own random numbers."""
    import torch_xla

    torch_xla.manual_seed(value)


def padded_length(tokens: int) -> int:
    """The length that texts of up to so many tokens are padded to."""
    return max(_TOKENS, 1 << (tokens - 1).bit_length())


def padded_rows(rows: int) -> int:
    """The rows that a batch of so many is filled up to."""
    return max(_ROWS, 1 << (rows - 1).bit_length())
