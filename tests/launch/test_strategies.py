"""The registries of strategies and backends: the flags offer what stands there, and each strategy's file is there."""

from __future__ import annotations

import importlib.util
import typing

from classify.config.fields import choices
from classify.config.schema import TrainingConfig
from classify.launch.backends import BACKENDS
from classify.launch.strategies import STRATEGIES

HINTS = typing.get_type_hints(TrainingConfig, localns={"torch": None, "World": None, "ParallelMode": None})


def test_the_flags_offer_the_registries() -> None:
    assert choices(HINTS["strategy"]) == ("auto", *STRATEGIES)
    assert set(choices(HINTS["ddp_backend"])) == set(BACKENDS)


def test_each_entry_names_a_file() -> None:
    for spec in STRATEGIES.values():
        module, _, name = spec.implementation.partition(":")
        result = importlib.util.find_spec(f"classify.training.strategies.{module}")
        assert result is not None
        assert result.origin is not None
        with open(result.origin, encoding="utf-8") as file:
            assert f"class {name}" in file.read()
