"""Explain a prediction by occlusion: the words of the text are left out one by one (Zeiler and Fergus, 2014, 4.1)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# Parts of a text up to which each is left out; a longer one is divided into its sentences.
_MOST = 200
# Scripts without spaces between words, whose characters are left out one by one.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")
_SENTENCE = re.compile(r"[^\s.!?。！？][^.!?。！？\n]*[.!?。！？]*")


@dataclass(frozen=True)
class WordAttribution:
    """A word, or a sentence of a long text, and by how much it raises the logit: what it falls by without it."""

    word: str
    score: float


def explain(
    texts: Sequence[str], compute: Callable[[list[Sequence[str]]], npt.NDArray[np.float32]]
) -> list[WordAttribution]:
    """Attribute a logit to the words of a text, or of the two texts of a pair, in order.

    `compute` returns the logits (rows,) of texts, or pairs: first of the whole, then with each part left out.
    """
    parts = [(which, match.span()) for which, text in enumerate(texts) for match in _WORD.finditer(text)]
    if len(parts) > _MOST:
        parts = [(which, span) for which, text in enumerate(texts) for span in _group_sentences(text)]
    if not parts:
        return []
    rows: list[Sequence[str]] = [texts]
    for which, (start, end) in parts:
        rows.append([text[:start] + text[end:] if which == place else text for place, text in enumerate(texts)])
    logits = compute(rows)
    words = (texts[which][start:end].strip() for which, (start, end) in parts)
    return [WordAttribution(word, score) for word, score in zip(words, (logits[0] - logits[1:]).tolist(), strict=True)]


def _group_sentences(text: str) -> list[tuple[int, int]]:
    """The spans of a text's sentences; where there are more than `_MOST`, neighbours are joined."""
    spans = [match.span() for match in _SENTENCE.finditer(text)]
    size = math.ceil(len(spans) / _MOST)
    return [(spans[first][0], spans[min(first + size, len(spans)) - 1][1]) for first in range(0, len(spans), size or 1)]


def strongest(words: Sequence[WordAttribution], most: int) -> list[WordAttribution]:
    """The words that change the logit most, in either direction, the first one most."""
    return sorted(words, key=lambda word: -abs(word.score))[:most]
