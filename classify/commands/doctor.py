"""Print what a bug report needs: versions, devices, and whether the default models are there."""

from __future__ import annotations

import functools
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from classify import modeling
from classify.config.fields import option
from classify.config.parser import CommandParser
from classify.config.schema import DEFAULT_MODEL, MULTILINGUAL_MODEL
from classify.errors import ClassifyError, escape_controls
from classify.launch.launch import Launch
from classify.launch.plan import plan_devices
from classify.launch.process import available_cores, set_variables
from classify.versions import versions

_FAILED = "failed"


@dataclass(frozen=True)
class Options:
    json: bool = option(False, "print JSON")


make_parser = functools.partial(
    CommandParser, Options, description="Print what a bug report needs: versions, devices, models."
)


def run(arguments: Sequence[str], program: str) -> int:
    """Print the facts; 1 where no device can be used."""
    options, facts = make_parser(program).read(arguments), describe()
    if options.json:
        print(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        width = max(map(len, facts))
        print(escape_controls("\n".join(f"{name:{width}}  {value}" for name, value in facts.items())))
    return int(facts["device"].startswith(_FAILED))


def describe() -> dict[str, Any]:
    import torch

    try:
        plan = plan_devices(Launch.read())
        device = f"{plan.describe()} ({plan.reason})"
    except ClassifyError as error:  # a launcher's variables, say, which are among these facts
        device = f"{_FAILED}: {error}"
    bf16 = "with" if modeling.precision.has_bf16_instructions() else "without"
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
    try:
        return str(modeling.find.resolve_model(name).origin)
    except ClassifyError as error:
        return f"not available ({error})"
