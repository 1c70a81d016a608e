"""Parse the command line and YAML files into a `RunConfig`.

argparse splits the words and prints the help. Its values stay strings, so that `classify.config.schema` reports all
invalid ones together. Its errors are raised as InputError.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import sys
import typing
from collections.abc import Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, NoReturn

from classify.config import hf_arguments, sagemaker
from classify.config.devices import DeviceConfig
from classify.config.fields import as_switch, choices, expand_home, shown_name
from classify.config.output import OutputConfig
from classify.config.run_config import FIELDS, HINTS, RunConfig, ValueSource
from classify.config.schema import DataConfig, ModelConfig, ReadConfig, TrainingConfig
from classify.config.stored_run import FILE, newest_runs, run_folder, stored_values
from classify.errors import ErrorList, InputError
from classify.launch import launcher

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
# What --help lists; --help-all lists every option.
COMMON = (
    "data", "eval_data", "test_data", "text_column", "label_column", "max_length", "max_train_samples", "model",
    "preset", "num_train_epochs", "batch_size", "learning_rate", "max_minutes", "seed", "precision", "use_cpu",
    "nproc", "strategy", "output_dir", "overwrite_output_dir", "resume_from_checkpoint", "verbose",
)  # fmt: skip
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
        """Return a word that is a flag as argparse knows it, any other unchanged."""
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
    """Return the parser of a training run; its help lists all options, or the common ones.

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
            _add(group, name, shown=full_help or name in COMMON)
        if title == "Result":
            file = "YAML with any of these options, or the JSON of TrainingArguments; flags override it"
            group.add_argument("--config", metavar="FILE", help=file)
            plan = "print the detected columns, the devices and the memory estimate, and exit"
            group.add_argument("--plan", action="store_true", help=plan)
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


def parse_training(argv: Sequence[str], program: str, description: str = DESCRIPTION) -> RunConfig:
    """Merge the command line, the file of `--config`, the run of `--resume` and the defaults, in this order.

    Raises InputError with all faults.
    """
    words = list(argv)
    full_help = "--help-all" in words or "--help_all" in words
    parser = training_parser(program, full_help=full_help, description=description)
    if len(words) == 1 and words[0].endswith(".json"):  # as HfArgumentParser takes it
        words = ["--config", *words]
    namespace, unknown = parser.parse_known_args(words)
    explicit: dict[str, Any] = vars(namespace)
    plan = bool(explicit.pop("plan", False))
    explicit.pop("debug", None)  # `cli` reads it, before anything is parsed
    faults = ErrorList(unknown_words(unknown, parser))
    words_of = {name: explicit.pop(_FOREIGN + name) for name in hf_arguments.NAMES if _FOREIGN + name in explicit}
    foreign = {name: " ".join(raw) if raw else True for name, raw in words_of.items()}
    ignored = _translate(foreign, explicit, faults)
    off = hf_arguments.turned_off(foreign)
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    others: dict[str, Any] = {}
    config_file = explicit.pop("config", None)
    if config_file is not None:
        values, names, others = _yaml_values(config_file, faults)
        wanted = {name: raw for name, raw in others.items() if not hf_arguments.is_unset(raw)}
        overridden = {name for name in off if name in wanted} | _turn_off(off, values)
        kept = {name: raw for name, raw in wanted.items() if name not in foreign}
        noted = _translate(kept, values, faults, f"{config_file}: ")
        noted += _drop_level(values, names, explicit.get("precision", values.get("precision")))
        ignored = _without(ignored, overridden, foreign) + noted
    faults += hf_arguments.find_missing_training(foreign, others, config_file)
    sources = {name: ValueSource("file", typed) for name, typed in names.items() if name not in explicit}
    sources |= {name: ValueSource("flag") for name in explicit}
    values = _merge(explicit, values)
    sources |= _from_container(values, faults)
    names = {name: text for name, text in names.items() if name not in explicit}
    values = {name: _join_values(name, hf_arguments.to_value(name, raw)) for name, raw in values.items()}
    stored, file = _from_run(values, faults)
    ignored = _without(ignored, _turn_off(off, stored), foreign)
    merged = _merge(values, stored)
    taken = [name for name in stored if name in merged and name not in values]
    sources |= {name: ValueSource("earlier run", file) for name in taken}
    names |= {name: f"{file}: {name}" for name in taken}
    sources = {name: source for name, source in sources.items() if name in merged}
    return RunConfig.from_values(merged, names, faults, plan=plan, sources=sources, ignored=tuple(ignored))


def _join_values(name: str, raw: Any) -> Any:
    """Return the list of a YAML file as the flag takes it."""
    return ",".join(map(str, raw)) if isinstance(raw, list) and FIELDS[name][1].metadata["several"] else raw


def _translate(foreign: dict[str, Any], explicit: dict[str, Any], faults: list[str], where: str = "--") -> list[str]:
    """Set in `explicit` what arguments of other scripts mean here, and return those that have no effect.

    `where` precedes their names in messages.
    """
    ignored = []
    set_by: dict[str, str] = {}
    for name, raw in hf_arguments.join_configuration(foreign).items():
        typed = f"{where}{name}" + ("" if raw is True else f" {raw}")
        if hf_arguments.has_no_effect(name, raw):
            ignored.append(typed)
        elif name in hf_arguments.TRANSLATED:
            try:
                field, value = hf_arguments.TRANSLATED[name](raw)
            except InputError as error:
                faults += [f"{where}{fault}" for fault in error.faults]
                continue
            # By warmup steps of 0 transformers 4 mean the ratio.
            is_unset = name == "warmup_ratio" and str(explicit.get(field)) in ("0", "0.0")
            if field not in explicit or is_unset:
                explicit[field], set_by[field] = value, typed
            elif explicit[field] != value:
                flag = shown_name(FIELDS[field][1])
                other = f"{set_by[field]} means {flag}" if field in set_by else f"{flag} is"
                faults.append(f"{typed} means {flag} {value}, and {other} {explicit[field]}; give one of them.")
        else:
            faults.append(f"{typed}: {hf_arguments.REFUSED[name]}.")
    return ignored


def _turn_off(off: dict[str, tuple[str, Any]], values: dict[str, Any]) -> set[str]:
    """Drop from `values` what flags such as `--fp16 False` turn off; return the names of those that do so."""
    names = {name for name, (field, value) in off.items() if values.get(field) == value}
    for name in names:
        values.pop(off[name][0])
    return names


def _without(ignored: list[str], names: set[str], flags: dict[str, Any]) -> list[str]:
    """Return the arguments without effect but for the flags `names`."""
    typed = {f"--{name} {flags[name]}" for name in names}
    return [text for text in ignored if text not in typed]


def _drop_level(values: dict[str, Any], names: dict[str, str], precision: Any) -> list[str]:
    """Drop a file's `fp16_opt_level`, which JSON of transformers 4 always has, unless fp16 is used; return it."""
    name = names.get("opt_level", "")
    if precision == "fp16" or not name.replace("-", "_").endswith(": fp16_opt_level"):
        return []
    del names["opt_level"]
    return [f"{name} {values.pop('opt_level')}"]


def _from_container(values: dict[str, Any], faults: ErrorList) -> dict[str, ValueSource]:
    """Add the defaults of SageMaker's container to `values`; return the sources of those fields."""
    with faults.collect():
        container = sagemaker.container_values(os.environ, values)
        values.update({name: value for name, (value, _) in container.items()})
        return {name: ValueSource("container", variable) for name, (_, variable) in container.items()}
    return {}


def _merge(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Merge values; the first override the second, also if they set it by the other batch-size field."""
    alike = ("batch_size", "per_device_train_batch_size")
    if any(name in first for name in alike):
        second = {name: value for name, value in second.items() if name not in alike}
    return {**second, **first}


def _from_run(values: dict[str, Any], faults: ErrorList) -> tuple[dict[str, Any], str]:
    """Return the settings of the run of --resume, and their file, if the command has no --data."""
    resume = values.get("resume_from_checkpoint", False)
    switch = as_switch(resume, or_name=True)
    if switch is False or "data" in values or faults:
        return {}, ""
    folder = values.get("output_dir") if switch else resume
    if not isinstance(folder, str):
        newest = ", ".join(newest_runs())
        faults.append(
            "--resume without --data must name the folder of a run, e.g. --resume runs/my-1. Got nothing "
            f"instead{f'; the newest are {newest}' if newest else ''}."
        )
        return {}, ""
    with faults.collect():
        run = run_folder(folder)
        stored = stored_values(run)
        if launcher.is_launched():  # the launcher has started the processes
            stored.pop("nproc", None)
        return stored, str(run / FILE)
    return {}, ""


def _yaml_values(path: str, faults: list[str]) -> tuple[dict[str, Any], dict[str, str], dict[str, Any]]:
    """Return the fields set in a file, the name of each in messages, and its arguments of other scripts."""
    import yaml

    try:
        text = Path(expand_home(path)).read_text(encoding="utf-8")
        content = yaml.safe_load(text)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        faults.append(
            f"--config {path}: cannot be read ({error.strerror}). Give a YAML file, e.g. configs/quickstart.yaml."
        )
        return {}, {}, {}
    # A value such as 2024-02-30, or with a tag such as !!bool, raises errors of Python.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        if isinstance(error, UnicodeDecodeError | RecursionError):
            problem = "nested too deeply" if isinstance(error, RecursionError) else "not UTF-8 text"
        faults.append(f"--config {path}{where}: not valid YAML ({problem}). Expected lines such as 'batch-size: 32'.")
        return {}, {}, {}
    if content is None:
        return {}, {}, {}
    if not isinstance(content, dict):
        faults.append(
            f"--config {path}: expected lines such as 'batch-size: 32'. Got a {type(content).__name__} instead."
        )
        return {}, {}, {}
    for key, line in _repeated_keys(root):
        faults.append(f"--config {path} line {line}: {key} is given twice; drop one of them.")
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    fields_by_key = yaml_keys()
    foreign: dict[str, Any] = {}
    for key, value in content.items():
        spelled = str(key).replace("-", "_")
        name = fields_by_key.get(spelled)
        if value is None:
            continue
        if name is None and spelled in hf_arguments.NAMES:
            foreign[spelled] = value
        elif name is None:
            faults.append(f"{path}: " + unknown_name(str(key), list(fields_by_key)))
        elif name in values and values[name] == value:
            continue
        elif name in values:
            faults.append(f"{path}: {key} and {names[name].split(': ')[-1]} are the same setting; keep one of them.")
        else:
            values[name] = value
            names[name] = f"{path}: {key}"
    return values, names, hf_arguments.join_configuration(foreign)


def _repeated_keys(root: Any) -> list[tuple[str, int]]:
    """Return the keys of a YAML mapping that are given twice, and the lines; its last value would win."""
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
    """Return the program's own flags."""
    actions = (action for action in parser._actions if not action.dest.startswith(_FOREIGN))
    flags = (flag for action in actions for flag in action.option_strings)
    return [flag for flag in flags if flag.startswith("--")]


def unknown_words(words: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Return one message per unknown flag; if there is none, one per word without a flag."""
    faults = [unknown_name(word, known_flags(parser)) for word in words if word.startswith("--")]
    if faults:
        return faults
    return [f"unexpected argument {word!r}; every value follows a flag, e.g. --data {word}." for word in words]


def unknown_name(word: str, names: Sequence[str]) -> str:
    """Return the message for an unknown flag or key, with the nearest valid one."""
    flag = word.split("=")[0]
    near = difflib.get_close_matches(flag, names, n=1, cutoff=_ALIKE)
    kind, place = ("flag", "--help-all") if flag.startswith("--") else ("key", "--help-all: keys are flags without --")
    hint = f"Did you mean {near[0]}?" if near else f"See {place}."
    return f"unknown {kind} {flag}. {hint}"
