"""The registries of strategies and backends: the flags offer what stands there."""

from __future__ import annotations

import typing

from classify.config.fields import choices
from classify.config.schema import TrainingConfig
from classify.launch.devices import BACKENDS, STRATEGIES

HINTS = typing.get_type_hints(TrainingConfig, localns={"torch": None, "World": None, "ParallelMode": None})


def test_the_flags_offer_the_registries() -> None:
    assert choices(HINTS["strategy"]) == ("auto", *STRATEGIES)
    assert set(choices(HINTS["ddp_backend"])) == set(BACKENDS)
