"""What the model sees of texts that are longer than the maximum length."""

from __future__ import annotations

import numpy as np
import pytest

from classify.data.tokenize import MAX_CHUNKS, POLICIES, Segment, Template, Tokens

LENGTHS = [0, 1, 7, 8, 9, 15, 16, 40, 8 * MAX_CHUNKS - 20, 8 * MAX_CHUNKS, 500]
ROOM = 8


def make_tokens(policy: str) -> Tokens:
    """Texts whose ids count from 100 on."""
    offsets = np.concatenate([[0], np.cumsum(LENGTHS)])
    ids = np.concatenate([100 + np.arange(length) for length in LENGTHS]).astype(np.int32)
    return Tokens(Segment(ids, offsets), Template((1,), (2,)), ROOM + 2, long_texts=POLICIES[policy])


def sequences(tokens: Tokens, row: int) -> list[list[int]]:
    """The ids of a row's sequences, without special tokens."""
    collated = tokens.collate(np.array([row]))
    cuts = np.split(collated.ids, np.cumsum(collated.lengths)[:-1])
    assert all(cut[0] == 1 and cut[-1] == 2 and len(cut) <= tokens.max_length for cut in cuts)
    return [(cut[1:-1] - 100).tolist() for cut in cuts]


@pytest.mark.parametrize("policy", POLICIES)
def test_lengths_are_those_of_the_sequences(policy: str) -> None:
    tokens = make_tokens(policy)
    rows = np.array([3, 7, 0, 10, 7])
    collated = tokens.collate(rows)
    index = np.arange(len(rows)) if collated.rows is None else collated.rows
    assert np.bincount(index, weights=collated.lengths).tolist() == tokens.lengths(rows).tolist()
    assert tokens.lengths(rows).tolist() == tokens.lengths(rows).tolist()
    for row, length in enumerate(LENGTHS):
        if length <= ROOM:
            assert sequences(tokens, row) == [list(range(length))]


def test_truncate() -> None:
    assert sequences(make_tokens("truncate"), 7) == [list(range(8))]


def test_head_tail() -> None:
    tokens = make_tokens("head-tail")
    assert sequences(tokens, 7) == [[0, 1, 34, 35, 36, 37, 38, 39]]
    assert sequences(tokens, 4) == [[0, 1, 3, 4, 5, 6, 7, 8]]


def test_chunks_read_the_whole_text() -> None:
    tokens = make_tokens("chunks")
    for row, length in enumerate(LENGTHS):
        chunks = sequences(tokens, row)
        assert len(chunks) <= MAX_CHUNKS
        if length > ROOM:
            assert all(len(chunk) == ROOM for chunk in chunks)
            assert chunks[0][0] == 0
            assert chunks[-1][-1] == length - 1
        if length <= 8 * MAX_CHUNKS - 20:
            assert set().union(*chunks) == set(range(length)), "no token is left out"
