"""classify doctor."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from classify.cli import main


def test_doctor_names_versions_devices_and_models(capsys: Any) -> None:
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert all(facts[name] for name in ("versions", "system", "processor", "device", "models"))
    assert "torch" in facts["versions"]


def test_facts_are_listed_where_no_device_can_be_chosen(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "(RANK=0), but WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCAL_RANK are not set" in printed
    assert re.search("variables +.*RANK=0", printed)
