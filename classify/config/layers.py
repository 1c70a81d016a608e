"""Merge settings from the command line (or Python), the file of --config, and earlier runs into a `RunConfig`."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

from classify.config import hf_arguments
from classify.config.fields import as_switch, expand_home, flags_of, shown_name
from classify.config.run_config import FIELDS, RunConfig, ValueSource
from classify.config.stored_run import FILE, newest_runs, run_folder, stored_values
from classify.config.yaml_file import read_yaml
from classify.errors import ErrorList, InputError
from classify.launch.launch import Launch

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
    settings.faults += hf_arguments.find_missing_training(flags, content, path)
    settings.add_resumed()
    if (like := given.get("like")) is not None:
        settings.add_run(os.fspath(like), "--like")
    return RunConfig.from_values(
        settings.values, settings.names, settings.faults, sources=settings.sources, ignored=tuple(settings.ignored)
    )


class _Settings:
    """Layers of settings in order of precedence: the first that sets a field decides."""

    def __init__(self, faults: Iterable[str]):
        self.faults = ErrorList(faults)
        self.values: dict[str, Any] = {}
        self.sources: dict[str, ValueSource] = {}
        # The name of a field in messages, where that is not its flag.
        self.names: dict[str, str] = {}
        # Arguments of other scripts, and the ones without effect.
        self._foreign: dict[str, Any] = {}
        self.ignored: list[str] = []

    def add(self, given: Mapping[str, Any], kind: Literal["flag", "file", "earlier run"], origin: str = "") -> None:
        """Add what the layers before leave open, without what their flags such as `--fp16 False` turn off."""
        where = f"{origin}: " if origin else ""
        layer: dict[str, Any] = {}
        spelled: dict[str, str] = {}
        foreign: dict[str, Any] = {}
        for key, value in given.items():
            name = KEYS.get(key)
            shown = where + key if where else f"--{key.replace('_', '-')}"
            if name is None and key in hf_arguments.NAMES:
                # TrainingArguments write all their fields into a file, also the ones that nobody has set.
                if not (where and hf_arguments.is_unset(value)):
                    foreign[key] = value
            elif name is None and where:
                self.faults.append(where + unknown_name(key, KEYS))
            elif name is None:
                self.faults.append(unknown_name(shown, [f"--{known.replace('_', '-')}" for known in KEYS]))
            elif layer.get(name, value) != value:
                other = spelled[name].removeprefix(where)
                self.faults.append(f"{shown} and {other} are the same setting; keep one of them.")
            elif name not in layer:
                layer[name], spelled[name] = _join_values(name, hf_arguments.to_value(name, value)), shown
        for name, value in hf_arguments.turned_off(self._foreign):
            if layer.get(name) == value:
                del layer[name]
        joined = hf_arguments.join_configuration(foreign)
        wanted = {name: raw for name, raw in sorted(joined.items()) if name not in self._foreign}
        self._foreign |= foreign
        self._translate(wanted, layer, where or "--")
        half = self.values.get("precision", layer.get("precision"))
        if spelled.get("opt_level", "").endswith(": fp16_opt_level") and half != "fp16":
            # JSON of transformers 4 always has a level.
            self.ignored.append(f"{spelled['opt_level']} {layer.pop('opt_level')}")
        taken = self.values.keys() | (_BATCH_SIZES if self.values.keys() & _BATCH_SIZES else set())
        for name in [name for name in layer if name not in taken]:
            self.values[name] = layer[name]
            self.sources[name] = ValueSource(kind, spelled.get(name, origin) if kind == "file" else origin)
            if where and name in spelled:
                self.names[name] = spelled[name]

    def _translate(self, foreign: dict[str, Any], layer: dict[str, Any], where: str) -> None:
        """Set in the layer what arguments of other scripts mean here. `where` precedes their names in messages."""
        set_by: dict[str, str] = {}
        for name, raw in foreign.items():
            typed = f"{where}{name}" + ("" if raw is True else f" {raw}")
            if hf_arguments.is_switch_off(name, raw):
                continue
            if hf_arguments.has_no_effect(name, raw, layer):
                self.ignored.append(typed)
            elif name in hf_arguments.REFUSED:
                self.faults.append(f"{typed}: {hf_arguments.REFUSED[name]}.")
            else:
                try:
                    at, value = hf_arguments.translate(name, raw)
                except InputError as error:
                    self.faults += [f"{where}{fault}" for fault in error.faults]
                    continue
                # By warmup steps of 0 transformers 4 mean the ratio.
                is_unset = name == "warmup_ratio" and str(layer.get(at)) in ("0", "0.0")
                if at not in layer or is_unset:
                    layer[at], set_by[at] = value, typed
                elif layer[at] != value:
                    flag = shown_name(FIELDS[at][1])
                    other = f"{set_by[at]} means {flag}" if at in set_by else f"{flag} is"
                    self.faults.append(f"{typed} means {flag} {value}, and {other} {layer[at]}; give one of them.")

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
            newest = ", ".join(newest_runs())
            self.faults.append(
                "--resume without --data must name the folder of a run, e.g. --resume runs/my-1. Got nothing "
                f"instead{f'; the newest are {newest}' if newest else ''}."
            )
        elif "data" not in self.values or (run_folder(expand_home(os.fspath(folder))) / FILE).is_file():
            self.add_run(os.fspath(folder), "--resume")

    def add_run(self, folder: str, flag: str) -> None:
        """Add the settings of an earlier run, whose folder a flag names."""
        with self.faults.collect():
            stored = stored_values(run_folder(expand_home(folder)), flag)
            if Launch.read().is_launched:  # the launcher has started the processes
                stored.pop("nproc", None)
            self.add(stored, "earlier run", str(run_folder(folder) / FILE))


def _join_values(name: str, raw: Any) -> Any:
    several = isinstance(raw, list | tuple) and FIELDS[name][1].metadata["several"]
    return ",".join(map(str, raw)) if several else raw


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
