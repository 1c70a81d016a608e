"""Parse the command line and YAML files into a `RunConfig`.

argparse splits the words and prints the help. Its values stay strings, so that `classify.config.schema` reports all
invalid ones together. Its errors are raised as InputError.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import shlex
import sys
import typing
from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

from classify.config import hf_arguments
from classify.config.devices import DeviceConfig
from classify.config.fields import as_switch, choices, expand_home, shown_name
from classify.config.output import OutputConfig
from classify.config.run_config import FIELDS, HINTS, RunConfig, ValueSource
from classify.config.schema import DataConfig, ModelConfig, ReadConfig, TrainingConfig
from classify.config.stored_run import FILE, newest_runs, run_folder, stored_values
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
# Fields that mean the same in two ways.
_BATCH_SIZES = ("batch_size", "per_device_train_batch_size")
# Flags of other programs by which people look for the choice of a GPU.
_GPU_FLAGS = ("--gpu", "--gpus", "--gpu-id", "--device", "--devices")
# Usual short forms, which are nearer to other flags.
_SHORT = {"--lr": "--learning-rate", "--bs": "--batch-size"}
# difflib similarity above which a flag is suggested.
_ALIKE = 0.74
# Prefix of arguments of other scripts in the namespace.
_FOREIGN = "foreign:"


class _StoreOnce(argparse._StoreAction):
    """Store a value; raise InputError where the flag is given again with another."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        before = getattr(namespace, self.dest, None)
        if option_string is not None and before not in (None, self.default, values):
            raise InputError(f"{option_string} is given twice ({before} and {values}); give it once.")
        setattr(namespace, self.dest, values)


class _Join(argparse.Action):
    """Join the values of a flag that is given several times, or has several, with commas."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        before = getattr(namespace, self.dest, None)
        added = [values] if isinstance(values, str) else values
        if len(added) > 1 and (spaced := " ".join(added)) and Path(spaced).exists():
            parser.error(f"{option_string}: put a name with spaces in quotes: {option_string} {shlex.quote(spaced)}")
        setattr(namespace, self.dest, ",".join([*([] if before is None else [before]), *added]))


class Parser(argparse.ArgumentParser):
    """argparse without usage text, abbreviations and exit; with the flag --debug, which `cli` reads.

    A flag that is given twice is refused; with the action "join" its values are a list with commas.
    """

    def __init__(self, *, debug: bool = True, **kwargs: Any):
        super().__init__(allow_abbrev=False, formatter_class=_Formatter, **kwargs)
        for action in (None, "store"):
            self.register("action", action, _StoreOnce)
        self.register("action", "join", _Join)
        if debug:
            self.add_argument("--debug", action="store_true", help="show the traceback of an error")

    def error(self, message: str) -> NoReturn:
        """Raise InputError instead of printing the usage and exiting."""
        raise InputError(message if message.endswith(".") else f"{message}. See --help.")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse words; a flag may be spelled with _ for -."""
        words = list(sys.argv[1:] if args is None else args)
        end = words.index("--") if "--" in words else len(words)  # from there on all words are values
        return super().parse_known_args([*map(self._hyphens, words[:end]), *words[end:]], namespace)

    def _hyphens(self, word: str) -> str:
        flag, sign, value = word.partition("=")
        known = flag.replace("_", "-")
        return known + sign + value if flag.startswith("--") and known in self._option_string_actions else word

    def parse(self, words: Sequence[str], required: Sequence[str] = ()) -> argparse.Namespace:
        """Parse all words. Raises InputError with every unknown word and missing `required` flag."""
        options, unknown = self.parse_known_args(words)
        for name, value in vars(options).items():
            if isinstance(value, str):
                setattr(options, name, expand_home(value))
        faults = unknown_words(unknown, self)
        missing = [name for name in required if not getattr(options, name)]
        faults += [f"--{name.replace('_', '-')} must be given. See {self.prog} --help." for name in missing]
        if faults:
            raise InputError(*faults)
        return options


class _Formatter(argparse.HelpFormatter):
    """Formatter with a wider column for flags."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=36)

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        """Show a switch without its optional value."""
        return "" if action.metavar == "" else super()._format_args(action, default_metavar)


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
            _add(group, name, shown=full_help or FIELDS[name][1].metadata["common"])
        if title == "Result":
            file = "YAML with any of these options, or the JSON of TrainingArguments; flags override it"
            group.add_argument("--config", metavar="FILE", help=file)
            like = "take tables and settings of an earlier run; flags override them"
            group.add_argument("--like", metavar="FOLDER", help=like)
            group.add_argument("--debug", action="store_true", help="show the traceback of an error")
            group.add_argument("--help-all", action="help", help="list every flag and exit")
    for name in hf_arguments.NAMES:
        flag = name.replace("_", "-")
        place: dict[str, Any] = {"dest": _FOREIGN + name, "help": argparse.SUPPRESS}
        if f"--{flag}" not in parser._option_string_actions:
            parser.add_argument(f"--{flag}", nargs="*", **place)
        if name in hf_arguments.NO_EFFECT:
            parser.add_argument(f"--no-{flag}", action="store_const", const=["False"], **place)
    return parser


def own_options(kind: type[Any]) -> list[str]:
    """List the options with flags that a config class declares itself, without its bases'."""
    inherited = {spec.name for base in kind.__bases__ if dataclasses.is_dataclass(base) for spec in fields(base)}
    return [spec.name for spec in fields(kind) if spec.metadata["flags"] and spec.name not in inherited]


def _add(group: argparse._ArgumentGroup, name: str, *, shown: bool) -> None:
    """Add a field's flags; the help shows the first if `shown`."""
    spec = FIELDS[name][1]
    hint = HINTS[name]
    flags = spec.metadata["flags"]
    arguments: dict[str, Any] = {"dest": name}
    if hint is bool:  # SageMaker passes "--bf16 True"
        arguments |= {"nargs": "?", "const": True, "metavar": ""}
    else:
        arguments["metavar"] = "{" + ",".join(choices(hint)) + "}" if choices(hint) else _metavar(spec, hint)
        if spec.metadata["switch"] or name == "resume_from_checkpoint":
            arguments |= {"nargs": "?", "const": True}
        elif spec.metadata["several"]:
            arguments["action"] = "join"
            arguments["nargs"] = None if "column" in name else "+"
    group.add_argument(flags[0], help=_help(spec) if shown else argparse.SUPPRESS, **arguments)
    if flags[1:]:
        group.add_argument(*flags[1:], help=argparse.SUPPRESS, **arguments)


def _metavar(spec: Field[Any], hint: Any) -> str:
    kinds = typing.get_args(hint) or (hint,)
    return "INT" if int in kinds else "FLOAT" if float in kinds else spec.metadata["metavar"]


def _help(spec: Field[Any]) -> str:
    default = spec.default
    text = spec.metadata["help"].replace("%", "%%")
    if default is None or default is False:
        return text
    shown = repr(default) if isinstance(default, str) and not default.strip() else default
    return f"{text} (default: {shown})"


@dataclass
class _Layer:
    """Values of one origin, by field, with their sources, and their names in messages where these are not flags."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, ValueSource] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    # Arguments of other scripts, those of them without effect, and flags such as `--fp16 False` that have one here.
    foreign: dict[str, Any] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    turned_off: set[str] = field(default_factory=set)

    def turn_off(self, flags: dict[str, Any]) -> None:
        """Drop the values that flags such as `--fp16 False` turn off."""
        for name, (at, value) in hf_arguments.turned_off(flags).items():
            if self.values.get(at) == value:
                del self.values[at]
                self.turned_off.add(name)


@dataclass
class _Settings(_Layer):
    """Layers in order of precedence: the first that sets a field decides."""

    def add(self, layer: _Layer) -> None:
        """Add what the layers before it leave open, without what flags such as `--fp16 False` turn off there."""
        layer.turn_off(self.foreign)
        taken = set(self.values)
        taken |= set(_BATCH_SIZES) if any(name in self.values for name in _BATCH_SIZES) else set()
        for name in [name for name in layer.values if name not in taken]:
            self.values[name], self.sources[name] = layer.values[name], layer.sources[name]
            if name in layer.names:
                self.names[name] = layer.names[name]
        typed = {f"--{name} {self.foreign[name]}" for name in layer.turned_off}
        self.ignored = [text for text in self.ignored if text not in typed] + layer.ignored


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
    given: dict[str, Any] = vars(namespace)
    path, like = given.pop("config", None), given.pop("like", None)
    given.pop("debug", None)  # `cli` reads it, before anything is parsed
    faults = ErrorList(unknown_words(unknown, parser))
    settings = _Settings(foreign=_pop_foreign(given))
    settings.ignored = _translate(settings.foreign, given, faults)
    settings.values, settings.sources = given, dict.fromkeys(given, ValueSource("flag"))
    file = _Layer() if path is None else _read_file(path, settings, faults)
    settings.add(file)
    faults += hf_arguments.find_missing_training(settings.foreign, file.foreign, path)
    settings.add(_read_run(settings.values, faults))
    if like is not None:
        settings.add(_read_stored(like, "--like", faults))
    values = {name: _join_values(name, hf_arguments.to_value(name, raw)) for name, raw in settings.values.items()}
    ignored = tuple(settings.ignored)
    return RunConfig.from_values(values, settings.names, faults, sources=settings.sources, ignored=ignored)


def _pop_foreign(given: dict[str, Any]) -> dict[str, Any]:
    """Take the arguments of other scripts out of the parsed ones."""
    words = {name: given.pop(_FOREIGN + name) for name in hf_arguments.NAMES if _FOREIGN + name in given}
    return {name: " ".join(raw) if raw else True for name, raw in words.items()}


def _join_values(name: str, raw: Any) -> Any:
    return ",".join(map(str, raw)) if isinstance(raw, list) and FIELDS[name][1].metadata["several"] else raw


def _translate(foreign: dict[str, Any], explicit: dict[str, Any], faults: list[str], where: str = "--") -> list[str]:
    """Set in `explicit` what arguments of other scripts mean here, and return those that have no effect.

    `where` precedes their names in messages.
    """
    ignored = []
    set_by: dict[str, str] = {}
    for name, raw in hf_arguments.join_configuration(foreign).items():
        typed = f"{where}{name}" + ("" if raw is True else f" {raw}")
        if hf_arguments.has_no_effect(name, raw, explicit):
            ignored.append(typed)
        elif name in hf_arguments.TRANSLATED:
            try:
                at, value = hf_arguments.TRANSLATED[name](raw)
            except InputError as error:
                faults += [f"{where}{fault}" for fault in error.faults]
                continue
            # By warmup steps of 0 transformers 4 mean the ratio.
            is_unset = name == "warmup_ratio" and str(explicit.get(at)) in ("0", "0.0")
            if at not in explicit or is_unset:
                explicit[at], set_by[at] = value, typed
            elif explicit[at] != value:
                flag = shown_name(FIELDS[at][1])
                other = f"{set_by[at]} means {flag}" if at in set_by else f"{flag} is"
                faults.append(f"{typed} means {flag} {value}, and {other} {explicit[at]}; give one of them.")
        else:
            faults.append(f"{typed}: {hf_arguments.REFUSED[name]}.")
    return ignored


def _read_run(values: dict[str, Any], faults: ErrorList) -> _Layer:
    """The settings of the run that --resume names, or without --data --output-dir.

    A command with --data and a bare --resume is a whole one, which may run on a machine that lacks the folder.
    """
    resume = values.get("resume_from_checkpoint", False)
    switch = as_switch(resume, or_name=True)
    if switch is False or faults or (switch and "data" in values):
        return _Layer()
    folder = values.get("output_dir") if switch else resume
    if isinstance(folder, str) and "data" in values and not (run_folder(expand_home(folder)) / FILE).is_file():
        return _Layer()
    if not isinstance(folder, str):
        newest = ", ".join(newest_runs())
        faults.append(
            "--resume without --data must name the folder of a run, e.g. --resume runs/my-1. Got nothing "
            f"instead{f'; the newest are {newest}' if newest else ''}."
        )
        return _Layer()
    return _read_stored(folder, "--resume", faults)


def _read_stored(folder: str, flag: str, faults: ErrorList) -> _Layer:
    """The settings of an earlier run, whose folder a flag names."""
    stored: dict[str, Any] = {}
    with faults.collect():
        stored = stored_values(run_folder(expand_home(folder)), flag)
        if Launch.read().is_launched:  # the launcher has started the processes
            stored.pop("nproc", None)
    file = str(run_folder(folder) / FILE)
    source = ValueSource("earlier run", file)
    return _Layer(stored, dict.fromkeys(stored, source), {name: f"{file}: {name}" for name in stored})


def _read_file(path: str, flags: _Layer, faults: list[str]) -> _Layer:
    """The settings of a YAML file, and what its arguments of other scripts mean where `flags` have none."""
    layer = _Layer()
    fields_by_key = yaml_keys()
    content = _read_yaml(path, faults)
    if {"config", "command", "versions"} <= content.keys():
        faults.append(
            f"--config {path}: this is the record of a run; give --like {shlex.quote(str(Path(path).parent))}."
        )
        return layer
    for key, value in content.items():
        spelled = str(key).replace("-", "_")
        name = fields_by_key.get(spelled)
        if value is None:
            continue
        if name is None and spelled in hf_arguments.NAMES:
            layer.foreign[spelled] = value
        elif name is None:
            faults.append(f"{path}: " + unknown_name(str(key), list(fields_by_key)))
        elif layer.values.get(name, value) != value:
            other = layer.names[name].split(": ")[-1]
            faults.append(f"{path}: {key} and {other} are the same setting; keep one of them.")
        elif name not in layer.values:
            layer.values[name], layer.names[name] = value, f"{path}: {key}"
    layer.sources = {name: ValueSource("file", typed) for name, typed in layer.names.items()}
    layer.foreign = hf_arguments.join_configuration(layer.foreign)
    wanted = {name: raw for name, raw in layer.foreign.items() if not hf_arguments.is_unset(raw)}
    layer.turn_off(flags.foreign)
    layer.turned_off |= hf_arguments.turned_off(flags.foreign).keys() & wanted.keys()
    translated = {name: raw for name, raw in wanted.items() if name not in flags.foreign}
    layer.ignored = _translate(translated, layer.values, faults, f"{path}: ")
    level = layer.names.get("opt_level", "")
    half = flags.values.get("precision", layer.values.get("precision"))
    if half != "fp16" and level.replace("-", "_").endswith(": fp16_opt_level"):
        # JSON of transformers 4 always has a level.
        layer.ignored.append(f"{level} {layer.values.pop('opt_level')}")
    for name in set(layer.values) - set(layer.sources):
        layer.sources[name] = ValueSource("file", path)
    return layer


def _read_yaml(path: str, faults: list[str]) -> dict[Any, Any]:
    """The keys and values of a YAML file."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Without aliases, by which a few lines can stand for more values than memory holds."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                mark = self.peek_event().start_mark
                raise yaml.MarkedYAMLError(problem="aliases (*name) are not supported", problem_mark=mark)
            return super().compose_node(parent, index)

    try:
        text = Path(expand_home(path)).read_text(encoding="utf-8")
        content = yaml.load(text, Loader=Loader)  # noqa: S506 - a SafeLoader
        root = yaml.compose(text, Loader=Loader)
    except OSError as error:
        faults.append(
            f"--config {path}: cannot be read ({error.strerror}). Give a YAML file, e.g. configs/quickstart.yaml."
        )
        return {}
    # A value such as 2024-02-30, or with a tag such as !!bool, raises errors of Python.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        if isinstance(error, UnicodeDecodeError | RecursionError):
            problem = "nested too deeply" if isinstance(error, RecursionError) else "not UTF-8 text"
        faults.append(f"--config {path}{where}: not valid YAML ({problem}). Expected lines such as 'batch-size: 32'.")
        return {}
    if not isinstance(content, dict | None):
        faults.append(
            f"--config {path}: expected lines such as 'batch-size: 32'. Got a {type(content).__name__} instead."
        )
        return {}
    for key, line in _repeated_keys(root):
        faults.append(f"--config {path} line {line}: {key} is given twice; drop one of them.")
    return content or {}


def _repeated_keys(root: Any) -> list[tuple[str, int]]:
    """The keys of a YAML mapping that are given twice, and the lines; its last value would win."""
    seen: set[str] = set()
    repeated: list[tuple[str, int]] = []
    for key, _ in getattr(root, "value", ()):
        name = str(key.value).replace("-", "_")
        if name in seen:
            repeated.append((key.value, key.start_mark.line + 1))
        seen.add(name)
    return repeated


def yaml_keys() -> dict[str, str]:
    """Return {key: field} of all keys of YAML files, with `_`."""
    keys = {name: name for name in FIELDS}
    for name, (_, spec) in FIELDS.items():
        for flag in spec.metadata["flags"]:
            keys[flag[2:].replace("-", "_")] = name
    return keys


def known_flags(parser: argparse.ArgumentParser) -> list[str]:
    """The program's own flags."""
    actions = (action for action in parser._actions if not action.dest.startswith(_FOREIGN))
    flags = (flag for action in actions for flag in action.option_strings)
    return [flag for flag in flags if flag.startswith("--")]


def unknown_words(words: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """One message per unknown flag; if there is none, one per word without a flag."""
    faults = [unknown_name(word, known_flags(parser)) for word in words if word.startswith("--")]
    if faults:
        return faults
    return [f"unexpected argument {word!r}; every value follows a flag, e.g. --data {word}." for word in words]


def unknown_name(word: str, names: Sequence[str]) -> str:
    """The message for an unknown flag or key, with the nearest valid one."""
    flag = word.split("=")[0]
    if flag in _GPU_FLAGS:
        return f"unknown flag {flag}. To choose GPUs begin the command with CUDA_VISIBLE_DEVICES=1; --cpu uses none."
    near = [_SHORT[flag]] if flag in _SHORT else difflib.get_close_matches(flag, names, n=1, cutoff=_ALIKE)
    kind = "flag" if flag.startswith("--") else "key"
    place = "--help" if kind == "flag" and "--help-all" not in names else "--help-all"
    hint = f"Did you mean {near[0]}?" if near else f"See {place}{': keys are flags without --' * (kind == 'key')}."
    return f"unknown {kind} {flag}. {hint}"
