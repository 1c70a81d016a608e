"""Command line and YAML to `RunConfig`: one table of names for both, all faults collected, nothing heavy imported.

argparse is used for what it does well (splitting, help layout) in 10 ms; its values stay strings, so that every
wrong one is reported together by `classify.config.schema`, and its errors, usage text and exit are replaced by
InputError.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
from collections.abc import Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, NoReturn

from classify.config import sagemaker
from classify.config.devices import DeviceConfig
from classify.config.fields import as_switch, choices
from classify.config.output import OutputConfig
from classify.config.schema import FIELDS, HINTS, DataConfig, ModelConfig, RunConfig, TrainingConfig
from classify.config.stored_run import FILE, newest_runs, run_folder, stored_values
from classify.errors import InputError
from classify.launch import launcher

# The headings of --help, and the class whose own options stand under each, in its order.
GROUPS = {
    "Data": DataConfig,
    "Model": ModelConfig,
    "Training": TrainingConfig,
    "Hardware": DeviceConfig,
    "Result": OutputConfig,
}
# Names of Hugging Face's scripts that are no flags here, and what stands in their place.
_ALWAYS = "every run trains, evaluates and tests; drop it"
_EACH_EPOCH = "a run evaluates and saves after each epoch; drop it, or give --save-steps to save more often"
_BEST = "the last weights are kept unless earlier ones were clearly better; --keep best takes those that scored best"
_UNPADDED = "texts are packed, not padded; drop it"
ELSEWHERE = {
    **dict.fromkeys(("do_train", "do_eval", "do_predict"), _ALWAYS),
    **dict.fromkeys(("task_name", "dataset_name", "dataset_config_name"), "give a table with --data"),
    **dict.fromkeys(("eval_strategy", "evaluation_strategy", "save_strategy"), _EACH_EPOCH),
    **dict.fromkeys(("load_best_model_at_end", "greater_is_better"), _BEST),
    **dict.fromkeys(("pad_to_max_length", "group_by_length", "train_sampling_strategy"), _UNPADDED),
    "per_device_eval_batch_size": "the size of evaluation's batches is chosen for the device; drop it",
    "dataloader_num_workers": "no worker processes are needed; drop it",
    "warmup_ratio": "write 'warmup_steps: 0.1' in a YAML file (below 1 it is a share) and give --config FILE",
    "deepspeed": "--strategy fsdp shards weights, gradients and optimizer state over the processes; drop it",
    "optim": "the optimizer is AdamW; drop it",
    "push_to_hub": "drop it, and upload the output folder with 'hf upload'",
    "hub_model_id": "drop it, and upload the output folder with 'hf upload'",
}


class Parser(argparse.ArgumentParser):
    """argparse without its usage text, its abbreviations and its exit."""

    def __init__(self, **kwargs: Any):
        super().__init__(allow_abbrev=False, formatter_class=_Formatter, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and leaving."""
        raise InputError(message if message.endswith(".") else f"{message}. See --help.")


class _Formatter(argparse.HelpFormatter):
    """One column for the flag, one for its text, at the width of the terminal."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=36)

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        """A switch is shown without the value that it may have."""
        return "" if action.metavar == "" else super()._format_args(action, default_metavar)


def spellings(flag: str) -> list[str]:
    """A flag with `-` and with `_`: both are taken."""
    return list(dict.fromkeys([flag, "--" + flag[2:].replace("-", "_")]))


def training_parser(program: str) -> Parser:
    """The parser of a training run; values stay strings, absent flags leave nothing behind."""
    parser = Parser(
        prog=program,
        usage=f"{program} --data FILE [flags]",
        description="Fine-tune a BERT classifier on your own table of texts and labels.",
        epilog="Names of Hugging Face's scripts (--train-file, --num-train-epochs, --no-cuda, ...) mean the same "
        "thing; - and _ are the same in all flags.",
        argument_default=argparse.SUPPRESS,
    )
    for title, kind in GROUPS.items():
        group = parser.add_argument_group(title)
        for name in _own_flags(kind):
            _add(group, name)
        if title == "Result":
            group.add_argument("--config", metavar="FILE", help="YAML with any of these options; flags win over it")
            plan = "show what was understood of the table and which rank would compute where, and stop"
            group.add_argument("--plan", action="store_true", help=plan)
            group.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def _own_flags(kind: type[Any]) -> list[str]:
    """The options of a config class that have flags, without those of the classes it is made of."""
    inherited = {spec.name for base in kind.__bases__ if dataclasses.is_dataclass(base) for spec in fields(base)}
    return [spec.name for spec in fields(kind) if spec.metadata["flags"] and spec.name not in inherited]


def _add(group: argparse._ArgumentGroup, name: str) -> None:
    """Add a field's flags; the first is shown in the help, its aliases are taken silently."""
    spec = FIELDS[name][1]
    hint = HINTS[name]
    flags = spec.metadata["flags"]
    arguments: dict[str, Any] = {"dest": name}
    if hint is bool:  # SageMaker and others pass "--bf16 True"
        arguments |= {"nargs": "?", "const": True, "metavar": ""}
    elif name == "resume_from_checkpoint":
        arguments |= {"nargs": "?", "const": True, "metavar": "FOLDER"}
    else:
        arguments["metavar"] = "{" + ",".join(choices(hint)) + "}" if choices(hint) else _metavar(hint)
        if spec.metadata["switch"]:
            arguments |= {"nargs": "?", "const": True}
    group.add_argument(flags[0], help=_help(spec), **arguments)
    silent = [spelling for flag in flags for spelling in spellings(flag) if spelling != flags[0]]
    if silent:
        group.add_argument(*silent, help=argparse.SUPPRESS, **arguments)


def _metavar(hint: Any) -> str:
    return "N" if "int" in str(hint) or "float" in str(hint) else "X"


def _help(spec: Field[Any]) -> str:
    default = spec.default
    text = spec.metadata["help"].replace("%", "%%")
    return text if default is None or default is False else f"{text} (default: {default})"


def parse_training(argv: Sequence[str], program: str) -> RunConfig:
    """Command line, over the YAML of `--config`, over the run of `--resume`, over the defaults.

    Raises InputError with every fault.
    """
    parser = training_parser(program)
    namespace, unknown = parser.parse_known_args(list(argv))
    given: dict[str, Any] = vars(namespace)
    debug, plan = bool(given.pop("debug", False)), bool(given.pop("plan", False))
    faults = unknown_words(unknown, parser)
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    config_file = given.pop("config", None)
    if config_file is not None:
        values, names = _yaml_values(config_file, faults)
    values = _over(given, values)
    assumed = _from_container(values, faults)
    names = {name: text for name, text in names.items() if name not in given}
    stored, file = _from_run(values, faults)
    merged = _over(values, stored)
    taken = {name: file for name in stored if name in merged and name not in values}
    assumed |= taken
    names |= {name: f"{file}: {name}" for name in taken}
    values = merged
    config = RunConfig.from_values(values, names, faults)
    config.debug, config.plan, config.assumed = debug, plan, assumed
    return config


def _from_container(values: dict[str, Any], faults: list[str]) -> dict[str, str]:
    """Set what SageMaker's container says and the person does not; returns {field: variable} of those."""
    try:
        container = sagemaker.container_values(os.environ, values)
    except InputError as error:
        faults.extend(error.faults)
        return {}
    values.update({name: value for name, (value, _) in container.items()})
    return {name: variable for name, (_, variable) in container.items()}


def _over(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Values of which the first win, also where the two use different words for the same thing."""
    second = dict(second)
    for alike in (("batch_size", "per_device_train_batch_size"), ("precision", "fp16", "bf16")):
        if any(name in first for name in alike):
            for name in alike:
                second.pop(name, None)
    return {**second, **first}


def _from_run(values: dict[str, Any], faults: list[str]) -> tuple[dict[str, Any], str]:
    """Settings of the run that --resume goes on with, and the file they stand in, where the command names no table."""
    resume = values.get("resume_from_checkpoint", False)
    switch = as_switch(resume)
    if switch is False or "data" in values or faults:
        return {}, ""
    folder = values.get("output_dir") if switch else resume
    if not isinstance(folder, str):
        newest = ", ".join(newest_runs())
        faults.append(
            "--resume must name the folder of a run, e.g. --resume runs/my-1, where no --data is given. Got nothing "
            f"instead{f'; the newest are {newest}' if newest else ''}."
        )
        return {}, ""
    try:
        stored = stored_values(run_folder(folder))
    except InputError as error:
        faults.extend(error.faults)
        return {}, ""
    if launcher.is_launched():  # processes are there already
        stored.pop("nproc", None)
    return stored, str(run_folder(folder) / FILE)


def _yaml_values(path: str, faults: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Fields set in a YAML file, and how to name each in a message; its faults are added to `faults`."""
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        faults.append(
            f"--config {path}: cannot be read ({error.strerror}). Give a YAML file, e.g. configs/quickstart.yaml."
        )
        return {}, {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not UTF-8 text"
        faults.append(f"--config {path}{where}: not valid YAML ({problem}). Expected lines such as 'batch-size: 32'.")
        return {}, {}
    if content is None:
        return {}, {}
    if not isinstance(content, dict):
        faults.append(
            f"--config {path}: expected lines such as 'batch-size: 32'. Got a {type(content).__name__} instead."
        )
        return {}, {}
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    known = yaml_keys()
    for key, value in content.items():
        name = known.get(str(key).replace("-", "_"))
        if name is None:
            faults.append(f"{path}: " + unknown_name(str(key), list(known)))
        elif name in values:
            faults.append(f"{path}: {key} and {names[name].split(': ')[-1]} set the same thing; keep one of them.")
        else:
            values[name] = value
            names[name] = f"{path}: {key}"
    return values, names


def yaml_keys() -> dict[str, str]:
    """Every key a YAML file may hold, written with `_`, and the field it sets."""
    keys = {name: name for name in FIELDS}
    for name, (_, spec) in FIELDS.items():
        for flag in spec.metadata["flags"]:
            keys[flag[2:].replace("-", "_")] = name
    return keys


def known_flags(parser: argparse.ArgumentParser) -> list[str]:
    """The parser's flags, each in the form with hyphens."""
    flags = (flag for action in parser._actions for flag in action.option_strings)
    return [flag for flag in flags if flag.startswith("--") and "_" not in flag]


def unknown_words(words: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """One line for each unknown flag; words without a flag are told only where no flag is, whose value they may be."""
    faults = [unknown_name(word, known_flags(parser)) for word in words if word.startswith("--")]
    if faults:
        return faults
    return [f"unexpected argument {word!r}; every value follows a flag, e.g. --data {word}." for word in words]


def unknown_name(word: str, known: Sequence[str]) -> str:
    """The one line for a flag or key that does not exist, with the nearest one that does."""
    flag = word.split("=")[0]
    field = flag.removeprefix("--").replace("-", "_")
    if flag.startswith("--") and field in FIELDS:
        return f"unknown flag {flag}. It is a key of a YAML file: write '{field}: ...' there and give --config FILE."
    if field in ELSEWHERE:
        return f"unknown {'flag' if flag.startswith('--') else 'key'} {flag}: {ELSEWHERE[field]}."
    near = _nearest(flag, known)
    hint = f"Did you mean {near}?" if near else "See --help."
    return f"unknown {'flag' if flag.startswith('--') else 'key'} {flag}. {hint}"


def _nearest(name: str, known: Sequence[str]) -> str | None:
    """The known name that this one most likely stands for; None rather than one that is merely not far away."""
    words = _words(name)
    near = [other for other in known if _same_words(words, _words(other))]
    return max(near, key=lambda other: _likeness("-".join(words), "-".join(_words(other))), default=None)


def _words(name: str) -> list[str]:
    return name.removeprefix("--").replace("_", "-").split("-")


def _same_words(words: Sequence[str], others: Sequence[str]) -> bool:
    """Whether two names have the same words in order, but for typing errors, endings, and up to half left out."""
    letters, other_letters = "".join(words), "".join(others)
    if _likeness(letters, other_letters) >= 0.88:  # a hyphen missing, say
        return True
    half = 2 * len(words) >= len(others) or 2 * len(letters) >= len(other_letters)
    rest = iter(others)
    return half and all(any(_same_word(word, other) for other in rest) for word in words)


def _same_word(word: str, other: str) -> bool:
    short, long = sorted((word, other), key=len)
    return (len(short) > 2 and long.startswith(short)) or _likeness(word, other) >= 0.75


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()
