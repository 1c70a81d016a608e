"""The share of unknown tokens without torch."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from classify.config.parser import parse_training
from classify.config.run_config import RunConfig
from classify.config.schema import DEFAULT_MODEL, DataConfig, ModelConfig
from classify.data.tokenize import Segment, Template, Tokens
from classify.modeling import coverage


def tokens(rows: list[list[int]]) -> Tokens:
    offsets = np.cumsum([0, *map(len, rows)])
    return Tokens(Segment(np.array([i for row in rows for i in row], np.int32), offsets), Template((2,), (3,)), 64)


def test_the_share_is_that_of_the_rows_asked_for() -> None:
    some = tokens([[], [1, 1, 5], [], [7, 8], [1], []])
    tokenizer, spaced, knows_all = (
        SimpleNamespace(unk_token_id=unknown, convert_tokens_to_ids=lambda token, number=number: number)
        for unknown, number in ((1, 1), (1, 5), (None, None))
    )
    for rows, judge, share in [
        (range(6), tokenizer, 0.5),
        (range(6), spaced, 0.6),
        ([1, 3], tokenizer, 0.4),
        ([3, 5], tokenizer, 0.0),
        ([0, 5], tokenizer, 0.0),
        (range(6), knows_all, 0.0),
    ]:
        assert coverage.compute_unknown_share(some, np.array(rows), judge) == share


def test_whether_the_model_was_named_is_known() -> None:
    assert ModelConfig().model is None
    assert ModelConfig().name == DEFAULT_MODEL
    assert parse_training(["--data", "x"], "p").model.model is None
    assert parse_training(["--data", "x", "--model", DEFAULT_MODEL], "p").model.model == DEFAULT_MODEL
    # What a run used stands in run.json, named or not.
    assert RunConfig(DataConfig(data="x")).to_dict()["model"]["model"] == DEFAULT_MODEL
