"""Support TPUs and other devices of torch_xla (PJRT_DEVICE=TPU; CPU to test without one).

XLA records operations, runs them at `flush`, and compiles a program for each shape, which takes seconds. So the length
of texts and the number of rows are padded to powers of two.
https://docs.pytorch.org/xla/release/r2.9/learn/pytorch-on-xla-devices.html
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass

from classify.launch.accelerator import Accelerator

# Smallest padded length and number of rows.
_TOKENS = 16
_ROWS = 8


@dataclass(frozen=True)
class XLA(Accelerator):
    """Devices of torch_xla."""

    kind: str = "xla"
    one_process: bool = True
    static_shapes: bool = True
    lazy_execution: bool = True
    in_torch_accelerator: bool = False

    def is_selected_by(self, environment: Mapping[str, str]) -> bool:
        return "PJRT_DEVICE" in environment and importlib.util.find_spec("torch_xla") is not None

    def count(self) -> int:
        import torch_xla.runtime

        return int(torch_xla.runtime.addressable_device_count())

    def flush(self) -> None:
        import torch_xla

        torch_xla.sync()

    def seed(self, value: int) -> None:
        import torch_xla

        torch_xla.manual_seed(value)

    def padded_length(self, tokens: int) -> int:
        """The next power of two, at least 16."""
        return max(_TOKENS, 1 << (tokens - 1).bit_length())

    def padded_rows(self, rows: int) -> int:
        """The next power of two, at least 8."""
        return max(_ROWS, 1 << (rows - 1).bit_length())
