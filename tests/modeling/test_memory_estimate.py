"""Memory estimates and where pieces of a model go: arithmetic on plain numbers."""

from __future__ import annotations

import dataclasses
import json
import struct
from pathlib import Path

import pytest

from classify.modeling.hub import ModelFolder
from classify.modeling.memory_estimate import MIB, Piece, count_weights, spread, training_need

BERT_BASE = {"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12}


def pieces(count: int, needs: int = 16, frozen: int = 0) -> list[Piece]:
    """`count` pieces of 4 bytes, the first `frozen` of them not trained."""
    return [Piece(f"p{i}", 4 if i < frozen else needs, 4, i < frozen) for i in range(count)]


def test_weights_are_counted_by_the_headers_alone(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]},
        "b": {"dtype": "F32", "shape": [], "data_offsets": [48, 52]},
    }
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(52))
    counts = ModelFolder("m", tmp_path, "a local folder", {}).weight_counts
    assert counts == {"a": 12, "b": 1}
    assert count_weights(counts) == 13


def test_the_parts_and_their_sum() -> None:
    need = training_need(BERT_BASE, (110_000_000, 0), rows=32, length=128)
    assert need.total == need.weights + need.gradients + need.optimizer + need.activations
    assert f"about {need.total / MIB:,.0f} MiB per device" in need.describe()


def test_half_precision_and_masters() -> None:
    whole = training_need(BERT_BASE, (1000, 0), 1, 10)
    autocast = training_need(BERT_BASE, (1000, 0), 1, 10, half=True)
    assert (autocast.weights, autocast.optimizer) == (whole.weights, whole.optimizer)
    assert autocast.activations < whole.activations
    masters = training_need(BERT_BASE, (1000, 0), 1, 10, level="O2")
    assert masters.weights + masters.gradients + masters.optimizer == 20_000
    throughout = training_need(BERT_BASE, (1000, 0), 1, 10, level="O3")
    assert throughout.weights + throughout.gradients + throughout.optimizer == 8_000


def test_names_of_other_architectures() -> None:
    distil = {"dim": 768, "n_heads": 12, "n_layers": 12}
    assert training_need(distil, (5, 0), 2, 10) == training_need(BERT_BASE, (5, 0), 2, 10)


def test_what_is_cut_over_devices() -> None:
    need = training_need(BERT_BASE, (1000, 0), 4, 10)
    assert need.divide(2, "optimizer") == dataclasses.replace(need, optimizer=need.optimizer // 2)
    assert need.divide(2, "weights", "gradients", "optimizer", "activations").total == need.total // 2


def test_what_is_frozen_needs_its_weights_alone() -> None:
    whole = training_need(BERT_BASE, (1000, 0), 4, 10)
    half = training_need(BERT_BASE, (500, 500), 4, 10, frozen_layers=6)
    assert half.weights == whole.weights
    assert (2 * half.gradients, 2 * half.optimizer) == (whole.gradients, whole.optimizer)
    assert 2 * half.activations == whole.activations
    assert training_need(BERT_BASE, (1000, 0), 4, 10, checkpointing=True).activations == whole.activations // 16


@pytest.mark.parametrize("devices", [1, 2, 3, 4])
def test_pieces_are_spread_evenly_and_in_order(devices: int) -> None:
    result = spread(pieces(12), {f"d{i}": 1000 for i in range(devices)})
    assert result is not None
    placed, left = result
    assert not left
    assert list(placed.values()) == sorted(placed.values())
    assert [list(placed.values()).count(f"d{i}") for i in range(devices)] == [12 // devices] * devices


def test_a_small_device_gets_less() -> None:
    result = spread(pieces(6), {"small": 20, "large": 1000})
    assert result is not None
    assert list(result[0].values()) == ["small"] + ["large"] * 5
    result = spread(pieces(6), {"large": 1000, "small": 20})
    assert result is not None
    assert list(result[0].values()) == ["large"] * 5 + ["small"]


def test_frozen_pieces_are_left_out_where_need_be() -> None:
    """As few as need be, and the largest of them must fit beside the rest while it is computed."""
    assert spread(pieces(6, frozen=3), {"d": 100}) == ({f"p{i}": "d" for i in range(6)}, [])
    assert spread(pieces(6, frozen=3), {"d": 56}) == ({f"p{i}": "d" for i in range(2, 6)}, ["p0", "p1"])
    assert spread(pieces(6, frozen=3), {"d": 52}) == ({f"p{i}": "d" for i in range(3, 6)}, ["p0", "p1", "p2"])
    assert spread(pieces(6, frozen=3), {"d": 51}) is None


def test_trained_pieces_are_never_left_out() -> None:
    assert spread(pieces(3), {"d": 47}) is None
