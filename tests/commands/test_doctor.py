"""classify doctor and classify completion."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
from typing import Any

import pytest

from classify.cli import main
from classify.commands import COMMANDS, doctor, load_command


@pytest.mark.slow
@pytest.mark.embedded
def test_doctor_trains_and_predicts(capsys: Any) -> None:
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["self-check"].startswith("trained on 40 rows")
    for name in ("versions", "system", "processor", "device", "memory", "disk", "cache", "models"):
        assert facts[name]
    assert "torch" in facts["versions"]


def test_a_failed_check_is_the_exit_code(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no disk left")

    monkeypatch.setattr("classify.training.run.train", fail)
    assert main(["doctor"]) == 1
    assert "failed: OSError: no disk left" in capsys.readouterr().out


def test_facts_are_listed_where_no_device_can_be_chosen(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    assert main(["doctor", "--no-self-check"]) == 1
    printed = capsys.readouterr().out
    assert "failed: RANK=0 is set but WORLD_SIZE is not" in printed
    assert re.search("variables +.*RANK=0", printed)


def test_the_self_check_can_be_left_out(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_self_check", lambda: pytest.fail("it ran"))
    assert main(["doctor", "--no-self-check"]) == 0
    assert "self-check" not in capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_names_every_command_and_flag(shell: str, capsys: Any) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for name in COMMANDS:
        assert name in script
        for action in load_command(name).make_parser(name)._actions:
            for flag in action.option_strings[-1:]:
                assert action.help == argparse.SUPPRESS or flag.removeprefix("--") in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=30)


def test_bash_completes(capsys: Any) -> None:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    typed = 'COMP_WORDS=(classify predict --top); COMP_CWORD=2; _shtab_classify; echo "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{typed}"], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split() == ["--top-k"]


def test_another_shell(capsys: Any) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "expected bash, zsh or fish. Got tcsh instead." in capsys.readouterr().err
