"""The commands: one module each, with `make_parser(program)` and `run(arguments, program) -> exit code`.

Heavy imports are inside `run`.
"""

from __future__ import annotations

import importlib
from types import ModuleType

# Example flags and a summary of each command; its module has the same name.
COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("--data my.csv", "train (the same as python run_classify.py)"),
    "predict": ("--model runs/my-1 --data new.csv --out p.csv", "predict every row of a table"),
    "evaluate": ("--model runs/my-1 --data labelled.csv", "score a model on a table with labels"),
    "explain": ('--model runs/my-1 "a text"', "show the words that led to a prediction"),
    "export": ("--model runs/my-1 --to onnx", "write an ONNX model that predicts the same"),
    "serve": ("--model runs/my-1 --port 8000", "serve predictions over HTTP, with a page to try"),
    "suggest": ("--model runs/my-1 --data unlabelled.csv", "choose the rows to label next"),
    "start": ("--labels names.yaml --data texts.csv --output-dir d", "a first model from the names of the classes"),
    "label": ("--data texts.csv --labels names.yaml", "label texts on a page, which asks what would teach most"),
    "curve": ("--model runs/my-1", "tell what more labelled rows would bring"),
    "compare": ("runs/my-1 runs/my-2", "compare runs on the rows that all scored"),
    "clean": ("--apply runs/my-1/suspects.csv --out c.csv", "write a copy with corrected labels"),
    "inspect": ("--data my.csv", "inspect a table without training"),
    "devices": ("", "show the ranks and devices of this machine"),
    "doctor": ("", "print versions, devices and models, as a bug report needs"),
}


def load_command(name: str) -> ModuleType:
    return importlib.import_module(f"classify.commands.{name}")


def usage() -> str:
    """The list of commands."""
    lines = [f"  {f'classify {name} {example}':62} {summary}".rstrip() for name, (example, summary) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: classify COMMAND [flags]\n",
            "Fine-tune a BERT classifier on your own table of texts and labels, and use it.\n",
            *lines,
            f"  {'classify COMMAND --help':62} the flags of a command",
            f"  {'classify --version':62} the version",
        ]
    )
