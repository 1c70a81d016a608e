"""A kind of device, and what it does otherwise than others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Accelerator:
    """`kind` is torch's name of the device type; the rest stands for a device of which nothing special is known.

    `backend` is how processes on such devices talk, `visible` the variable that chooses those a process sees. Of some a
    process acquires one, which it calls the first (`one_a_process`). torch's DataParallel exists for those it
    `replicates` on. gloo exchanges tensors of those that can be `shared`. `one_process` says that no group of processes
    trains on them, `few_shapes` that a program is compiled for each shape, `lazy` that nothing runs before `flush`,
    `in_torch` that torch.accelerator knows them.
    """

    kind: str
    backend: str = "gloo"
    visible: str | None = None
    one_a_process: bool = False
    replicates: bool = False
    shared: bool = False
    one_process: bool = False
    few_shapes: bool = False
    lazy: bool = False
    in_torch: bool = True

    @property
    def name(self) -> str:
        """What a sentence calls such devices."""
        return self.kind

    def is_wanted(self, environment: Mapping[str, str]) -> bool:
        """Whether the person asks for such devices by variables, whatever else there is."""
        return False

    def count(self) -> int:
        """Devices that this process can use."""
        import torch

        return int(torch.accelerator.device_count())

    def flush(self) -> None:
        """Have recorded operations run; others have run already."""

    def seed(self, value: int) -> None:
        """Seed random numbers that `torch.manual_seed` does not reach."""

    def padded_length(self, tokens: int) -> int:
        """The length that texts of up to so many tokens are padded to."""
        return tokens

    def padded_rows(self, rows: int) -> int:
        """The rows that a batch of so many is filled up to."""
        return rows
