"""Export a trained folder to another runtime."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Sequence
from pathlib import Path

from classify.config.parser import Parser
from classify.errors import InputError, escape_controls

_EXTRA = ("onnx", "onnxscript", "onnxruntime")


def make_parser(program: str) -> Parser:
    parser = Parser(
        prog=program,
        description="Export a trained classifier to ONNX, calibration inside, and check that it predicts the same.",
    )
    parser.add_argument("--model", metavar="FOLDER", help="the output folder of a training run")
    parser.add_argument("--to", metavar="NAME", default="onnx", help="onnx (fp32, the default) or onnx-int8")
    parser.add_argument("--out", metavar="FOLDER", help="the exported folder (default: FOLDER/onnx, by --to)")
    parser.add_argument("--overwrite", action="store_true", help="replace an exported model in --out")
    return parser


def run(arguments: Sequence[str], program: str) -> int:
    options = make_parser(program).parse(arguments, ["model"])
    out = Path(options.out or Path(options.model) / options.to)
    from classify.modeling.result_folder import EXPORTED, read_settings

    if out.exists() and not (out / EXPORTED).exists():
        raise InputError(f"{out}: exists already, and is no exported model; give another --out.")
    if out.exists() and not options.overwrite:
        raise InputError(f"{out}: exists already; add --overwrite, or give another --out.")

    settings = read_settings(options.model)
    missing = [name for name in _EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"classify export needs {', '.join(missing)}; type pip install 'classify-text[export]'.")
    from classify.evaluation import scope
    from classify.export.registry import TARGETS
    from classify.export.write import export_model

    if options.to not in TARGETS:
        raise InputError(f"--to {options.to}: expected {' or '.join(TARGETS)}.")
    check = export_model(options.model, TARGETS[options.to], out)
    print(escape_controls(f"check: {check.describe()}"))
    if scope.COLUMN in settings:
        print("note: the exported model answers every text with a class: --out-of-scope-label is not exported")
    print(escape_controls(f"result: {out}"))
    print(escape_controls(f"next:   classify predict --model {shlex.quote(str(out))} --data new.csv"))
    return 0
