"""Declare options: default, flags, valid values and the message for an invalid value.

The settings of a training and the options of every other command are fields of dataclasses that `option` makes. So
all commands convert a value in one way, and refuse a wrong one with the same words.
"""

from __future__ import annotations

import dataclasses
import math
import os
import typing
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Literal, TypeVar

from classify.errors import InputError

Options = TypeVar("Options")
# What another value of an option would change.
Effect = Literal[
    "epochs",  # nothing without epochs: `notes_without_effect` says so
    "steps",  # nothing without epochs and contrastive steps; then a resumed run may not change it either
    "start",  # what comes before the first checkpoint: `require_same_run` refuses a change
    "start without epochs",  # the same, of a run that trains no epochs
    "identity",  # which run it is: a change is refused, too
    "later steps",  # what is learned from here on: a resumed run may change it, and prints that; folds train again
    "computation",  # how a step is computed, but not its gradient: printed, too
    "result",  # what is done with trained weights: printed, too
]

_SWITCH = {"true": True, "yes": True, "false": False, "no": False}
# transformers reads these as a switch, too; where a name is expected, they are names.
_SHORT_SWITCH = {"t": True, "y": True, "1": True, "f": False, "n": False, "0": False}
# A message repeats a value that is no text up to this many characters.
_LONGEST = 80
_EXPECTED = {int: "a whole number", float: "a number", bool: "true or false", str: "a name"}


@dataclasses.dataclass(frozen=True)
class Check:
    """A condition on a value, and the words for it that follow "must be a number" or "must be a name"."""

    description: str
    holds: Callable[[Any], object]


def above(low: float) -> Check:
    return Check(f"above {low}", lambda x: x > low)


def at_least(low: float) -> Check:
    return Check(f"of at least {low}", lambda x: x >= low)


def between(low: float, high: float, *, include_high: bool = False) -> Check:
    """Accept values from `low` to `high`, exclusive unless `include_high`."""
    if include_high:
        return Check(f"from {low} to {high}", lambda x: low <= x <= high)
    return Check(f"from {low} to below {high}", lambda x: low <= x < high)


def option(
    default: Any,
    help: str,
    *flags: str,
    check: Check | None = None,
    affects: Collection[Effect] = (),
    switch: tuple[str, str] | None = None,
    metavar: str = "NAME",
    several: bool = False,
    common: bool = False,
    restored: bool = True,
    is_path: bool = False,
) -> Any:
    """Declare a dataclass field that is an option of the program.

    `flags` are its names on the command line (default: that of the field); the help shows the first. `affects` says
    what another value would change; see `Effect`. `switch` holds the values for true and false: YAML reads `off` as
    false, a flag without a value is true. `metavar` names the value in the help. `several` values, of one flag or of a
    flag that is given again, are joined by commas. Only `common` options are in the short help. An option that is not
    `restored` belongs to one command, so --resume does not take it from the earlier run. What `is_path` is resolved
    against the folder of that run.
    """
    metadata = {
        "help": help, "flags": flags, "check": check, "affects": frozenset(affects), "switch": switch,
        "metavar": metavar, "several": several, "common": common, "restored": restored, "is_path": is_path,
    }  # fmt: skip
    return dataclasses.field(default=default, metadata=metadata)


def flags_of(spec: dataclasses.Field[Any]) -> tuple[str, ...]:
    return spec.metadata["flags"] or (f"--{spec.name.replace('_', '-')}",)


def shown_name(spec: dataclasses.Field[Any]) -> str:
    return flags_of(spec)[0]


def choices(hint: Any) -> tuple[str, ...]:
    kinds = [kind for kind in _kinds(hint) if kind is not type(None)]
    return typing.get_args(kinds[0]) if typing.get_origin(kinds[0]) is Literal and len(kinds) == 1 else ()


def convert(spec: dataclasses.Field[Any], hint: Any, raw: Any, name: str) -> Any:
    """Convert `raw` (from the command line, YAML or Python) to the type `hint`. Raises InputError."""
    kinds = _kinds(hint)
    if raw is None and type(None) in kinds:
        return None
    if spec.metadata["switch"] and (on := as_switch(raw)) is not None:
        raw = spec.metadata["switch"][0 if on else 1]
    return parse(raw, kinds, name, spec.metadata["check"])


def parse(raw: Any, kinds: tuple[Any, ...], name: str, check: Check | None = None) -> Any:
    """Convert `raw` to the first of the types `kinds` that fits. Raises InputError, which calls the value `name`."""
    expected = []
    for kind in kinds:
        words = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
        if words and isinstance(raw, str) and raw in words:
            return raw
        value = None if words else _as_kind(kind, raw, or_name=str in kinds)
        if value is not None and (check is None or check.holds(value)):
            return value
        if words:
            expected.append(("one of " if len(words) > 1 else "") + ", ".join(words))
        elif kind in _EXPECTED:
            expected.append(f"{_EXPECTED[kind]} {check.description}" if check else _EXPECTED[kind])
    raise InputError(f"{name} must be {', or '.join(expected)}. Got {describe(raw)} instead.")


def describe(value: Any) -> str:
    text = repr(value)
    short = len(text) <= _LONGEST and "\n" not in text
    return text if short or isinstance(value, str) else f"a {type(value).__name__}"


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The members of a union: int and NoneType for `int | None`."""
    return (hint,) if typing.get_origin(hint) is Literal else (typing.get_args(hint) or (hint,))


def _as_kind(kind: Any, raw: Any, *, or_name: bool) -> Any:
    """Read `raw` as a bool, name or finite number, or None if it is none; "1e3" and 2.0 are whole numbers too."""
    if kind is bool:
        return as_switch(raw, or_name=or_name)
    if isinstance(raw, bool) or kind not in (str, int, float):
        return None
    if kind is str:
        return expand_home(str(raw)) if isinstance(raw, str | int | float | Path) and raw != "" else None
    try:
        number = float(raw)
    except (TypeError, ValueError, OverflowError):
        return None
    if not math.isfinite(number) or (kind is int and not number.is_integer()):
        return None
    return kind(number)


def as_switch(raw: Any, *, or_name: bool = False) -> bool | None:
    """Read `raw` as a boolean, or None if it is neither; with `or_name`, "t", "y", "1", ... are names."""
    if isinstance(raw, str):
        return _SWITCH.get(raw.lower(), None if or_name else _SHORT_SWITCH.get(raw.lower()))
    if type(raw) is int and raw in (0, 1) and not or_name:
        return bool(raw)
    return raw if isinstance(raw, bool) else None


def expand_home(text: str) -> str:
    """Replace ~ by the home folder, since a shell leaves it in --data=~/my.csv; other texts stay as they are."""
    return os.path.expanduser(text) if text.startswith("~/") else text
