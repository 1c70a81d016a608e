"""ONNX with products in 8 bits: weights rounded per output channel, activations at run time by their own range.

Embeddings, norms and the head stay in fp32. Weights keep all 8 bits: with 7 the predictions were ten times further from
those in fp32. Processors with VNNI instructions add 8-bit products exactly; older ones may saturate.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.shape_inference import quant_pre_process

from classify.export.base import Check, Sample, Target
from classify.export.onnx_fp32 import ONNX, quietly
from classify.modeling.result_folder import EXPORTED
from classify.prediction.predictor import Predictor
from classify.tasks.base import Task

# How much the task's metric may fall.
_TOLERANCE = 0.02
# A layer's number in a module's name.
_NUMBER = re.compile(r"\.\d+\.")


class ONNXInt8(Target):
    """The classifier with products in 8 bits."""

    name: ClassVar[str] = "onnx-int8"

    def write(self, predictor: Predictor, folder: Path, sample: Sample) -> dict[str, Any]:
        """Write the graph in fp32, and quantize the products of its layers; the head's stays."""
        recorded = ONNX().write(predictor, folder, sample)
        with tempfile.TemporaryDirectory() as made, quietly():
            plain = Path(made) / "plain.onnx"
            quant_pre_process(str(folder / EXPORTED), str(plain), skip_symbolic_shape=True)
            names = [node.name for node in onnx.load(plain).graph.node if node.op_type in ("MatMul", "Gemm")]
            # The quantizer gives products with a bias another name.
            head = [f"{name}{end}" for name in names if not _NUMBER.search(name) for end in ("", "_MatMul")]
            quantize_dynamic(
                str(plain),
                str(folder / EXPORTED),
                per_channel=True,
                weight_type=QuantType.QInt8,
                op_types_to_quantize=["MatMul"],
                nodes_to_exclude=head,
            )
        return recorded

    def find_fault(self, check: Check, task: Task) -> str | None:
        """Refuse a model whose metric falls by more than two points, and by more than chance row by row."""
        before, after = check.scores[task.scores.primary]
        _, low, high = check.change[task.scores.row_metric]
        if before - after <= _TOLERANCE or high >= 0:
            return None
        return (
            f"{task.scores.primary} falls by {before - after:.3f} ({task.scores.row_metric} of the rows by "
            f"{-high:.3f} to {-low:.3f}); use --to onnx"
        )
