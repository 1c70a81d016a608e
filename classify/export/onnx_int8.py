"""ONNX with products in 8 bits: weights rounded per output channel, activations at run time by their own range.

Embeddings, norms and the head stay in fp32. Weights keep all 8 bits: with 7 the predictions were ten times further from
those in fp32. Processors with VNNI instructions add 8-bit products exactly; older ones may saturate.
"""

from __future__ import annotations

import contextlib
import logging
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx

from classify.export.base import Check, Sample, Target
from classify.export.onnx_fp32 import ONNX
from classify.modeling.result_folder import EXPORTED
from classify.prediction.onnx import compute_logits, open_session
from classify.prediction.predictor import Predictor
from classify.tasks.base import Task

# Mean total variation distance of predictions up to which every layer may be in 8 bits.
_HARMLESS = 0.05
# How much the task's metric may fall.
_TOLERANCE = 0.02
# A layer's number in a module's name.
_NUMBER = re.compile(r"\.\d+\.")


class ONNXInt8(Target):
    """The classifier with products in 8 bits; kinds of layers that change predictions too much stay in fp32."""

    name: ClassVar[str] = "onnx-int8"

    def write(self, predictor: Predictor, folder: Path, sample: Sample) -> dict[str, Any]:
        """Quantize all layers; while that changes probabilities too much, leave out the kind whose absence helps most.

        A kind is a layer's name without its number: all layers' feed-forward outputs, for instance.
        """
        recorded = ONNX().write(predictor, folder, sample)
        with tempfile.TemporaryDirectory() as made, _quietly():
            candidates = _Candidates(Path(made), folder / EXPORTED, predictor, sample)
            in_fp32: list[str] = []
            while candidates.difference(in_fp32) > _HARMLESS and len(in_fp32) < len(candidates.kinds):
                left = [kind for kind in candidates.kinds if kind not in in_fp32]
                in_fp32.append(min(left, key=lambda kind: candidates.difference([*in_fp32, kind])))
            candidates.quantize(in_fp32, folder / EXPORTED)
        return {**recorded, "in_fp32": in_fp32}

    def find_fault(self, check: Check, task: Task) -> str | None:
        """Refuse a model whose metric falls by more than two points, and by more than chance row by row."""
        before, after = check.scores[task.primary]
        _, low, high = check.change[task.row_metric]
        if before - after <= _TOLERANCE or high >= 0:
            return None
        return (
            f"{task.primary} falls by {before - after:.3f} ({task.row_metric} of the rows by {-high:.3f} to "
            f"{-low:.3f}); use --to onnx"
        )


class _Candidates:
    """Quantized models of one graph, by the kinds of layers that stay in fp32."""

    def __init__(self, folder: Path, graph: Path, predictor: Predictor, sample: Sample):
        from onnxruntime.quantization.shape_inference import quant_pre_process

        self._plain, self._trial = folder / "plain.onnx", folder / "trial.onnx"
        quant_pre_process(str(graph), str(self._plain), skip_symbolic_shape=True)
        self._predictor, self._sample = predictor, sample
        names = [node.name for node in onnx.load(self._plain).graph.node if node.op_type in ("MatMul", "Gemm")]
        self._layers = {name: _NUMBER.sub(".*.", name) for name in names if _NUMBER.search(name)}
        # The head; the quantizer gives products with a bias another name.
        self._head = [f"{name}{end}" for name in names if name not in self._layers for end in ("", "_MatMul")]
        self.kinds = sorted(set(self._layers.values()))

    def difference(self, in_fp32: Sequence[str]) -> float:
        """Return the mean distance of predictions from those of the run, on its rows.

        Of probabilities it is half the summed differences; of scores the difference relative to their deviation.
        """
        self.quantize(in_fp32, self._trial)
        tokens, task = self._sample.tokens, self._predictor.task
        logits = compute_logits(open_session(self._trial), self._predictor.tokenizer, tokens, len(task.labels))
        old, new = (task.probabilities(values)[self._sample.rows] for values in (self._sample.logits, logits))
        scale = 2.0 if task.has_labels else float(old.std()) or 1.0
        return float(np.abs(old - new).sum(axis=1).mean() / scale)

    def quantize(self, in_fp32: Sequence[str], out: Path) -> None:
        """Write the model with all layers but these kinds in 8 bits."""
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(
            str(self._plain),
            str(out),
            per_channel=True,
            weight_type=QuantType.QInt8,
            op_types_to_quantize=["MatMul"],
            nodes_to_exclude=[*self._head, *(name for name, kind in self._layers.items() if kind in in_fp32)],
        )


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Hide the advice that ONNX Runtime logs when it quantizes."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
