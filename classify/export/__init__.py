"""Export a trained folder to other runtimes, checked against it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classify.lazy import submodules

if TYPE_CHECKING:
    from classify.export import base as base, onnx_fp32 as onnx_fp32, onnx_int8 as onnx_int8, write as write

__getattr__ = submodules(__name__)
