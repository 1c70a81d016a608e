"""A stand-in for Huawei's `torch_npu`, found by torch like the real one, through the entry point `torch.backends`."""

from __future__ import annotations

from typing import Any


def _autoload() -> None:
    """Called by torch at the end of its own import."""
    from tests.standins.accelerator import begin

    begin("npu", "hccl")


def npu_fusion_attention(*_: Any, **__: Any) -> Any:
    """Named by transformers when it is imported; its own attention is not taken by this program."""
    raise NotImplementedError("the stand-in has no fused attention")
