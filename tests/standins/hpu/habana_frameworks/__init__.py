"""A stand-in for Intel Gaudi's `habana_frameworks`, found by torch through the entry point `torch.backends`."""

from __future__ import annotations


def __autoload() -> None:
    """Called by torch at the end of its own import."""
    from tests.standins.accelerator import begin

    begin("hpu", "hccl")
