"""constraints.txt names the version of everything that gets installed: its lines alone, without pip looking for what
they depend on, are a whole environment, as the one for XLA is made."""

from __future__ import annotations

from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.processes import ROOT

EXTRAS = {"tensorboard", "test", "lint"}


def required(distribution: str, extras: set[str], seen: set[str]) -> set[str]:
    """Canonical names of all that `distribution` leads to in this environment, through `extras`."""
    for line in metadata.requires(distribution) or []:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
            continue
        name = canonicalize_name(requirement.name)
        if name not in seen:
            seen.add(name)
            required(name, requirement.extras, seen)
    return seen


def test_every_dependency_has_its_version() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()[1:]
    pinned = {canonicalize_name(line.split("==")[0]) for line in lines}
    try:
        needed = required("classify-text", EXTRAS, set())
    except metadata.PackageNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed: `make .venv/installed-test .venv/installed-lint` installs all")
    assert len(needed) > 60
    assert needed - pinned == set()
