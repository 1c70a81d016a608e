"""classify doctor."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from classify.cli import main
from classify.commands import doctor


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
