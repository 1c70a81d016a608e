"""What names of columns say. The names are data, in names.toml; what cells say is measured in `profile`."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import resources

from classify.tables.table import normalize_text

SPLITS = ("train", "eval", "test")
# Spaces and invisible characters around a name, as web pages and spreadsheets leave them.
_INVISIBLE = " \t\r\n\u00a0\u200b\ufeff"
_HEADER_ROLES = ("text", "title", "label", "group", "id", "split")


@cache
def _roles() -> dict[str, dict[str, str]]:
    return tomllib.loads(resources.files("classify.tables").joinpath("names.toml").read_text(encoding="utf-8"))


@cache
def names_of(role: str) -> frozenset[str]:
    return frozenset(name for names in _roles()[role].values() for name in names.split())


@cache
def pairs() -> tuple[tuple[str, str], ...]:
    both = _roles()["pairs"]
    return tuple(zip(both["first"].split(), both["second"].split(), strict=True))


def normalize_name(name: str) -> str:
    """A column's name in lower case, without spaces around it, with _ between its words; also of CamelCase."""
    apart = re.sub(r"(?<=[a-zß-ÿ])(?=[A-Z])", "_", name.strip(_INVISIBLE))
    return re.sub(r"[\s_\-\u200b\ufeff]+", "_", normalize_text(apart))


def is_named(name: str, role: str) -> bool:
    return normalize_name(name) in names_of(role)


def is_header_name(name: str) -> bool:
    return any(is_named(name, role) for role in _HEADER_ROLES)


def find_split(name: str) -> int | None:
    """The split that a name such as train, dev or oos_test means, as an index into `SPLITS`.

    None where it means none, or several, as `dev-test` does: validation in one data set, the test in another.
    """
    words = re.findall(r"[a-z]+|[^\W\d_]+", re.sub(r"h[oe]ld[ _-]out", "holdout", name.lower()))
    splits = {number for number, split in enumerate(SPLITS) if not names_of(split).isdisjoint(words)}
    return splits.pop() if len(splits) == 1 else None


def is_split_word(value: str) -> bool:
    """Whether a value is the name of a split, of two words at most, such as private_test."""
    return 0 < len(re.findall(r"[^\W_]+", value)) <= 2 and find_split(value) is not None
