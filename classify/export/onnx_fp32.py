"""ONNX in fp32: the stock model as torch traces it, calibration inside."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
import transformers

from classify.export.base import Check, Sample, Target
from classify.modeling.load import quiet_libraries
from classify.modeling.result_folder import EXPORTED
from classify.prediction.predictor import Predictor
from classify.tasks.base import Task

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# Where torch's exporter notes the modules that a node is from.
_SCOPES = "pkg.torch.onnx.name_scopes"
# Largest difference of a probability, or of a score in standard deviations: fp32 kernels add in different orders.
_TOLERANCE = 1e-4


class ONNX(Target):
    """The whole classifier in fp32, with any number of texts of any length."""

    name: ClassVar[str] = "onnx"

    def write(self, predictor: Predictor, folder: Path, sample: Sample) -> dict[str, Any]:
        """Trace the model of a folder; its settings and labels become metadata of the file."""
        program = trace(predictor.folder)
        program.model.metadata_props.update(
            labels=json.dumps(predictor.labels, ensure_ascii=False),
            classify=json.dumps(predictor.settings, ensure_ascii=False),
        )
        program.save(folder / EXPORTED)
        return {"opset": program.model.opset_imports[""]}

    def find_fault(self, check: Check, task: Task) -> str | None:
        if check.largest_difference <= _TOLERANCE:
            return None
        what = "probabilities differ by" if task.answers.has_labels else "of their standard deviation, scores differ by"
        return f"{what} {check.largest_difference:.1e}; expected at most {_TOLERANCE:.0e}"


def trace(folder: str) -> Any:
    """The ONNX program of a result folder: token ids in, logits out; products have the names of their layers."""
    with quiet_libraries():
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            folder, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
        ).eval()
    # Two texts, of which one is padded: torch would take a size of 1 for a constant.
    ids = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, 0, 0]])
    values = {"input_ids": ids, "attention_mask": (ids > 0).long(), "token_type_ids": torch.zeros_like(ids)}
    has_types = "token_type_ids" in inspect.signature(model.forward).parameters
    has_types = has_types and getattr(model.config, "type_vocab_size", 0) > 1
    names = [name for name in INPUTS if name != "token_type_ids" or has_types]
    axes = {0: "batch", 1: "length"}
    with quietly(), torch.no_grad():
        program = torch.onnx.export(
            _Logits(model, names),
            tuple(values[name] for name in names),
            dynamo=True,
            input_names=names,
            output_names=["logits"],
            dynamic_shapes=(tuple(axes for _ in names),),
        )
    assert program is not None, "dynamo exports return a program"
    modules = dict(model.named_modules())
    for node in program.model.graph:
        scopes = ast.literal_eval(node.metadata_props.get(_SCOPES, "[]"))
        if len(scopes) > 1 and node.op_type == "MatMul":
            name = scopes[-2].removeprefix("model.")
            node.name = name if isinstance(modules.get(name), torch.nn.Linear) else node.name
        node.metadata_props.clear()  # source lines and paths of this machine
    return program


class _Logits(torch.nn.Module):
    """The logits of a model whose inputs come in order."""

    def __init__(self, model: torch.nn.Module, names: list[str]):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(**dict(zip(self.names, values, strict=True))).logits
        return logits


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Hide the exporters' progress and advice, and warnings on operators of packages that are not installed."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
