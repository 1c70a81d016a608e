"""Cut texts that are longer than --max-length into the sequences of tokens that the model sees.

Prediction cuts texts as training did: the policy's name is kept in classify.json.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]

# Part of the first tokens in "head-tail": 128 of 510 (Sun et al., 2019).
_HEAD = 0.25
# Least share of a chunk that the next one repeats.
_OVERLAP = 0.125
# Chunks per text: 16 of 512 tokens are some 6,000 words.
MAX_CHUNKS = 16


@dataclass(frozen=True)
class Cuts:
    """Sequences of texts: of which text, `rows` (s,), and their spans: first token and length, both (s, spans)."""

    rows: Ids
    starts: Ids
    counts: Ids


class LongTextPolicy:
    """A policy, by its value of --long-texts; this one keeps the first tokens.

    A text longer than `room` tokens has sequences of `room` tokens.
    """

    name: ClassVar[str] = "truncate"

    def num_sequences(self, lengths: Ids, room: int) -> Ids:
        """(n,) the number of sequences of texts of that many tokens (n,); by default 1."""
        return np.ones(len(lengths), dtype=np.int64)

    def cut(self, lengths: Ids, room: int) -> Cuts:
        """The sequences, text by text."""
        rows = np.arange(len(lengths))
        return Cuts(rows, np.zeros((len(rows), 1), dtype=np.int64), np.minimum(lengths, room)[:, None])

    def describe(self, lengths: Ids, room: int) -> str:
        """Describe what happens to the texts, at least one, that are longer than `room`."""
        return "truncated"


class HeadTail(LongTextPolicy):
    """Keep first and last tokens (Sun et al., 2019, "How to Fine-Tune BERT for Text Classification?", 5.3.1)."""

    name = "head-tail"

    def cut(self, lengths: Ids, room: int) -> Cuts:
        """First and last tokens of each text; a text that fits has no tail."""
        head = np.where(lengths > room, int(_HEAD * room), lengths)
        tail = np.where(lengths > room, room - head, 0)
        counts = np.stack([head, tail], axis=1)
        return Cuts(np.arange(len(lengths)), np.stack([np.zeros_like(head), lengths - tail], axis=1), counts)

    def describe(self, lengths: Ids, room: int) -> str:
        return f"their first {int(_HEAD * room)} and last {room - int(_HEAD * room)} tokens are used"


class Chunks(LongTextPolicy):
    """Read overlapping chunks at equal distances, whose logits are averaged.

    The output layer is linear, so that is the output for the mean of the chunks' features.
    """

    name = "chunks"

    def num_sequences(self, lengths: Ids, room: int) -> Ids:
        overlap = int(_OVERLAP * room)
        needed = -(-(lengths - overlap) // max(1, room - overlap))
        return np.where(lengths > room, np.minimum(needed, MAX_CHUNKS), 1).astype(np.int64)

    def cut(self, lengths: Ids, room: int) -> Cuts:
        """The chunks of each text: the first starts with it, the last ends with it."""
        numbers = self.num_sequences(lengths, room)
        rows = np.repeat(np.arange(len(lengths)), numbers)
        place = np.arange(len(rows)) - np.repeat(np.cumsum(numbers) - numbers, numbers)
        starts = place * np.maximum(lengths - room, 0)[rows] // np.maximum(numbers - 1, 1)[rows]
        return Cuts(rows, starts[:, None], np.minimum(lengths, room)[rows][:, None])

    def describe(self, lengths: Ids, room: int) -> str:
        """The number of chunks, and how many texts have too many to be read whole."""
        numbers = self.num_sequences(lengths, room)
        gaps = int((lengths > MAX_CHUNKS * room).sum())
        partly = f", {gaps} with gaps between {MAX_CHUNKS} chunks" if gaps else ""
        return f"read in up to {numbers.max()} chunks{partly}"


TRUNCATE = LongTextPolicy()
POLICIES: dict[str, LongTextPolicy] = {policy.name: policy for policy in (TRUNCATE, HeadTail(), Chunks())}
