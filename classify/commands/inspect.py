"""Inspect a table without training."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import asdict

from classify import training
from classify.config.parser import parse_training, training_parser
from classify.errors import InputError, escape_controls
from classify.launch.launch import Launch

_DESCRIPTION = "Inspect a table without training; it takes the flags of classify train."
make_parser = functools.partial(training_parser, description=_DESCRIPTION)


def run(arguments: Sequence[str], program: str) -> int:
    """Inspect a table; it takes the flags of training. With --json one JSON object is printed."""
    config = parse_training(arguments, program, _DESCRIPTION)
    if config.training.nproc is not None or Launch.read().is_launched:
        raise InputError("classify inspect runs in one process; start it without --nproc or a launcher.")
    report = training.inputs.inspect_run(training.inputs.check(config))
    if config.training.json:
        print(json.dumps(asdict(report), ensure_ascii=False))
    else:
        print(escape_controls("\n".join(report.lines())))
    return 0
