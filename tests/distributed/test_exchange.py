"""Gradients averaged in shared memory: the mean over ranks, the same bits on each, and gloo where it cannot be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.processes import run_group

pytestmark = pytest.mark.distributed

RANKS = 3


WAYS = {"all": "shared memory", "blind": "gloo", "little": "gloo", "none": "gloo"}
needs_memory = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memory without a name")


@pytest.fixture(scope="module", params=[pytest.param("all", marks=needs_memory), "blind", "little", "none"])
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Any]]:
    """What each of three ranks has stored."""
    import torch

    folder = tmp_path_factory.mktemp("exchange")
    run_group(RANKS, ["-m", "tests.distributed.exchange_worker", str(folder), request.param], cwd=folder)
    return request.param, [torch.load(folder / f"{request.param}-{rank}.pt") for rank in range(RANKS)]


def test_all_use_it_or_none_does(stored: tuple[str, list[Any]]) -> None:
    way, ranks = stored
    assert [rank["exchange"] for rank in ranks] == [WAYS[way]] * RANKS


def test_gradients_are_the_mean_of_all_ranks(stored: tuple[str, list[Any]]) -> None:
    import torch

    _, ranks = stored
    for step in range(len(ranks[0]["steps"])):
        for name, mean in ranks[0]["steps"][step][1].items():
            own = torch.stack([rank["steps"][step][0][name].double() for rank in ranks])
            limit = 2e-2 if mean.dtype == torch.bfloat16 else 1e-6
            torch.testing.assert_close(mean.double(), own.mean(0), rtol=limit, atol=limit)


def test_all_ranks_hold_the_same_bits(stored: tuple[str, list[Any]]) -> None:
    import torch

    _, ranks = stored
    for rank in ranks[1:]:
        for (_, means), (_, others) in zip(ranks[0]["steps"], rank["steps"], strict=True):
            assert all(torch.equal(means[name], others[name]) for name in means)


@pytest.fixture
def number() -> Iterator[int]:
    """Memory without a name, open under this number: 8 bytes and a token of 16."""
    number = os.memfd_create("classify-gradients")
    os.write(number, bytes(8) + b"a" * 16)
    yield number
    os.close(number)


@needs_memory
def test_memory_is_one_for_all(number: int) -> None:
    from classify.exchange import _found

    memory = _found(f"/proc/{os.getpid()}/fd/{number}", b"a" * 16, 8, 0, 8)
    assert memory is not None
    memory[3] = 7
    assert os.pread(number, 8, 0)[3] == 7


@needs_memory
@pytest.mark.parametrize(("token", "size"), [(b"b" * 16, 8), (b"a" * 16, 9)], ids=["token", "size"])
def test_memory_of_another_run_is_left_alone(number: int, token: bytes, size: int) -> None:
    from classify.exchange import _found

    assert _found(f"/proc/{os.getpid()}/fd/{number}", token, size, 0, size) is None


def test_a_file_of_somebody_else_is_not_taken_for_it(tmp_path: Path) -> None:
    from classify.exchange import _found

    path = tmp_path / "file"
    path.write_bytes(bytes(8) + b"a" * 16)
    with path.open("rb+") as file:
        place = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        assert _found(place, b"a" * 16, 8, 0, 8) is None
    assert _found(place, b"a" * 16, 8, 0, 8) is None, "nothing is open there any more"
