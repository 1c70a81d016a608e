"""A stand-in for Cambricon's `torch_mlu`, found like the real one, through the entry point `torch.backends`."""

from __future__ import annotations


def _autoload() -> None:
    """Called by torch at the end of its own import."""
    from tests.standins.accelerator import begin

    begin("mlu", "cncl")
