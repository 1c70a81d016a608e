"""TPUs, and whatever else torch_xla compiles for (PJRT_DEVICE=TPU; CPU for a try without one).

XLA records operations and compiles a program for each shape it meets, for seconds at a time. So batches come in few
shapes: texts are padded to a power of two, and so is their number. Nothing runs until `flush`.
https://docs.pytorch.org/xla/release/r2.9/learn/pytorch-on-xla-devices.html
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass

from classify.launch.accelerator import Accelerator

# The smallest batch: shorter texts and fewer rows are filled up to it.
_TOKENS = 16
_ROWS = 8


@dataclass(frozen=True)
class XLA(Accelerator):
    """Devices of torch_xla."""

    kind: str = "xla"
    one_process: bool = True
    static_shapes: bool = True
    lazy_execution: bool = True
    built_into_torch: bool = False

    @property
    def name(self) -> str:
        """The compiler's name."""
        return "XLA"

    def is_available(self, environment: Mapping[str, str]) -> bool:
        """Whether PJRT_DEVICE is set, and torch_xla is there."""
        return "PJRT_DEVICE" in environment and importlib.util.find_spec("torch_xla") is not None

    def count(self) -> int:
        """Devices of this process."""
        import torch_xla.runtime

        return int(torch_xla.runtime.addressable_device_count())

    def flush(self) -> None:
        """Compile, where this is new, and run what has been recorded."""
        import torch_xla

        torch_xla.sync()

    def seed(self, value: int) -> None:
        """Seed the device's own random numbers."""
        import torch_xla

        torch_xla.manual_seed(value)

    def padded_length(self, tokens: int) -> int:
        """A power of two."""
        return max(_TOKENS, 1 << (tokens - 1).bit_length())

    def padded_rows(self, rows: int) -> int:
        """A power of two."""
        return max(_ROWS, 1 << (rows - 1).bit_length())
