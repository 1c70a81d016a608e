"""Export a trained folder to another runtime."""

from __future__ import annotations

import functools
import importlib.util
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from classify import evaluation, export, modeling
from classify.commands import flags
from classify.config.fields import option
from classify.config.parser import CommandParser
from classify.errors import InputError, escape_controls

_EXTRA = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class Options:
    model: str = flags.model()
    to: Literal["onnx", "onnx-int8"] = option("onnx", "fp32, or weights of 8 bits")
    out: str | None = option(None, "the exported folder (default: FOLDER/onnx, by --to)", metavar="FOLDER")
    overwrite: bool = option(False, "replace an exported model in --out")


make_parser = functools.partial(
    CommandParser,
    Options,
    description="Export a trained classifier to ONNX, calibration inside, and check that it predicts the same.",
)


def run(arguments: Sequence[str], program: str) -> int:
    options = make_parser(program).read(arguments, ["model"])
    out = Path(options.out or Path(options.model) / options.to)
    if out.exists() and not (out / modeling.result_folder.EXPORTED).exists():
        raise InputError(f"{out}: exists already, and is no exported model; give another --out.")
    if out.exists() and not options.overwrite:
        raise InputError(f"{out}: exists already; add --overwrite, or give another --out.")
    settings = modeling.result_folder.read_settings(options.model)
    missing = [name for name in _EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"classify export needs {', '.join(missing)}; type pip install 'classify-text[export]'.")
    check = export.write.export_model(options.model, export.write.TARGETS[options.to], out)
    lines = [f"check: {check.describe()}"]
    if evaluation.scope.COLUMN in settings:
        lines.append("note: the exported model answers every text with a class: --out-of-scope-label is not exported")
    lines.append(f"result: {out}")
    lines.append(f"next:   classify predict --model {shlex.quote(str(out))} --data new.csv")
    print(escape_controls("\n".join(lines)))
    return 0
