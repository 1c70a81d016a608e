"""A stand-in for what a torch built for Intel GPUs has of its own; torch finds it as it finds vendors' packages."""

from __future__ import annotations


def _autoload() -> None:
    """Called by torch at the end of its own import."""
    from tests.standins.accelerator import begin

    begin("xpu", "xccl")
