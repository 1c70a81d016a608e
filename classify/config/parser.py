"""Parse the words of a command line: of a training into a `RunConfig`, of other commands into their options.

argparse splits the words and prints the help. Its values stay strings, which are converted afterwards, so that all
invalid ones are reported together. Its errors are raised as InputError. A training's flags (or Python's arguments), the
file of --config and the runs of --resume and --like are layers of settings: the first that sets a field decides.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import shlex
import sys
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, Generic, Literal, NoReturn

from classify.config import hf_arguments
from classify.config.fields import Options, as_switch, choices, convert, expand_home, flags_of, shown_name
from classify.config.run_config import FIELDS, HINTS, RunConfig
from classify.config.schema import DataConfig, DeviceConfig, ModelConfig, OutputConfig, ReadConfig, TrainingConfig
from classify.config.stored_run import FILE, run_folder, stored_values
from classify.config.yaml_file import read_yaml
from classify.errors import ErrorList, InputError
from classify.launch.launch import Launch

DESCRIPTION = "Fine-tune a BERT classifier on your own table of texts and labels."
# The headings of --help, and the class whose options are listed under each.
GROUPS = {
    "Data": DataConfig,
    "Reading of tables": ReadConfig,
    "Model": ModelConfig,
    "Training": TrainingConfig,
    "Hardware": DeviceConfig,
    "Result": OutputConfig,
}
# The field of each name that a setting has in YAML files and Python: its own, and its flags with _ for -.
KEYS = {name: name for name in FIELDS} | {
    flag[2:].replace("-", "_"): name for name, (_, spec) in FIELDS.items() for flag in flags_of(spec)
}
# Fields that mean the same in two ways.
_BATCH_SIZES = {"batch_size", "per_device_train_batch_size"}
# Flags of other programs by which people look for the choice of a GPU.
_GPU_FLAGS = ("--gpu", "--gpus", "--gpu-id", "--device", "--devices")
# Usual short forms, which are nearer to other flags.
_SHORT = {"--lr": "--learning-rate", "--bs": "--batch-size"}
# difflib similarity above which a flag is suggested.
_ALIKE = 0.74


class _StoreOnce(argparse._StoreAction):
    """Store a value; raise InputError where the flag is given again with another."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        before = getattr(namespace, self.dest, None)
        if option_string is not None and before not in (None, self.default, values):
            raise InputError(f"{option_string} is given twice ({before} and {values}); give it once.")
        setattr(namespace, self.dest, values)


class _StoreWords(_StoreOnce):
    """Store the words of an argument of another script as one text, or True."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        super().__call__(parser, namespace, " ".join(values) or True, option_string)


class _Join(argparse.Action):
    """Join the values of a flag that is given several times, or has several, with commas."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        before = getattr(namespace, self.dest, None)
        added = [values] if isinstance(values, str) else values
        if len(added) > 1 and (spaced := " ".join(added)) and Path(spaced).exists():
            parser.error(f"{option_string}: put a name with spaces in quotes: {option_string} {shlex.quote(spaced)}")
        setattr(namespace, self.dest, ",".join([*([] if before is None else [before]), *added]))


class _Formatter(argparse.HelpFormatter):
    """Formatter with a wider column for flags."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=36)

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        return "" if action.metavar == "" else super()._format_args(action, default_metavar)


class Parser(argparse.ArgumentParser):
    """argparse without usage text, abbreviations and exit; with the flag --debug, which `cli` reads.

    A flag that is given twice is refused.
    """

    def __init__(self, *, debug: bool = True, **kwargs: Any):
        super().__init__(allow_abbrev=False, formatter_class=_Formatter, **kwargs)
        for action in (None, "store"):
            self.register("action", action, _StoreOnce)
        if debug:
            self.add_argument("--debug", action="store_true", help="show the traceback of an error")

    def error(self, message: str) -> NoReturn:
        raise InputError(message if message.endswith(".") else f"{message}. See --help.")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        words = list(sys.argv[1:] if args is None else args)
        end = words.index("--") if "--" in words else len(words)  # from there on all words are values
        return super().parse_known_args([*map(self._hyphens, words[:end]), *words[end:]], namespace)

    def _hyphens(self, word: str) -> str:
        flag, sign, value = word.partition("=")
        known = flag.replace("_", "-")
        return known + sign + value if flag.startswith("--") and known in self._option_string_actions else word

    def find_unknown(self, words: Sequence[str]) -> list[str]:
        """One message per unknown flag; if there is none, one per word without a flag."""
        foreign = {*hf_arguments.NAMES} - {"debug"}
        own = [flag for flag, action in self._option_string_actions.items() if action.dest not in foreign]
        faults = [unknown_name(word, own) for word in words if word.startswith("--")]
        if faults:
            return faults
        return [f"unexpected argument {word!r}; every value follows a flag, e.g. --data {word}." for word in words]


class CommandParser(Parser, Generic[Options]):
    """The parser of a command, whose options are the fields of a dataclass.

    A field whose flag has no hyphens before it takes the words without a flag.
    """

    def __init__(self, kind: type[Options], program: str, description: str, usage: str | None = None):
        super().__init__(prog=program, description=description, usage=usage, argument_default=argparse.SUPPRESS)
        self._kind, self._hints = kind, typing.get_type_hints(kind)
        for spec in fields(kind):  # type: ignore[arg-type]
            _add(self, spec, self._hints[spec.name])

    def read(self, words: Sequence[str], required: Sequence[str] = ()) -> Options:
        """Parse all words and convert each value. Raises InputError with all faults."""
        options, unknown = self.parse_known_args(words)
        given, faults = vars(options), ErrorList(self.find_unknown(unknown))
        missing = [name for name in required if not given.get(name)]
        faults += [f"--{name.replace('_', '-')} must be given. See {self.prog} --help." for name in missing]
        values: dict[str, Any] = {}
        for spec in fields(self._kind):  # type: ignore[arg-type]
            if spec.name in given:
                with faults.collect():
                    hint, raw = self._hints[spec.name], given[spec.name]
                    values[spec.name] = (
                        tuple(raw) if isinstance(raw, list) else convert(spec, hint, raw, flags_of(spec)[0])
                    )
        faults.raise_if_any()
        return self._kind(**values)


def training_parser(program: str, *, full_help: bool = True, description: str = DESCRIPTION) -> Parser:
    """The parser of a training run; its help lists all options, or the common ones.

    Values stay strings; absent flags are not in the namespace.
    """
    parser = Parser(
        debug=False,
        prog=program,
        usage=f"{program} --data FILE [flags]",
        description=description,
        epilog=("" if full_help else "--help-all lists every flag. ")
        + "Flags of run_glue.py, run_classification.py and TrainingArguments are accepted, or refused with the "
        "alternative; --gradient-accumulation-steps splits --batch-size. - and _ are interchangeable in flags.",
        argument_default=argparse.SUPPRESS,
    )
    for title, kind in GROUPS.items():
        group = parser.add_argument_group(title)
        for name in own_options(kind):
            spec = FIELDS[name][1]
            _add(group, spec, HINTS[name], shown=full_help or spec.metadata["common"], trains=True)
        if title == "Result":
            file = "YAML with any of these options, or the JSON of TrainingArguments; flags override it"
            group.add_argument("--config", metavar="FILE", help=file)
            like = "take tables and settings of an earlier run; flags override them"
            group.add_argument("--like", metavar="FOLDER", help=like)
            group.add_argument("--debug", action="store_true", help="show the traceback of an error")
            group.add_argument("--help-all", action="help", help="list every flag and exit")
    for name in hf_arguments.NAMES:
        flag, hidden = name.replace("_", "-"), argparse.SUPPRESS
        if f"--{flag}" not in parser._option_string_actions:
            parser.add_argument(f"--{flag}", nargs="*", action=_StoreWords, dest=name, help=hidden)
        if name in hf_arguments.NO_EFFECT:
            parser.add_argument(f"--no-{flag}", action="store_const", const="False", dest=name, help=hidden)
    return parser


def own_options(kind: type[Any]) -> list[str]:
    inherited = {spec.name for base in kind.__bases__ if dataclasses.is_dataclass(base) for spec in fields(base)}
    return [spec.name for spec in fields(kind) if spec.name not in inherited]


def _add(
    group: argparse._ActionsContainer, spec: Field[Any], hint: Any, *, shown: bool = True, trains: bool = False
) -> None:
    """Add a field's flags; the help shows the first if `shown`."""
    flags = flags_of(spec)
    if not flags[0].startswith("-"):
        group.add_argument(spec.name, nargs="*", metavar=flags[0], help=_help(spec))
        return
    arguments: dict[str, Any] = {"dest": spec.name}
    if hint is bool and not trains:  # a word after it may be a text
        arguments["action"] = "store_true"
    elif hint is bool:  # SageMaker passes "--bf16 True"
        arguments |= {"nargs": "?", "const": True, "metavar": ""}
    elif hint == tuple[str, ...]:
        arguments |= {"action": "append", "metavar": spec.metadata["metavar"]}
    else:
        arguments["metavar"] = "{" + ",".join(choices(hint)) + "}" if choices(hint) else _metavar(spec, hint)
        if spec.metadata["switch"] or bool in typing.get_args(hint):
            arguments |= {"nargs": "?", "const": True}
        elif spec.metadata["several"]:
            arguments |= {"action": _Join, "nargs": None if "column" in spec.name else "+"}
    group.add_argument(flags[0], help=_help(spec) if shown else argparse.SUPPRESS, **arguments)
    if flags[1:]:
        group.add_argument(*flags[1:], help=argparse.SUPPRESS, **arguments)


def _metavar(spec: Field[Any], hint: Any) -> str:
    kinds = typing.get_args(hint) or (hint,)
    return "INT" if int in kinds else "FLOAT" if float in kinds else spec.metadata["metavar"]


def _help(spec: Field[Any]) -> str:
    default = spec.default
    text = str(spec.metadata["help"].replace("%", "%%"))
    if default is False or default in (None, "", ()) or "(default: " in text:
        return text
    shown = repr(default) if isinstance(default, str) and not default.strip() else default
    return f"{text} (default: {shown})"


def parse_training(argv: Sequence[str], program: str, description: str = DESCRIPTION) -> RunConfig:
    """Merge the command line, the file of `--config`, and the run of `--resume`, in this order.

    Raises InputError with all faults.
    """
    words = list(argv)
    full_help = "--help-all" in words or "--help_all" in words
    parser = training_parser(program, full_help=full_help, description=description)
    if len(words) == 1 and words[0].endswith(".json"):  # as HfArgumentParser takes it
        words = ["--config", *words]
    namespace, unknown = parser.parse_known_args(words)
    return merge_settings(vars(namespace), parser.find_unknown(unknown))


def merge_settings(given: Mapping[str, Any], faults: Iterable[str] = ()) -> RunConfig:
    """Merge what is `given` with its `config`, with the run of --resume and that of `like`, in this order.

    `given` has the values by name: fields, flags with _ for -, and arguments of other scripts; None is no value. Raises
    InputError with all faults, including faults of parsing.
    """
    own = ("config", "like", "debug")
    flags = {name: value for name, value in given.items() if name not in own and value is not None}
    settings = _Settings(faults)
    settings.add(flags, "flag")
    content = {}
    if (path := given.get("config")) is not None:
        content = read_yaml(os.fspath(path), settings.faults)
        settings.add(content, "file", os.fspath(path))
    if hf_arguments.asks_for_no_training(flags, content):
        settings.faults.append(hf_arguments.NO_TRAINING)
    settings.add_resumed()
    if (like := given.get("like")) is not None:
        settings.add_run(os.fspath(like), "--like")
    return RunConfig.from_values(
        settings.values, settings.names, settings.faults, sources=settings.sources, ignored=tuple(settings.ignored)
    )


# Value and spelling of each field.
_Layer = dict[str, tuple[Any, str]]


class _Settings:
    """Layers of settings in order of precedence: the first that sets a field decides."""

    def __init__(self, faults: Iterable[str]):
        self.faults = ErrorList(faults)
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}
        # The name of a field in messages, where that is not its flag.
        self.names: dict[str, str] = {}
        # Arguments of other scripts, and the ones without effect.
        self._foreign: dict[str, Any] = {}
        self.ignored: list[str] = []

    def add(self, given: Mapping[str, Any], kind: Literal["flag", "file", "earlier run"], origin: str = "") -> None:
        """Add what the layers before leave open, without what their flags such as `--fp16 False` turn off."""
        where = f"{origin}: " if origin else "--"
        layer: _Layer = {}
        foreign: dict[str, Any] = {}
        for key, raw in hf_arguments.simplify(given).items():
            shown = where + (key if origin else key.replace("_", "-"))
            if key in KEYS:
                self._set(layer, KEYS[key], raw, shown)
            elif key not in hf_arguments.NAMES:
                known = KEYS if origin else [f"--{name.replace('_', '-')}" for name in KEYS]
                self.faults.append(where + unknown_name(key, known) if origin else unknown_name(shown, known))
            # TrainingArguments write all their fields into a file, also the ones that nobody has set.
            elif not (origin and hf_arguments.is_unset(raw)):
                foreign[key] = raw
        for name, value in hf_arguments.turned_off(self._foreign):
            if name in layer and layer[name][0] == value:
                del layer[name]
        for key, raw in sorted(foreign.items()):
            if key not in self._foreign and not hf_arguments.is_switch_off(key, raw):
                self._translate(layer, key, raw, where)
        self._foreign |= foreign
        half = self.values.get("precision", layer.get("precision", ("", ""))[0])
        if "opt_level" in layer and layer["opt_level"][1].endswith(": fp16_opt_level") and half != "fp16":
            level, shown = layer.pop("opt_level")  # JSON of transformers 4 always has a level
            self.ignored.append(f"{shown} {level}")
        taken = self.values.keys() | (_BATCH_SIZES if self.values.keys() & _BATCH_SIZES else set())
        for name in [name for name in layer if name not in taken]:
            self.values[name], shown = layer[name]
            self.sources[name] = f"{kind} {shown if kind == 'file' else origin}".rstrip()
            if origin:
                self.names[name] = shown

    def _set(self, layer: _Layer, name: str, raw: Any, shown: str) -> None:
        value = hf_arguments.to_value(name, raw)
        if isinstance(value, list | tuple) and FIELDS[name][1].metadata["several"]:
            value = ",".join(map(str, value))
        before, other = layer.setdefault(name, (value, shown))
        if before is not value and before != value:
            flag = shown_name(FIELDS[name][1])
            self.faults.append(f"{other} and {shown} set {flag} to {before} and {value}; give one of them.")

    def _translate(self, layer: _Layer, key: str, raw: Any, where: str) -> None:
        """Set in the layer what an argument of another script means here; `where` precedes its name in messages."""
        typed = f"{where}{key}" + ("" if raw is True else f" {raw}")
        if hf_arguments.has_no_effect(key, raw, layer):
            self.ignored.append(typed)
        elif key in hf_arguments.REFUSED:
            self.faults.append(f"{typed}: {hf_arguments.REFUSED[key]}.")
        else:
            try:
                name, value = hf_arguments.translate(key, raw)
            except InputError as error:
                self.faults += [f"{where}{fault}" for fault in error.faults]
            else:
                self._set(layer, name, value, where + key)

    def add_resumed(self) -> None:
        """Add the settings of the run that --resume names, or without --data --output-dir.

        A command with --data and a bare --resume is a whole one, which may run on a machine that lacks the folder.
        """
        resume = self.values.get("resume_from_checkpoint", False)
        switch = as_switch(resume, or_name=True)
        if switch is False or self.faults or (switch and "data" in self.values):
            return
        folder = self.values.get("output_dir") if switch else resume
        if not isinstance(folder, str | os.PathLike):
            self.faults.append("--resume without --data must name the folder of a run, e.g. --resume runs/my-1.")
        elif "data" not in self.values or (run_folder(expand_home(os.fspath(folder))) / FILE).is_file():
            self.add_run(os.fspath(folder), "--resume")

    def add_run(self, folder: str, flag: str) -> None:
        """Add the settings of an earlier run, whose folder a flag names."""
        with self.faults.collect():
            stored = stored_values(run_folder(expand_home(folder)), flag)
            if Launch.read().is_launched:  # the launcher has started the processes
                stored.pop("nproc", None)
            self.add(stored, "earlier run", str(run_folder(folder) / FILE))


def unknown_name(word: str, names: Collection[str]) -> str:
    """The message for an unknown flag or key, with the nearest valid one."""
    flag = word.split("=")[0]
    if flag in _GPU_FLAGS:
        return f"unknown flag {flag}. To choose GPUs begin the command with CUDA_VISIBLE_DEVICES=1; --cpu uses none."
    near = [_SHORT[flag]] if flag in _SHORT else difflib.get_close_matches(flag, names, n=1, cutoff=_ALIKE)
    kind = "flag" if flag.startswith("--") else "key"
    place = "--help" if kind == "flag" and "--help-all" not in names else "--help-all"
    hint = f"Did you mean {near[0]}?" if near else f"See {place}{': keys are flags without --' * (kind == 'key')}."
    return f"unknown {kind} {flag}. {hint}"
