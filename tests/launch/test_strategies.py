"""The registry of strategies: the flag offers what stands there, and each entry's file is there."""

from __future__ import annotations

import importlib.util
import typing

from classify.config.fields import choices
from classify.config.schema import TrainingConfig
from classify.launch.strategies import STRATEGIES


def test_the_flag_offers_the_registry() -> None:
    hint = typing.get_type_hints(TrainingConfig, localns={"torch": None, "World": None, "ParallelMode": None})
    assert choices(hint["strategy"]) == ("auto", *STRATEGIES)


def test_each_entry_names_a_file() -> None:
    for spec in STRATEGIES.values():
        module, _, name = spec.implementation.partition(":")
        found = importlib.util.find_spec(f"classify.training.strategies.{module}")
        assert found is not None
        assert found.origin is not None
        with open(found.origin, encoding="utf-8") as file:
            assert f"class {name}" in file.read()
