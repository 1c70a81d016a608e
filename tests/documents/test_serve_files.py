"""configs/serve/: what can be checked without Docker and without becoming a service."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from classify.commands import load_command
from tests.support.processes import ROOT

SERVE = ROOT / "configs" / "serve"
UNIT, DOCKERFILE = SERVE / "classify.service", SERVE / "Dockerfile"


def commands() -> list[list[str]]:
    start = re.search(r"^ExecStart=\S+ (.*)$", UNIT.read_text(), re.MULTILINE)
    cmd = re.search(r"^CMD (\[.*\])$", DOCKERFILE.read_text(), re.MULTILINE)
    assert start is not None
    assert cmd is not None
    return [shlex.split(start[1]), json.loads(cmd[1])[1:]]


@pytest.mark.parametrize("words", commands(), ids=["systemd", "Docker"])
def test_the_server_takes_these_flags(words: list[str]) -> None:
    name, *flags = words
    assert name == "serve"
    options, unknown = load_command(name).make_parser(f"classify {name}").parse_known_args(flags)
    assert not unknown
    assert options.model
    assert options.port == "8000"


def test_what_the_image_copies_is_here() -> None:
    for line in re.findall(r"^COPY (.*)$", DOCKERFILE.read_text(), re.MULTILINE):
        for source in line.split()[:-1]:
            assert source == "${MODEL}" or (ROOT / source).exists(), source


def test_the_unit_is_valid(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/classify/bin/classify", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False, timeout=60
    )
    assert UNIT.name not in done.stderr, done.stderr
