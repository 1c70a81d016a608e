"""The targets of `classify export`, by their value of --to."""

from __future__ import annotations

from classify.export.base import Target
from classify.export.onnx_fp32 import ONNX
from classify.export.onnx_int8 import ONNXInt8

TARGETS: dict[str, Target] = {target.name: target for target in (ONNX(), ONNXInt8())}
