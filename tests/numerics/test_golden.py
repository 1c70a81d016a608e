"""Golden losses: exact where torch and the CPU's instruction set are the recorded ones, within 1e-5 elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.numerics import golden


def test_losses_are_the_recorded_ones(tmp_path: Path) -> None:
    record = json.loads(golden.RECORD.read_text())
    got = golden.losses(tmp_path)
    assert len(got) == golden.STEPS
    if {key: record[key] for key in golden.circumstances()} == golden.circumstances():
        assert got == record["losses"]
    else:
        assert got == pytest.approx(record["losses"], rel=1e-5)
    assert got[-1] < got[0]
