"""Print what a bug report needs: versions, devices, and whether the default models are there."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from typing import Any

from classify.config.parser import Parser
from classify.errors import ClassifyError, escape_controls
from classify.launch.launch import Launch
from classify.launch.plan import plan_devices
from classify.launch.process import available_cores

_FAILED = "failed"


def make_parser(program: str) -> Parser:
    parser = Parser(prog=program, description="Print what a bug report needs: versions, devices, models.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(arguments: Sequence[str], program: str) -> int:
    """Print the facts; 1 where no device can be used."""
    options = make_parser(program).parse(arguments)
    facts = describe()
    if options.json:
        print(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        width = max(map(len, facts))
        for name, value in facts.items():
            print(escape_controls(f"{name:{width}}  {value}"))
    return int(facts["device"].startswith(_FAILED))


def describe() -> dict[str, Any]:
    """The facts by name."""
    import torch

    from classify.config.schema import DEFAULT_MODEL, MULTILINGUAL_MODEL
    from classify.launch.process import set_variables
    from classify.modeling.precision import has_bf16_instructions
    from classify.versions import versions

    try:
        plan = plan_devices(Launch.read())
        device = f"{plan.describe()} ({plan.reason})"
    except ClassifyError as error:  # a launcher's variables, say, which are among these facts
        device = f"{_FAILED}: {error}"
    bf16 = "with" if has_bf16_instructions() else "without"
    return {
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "processor": f"{available_cores()} cores, {torch.get_num_threads()} threads, {bf16} bf16 instructions",
        "device": device,
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda or 'no'}",
        "models": ", ".join(f"{name}: {_describe_origin(name)}" for name in (DEFAULT_MODEL, MULTILINGUAL_MODEL)),
        "variables": ", ".join(f"{name}={value}" for name, value in set_variables().items()) or "none set",
    }


def _describe_origin(name: str) -> str:
    """Where a default model comes from."""
    from classify.modeling.hub import resolve_model

    try:
        return str(resolve_model(name).origin)
    except ClassifyError as error:
        return f"not available ({error})"
