"""Detect the languages of a table's texts, from a sample."""

from __future__ import annotations

import collections
import functools
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from classify.errors import SHOWN

# Texts looked at, and characters of each.
_SAMPLE = 1_000
_CHARACTERS = 500
# Fewer letters say little about the language: such texts are judged together.
_LETTERS = 40
_TOGETHER = 2_000
# Probability from which a language counts as detected.
_CERTAIN = 0.9
# Share of other languages, among texts of a detected one, from which a table is not English.
_OTHERS = 0.1
# Share of texts without a detected language from which the language of a table is unclear.
_UNCLEAR = 0.5
_LEAST = 0.005
# Share of the training texts below which a language counts as untrained.
_RARE = 0.02
# Not language: links, names of users, numbers, punctuation.
_NOISE = re.compile(r"https?://\S+|@\w+|[\d_]+|[^\w\s']")
ENGLISH = "en"
# Code of texts whose language is not certain.
UNKNOWN = "unclear"
# The identifier's ISO 639 code for texts without language, such as product codes.
_NO_LANGUAGE = "zxx"


@dataclass(frozen=True)
class Languages:
    """Share of the texts by language code, the largest first; `texts` is the number of texts that have letters."""

    shares: dict[str, float]
    texts: int

    @property
    def among_detected(self) -> dict[str, float]:
        detected = {code: share for code, share in self.shares.items() if code != UNKNOWN}
        return {code: share / sum(detected.values()) for code, share in detected.items()}

    @property
    def is_clear(self) -> bool:
        return self.texts > 0 and self.shares.get(UNKNOWN, 0.0) < _UNCLEAR

    @property
    def is_english(self) -> bool:
        return not self.among_detected or self.among_detected.get(ENGLISH, 0.0) >= 1 - _OTHERS

    def describe(self) -> str:
        shown = [f"{code} {100 * share:.0f} %" for code, share in self.shares.items() if share >= _LEAST]
        return ", ".join(shown[:SHOWN]) or "no words in the texts"


def is_english_code(code: str) -> bool:
    return code.lower().replace("_", "-").split("-")[0] == ENGLISH


def sample_rows(rows: npt.NDArray[np.int64], seed: int, most: int = _SAMPLE) -> npt.NDArray[np.int64]:
    """`most` of the rows, ascending; by default as many as a language is detected in."""
    return rows if len(rows) <= most else np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))


def detect_languages(texts: Iterable[str]) -> Languages:
    """Detect the language of each text; short ones in Latin script are judged together, as one text."""
    counts: collections.Counter[str] = collections.Counter()
    short: list[str] = []
    for text in texts:
        words = " ".join(_NOISE.sub(" ", text[:_CHARACTERS]).split())
        letters = [character for character in words if character.isalpha()]
        if not letters:
            continue
        latin = sum(unicodedata.name(letter, "").startswith("LATIN") for letter in letters)
        if 2 * latin < len(letters):  # certainly not English, whichever language of that script it is
            counts[_identify(words, least=0.0)] += 1
        elif len(letters) >= _LETTERS and (code := _identify(words)) != UNKNOWN:
            counts[code] += 1
        else:
            short.append(words)
    counts[_identify(" ".join(short)[:_TOGETHER])] += len(short)
    counts += collections.Counter()  # drops a count of 0
    total = counts.total()
    return Languages({code: count / total for code, count in counts.most_common()}, total)


def note_new_languages(texts: Iterable[str], trained: Mapping[str, float] | None) -> str | None:
    """A note where a tenth of the texts is in languages that hardly any training text was in, or None.

    `trained` are the shares in training; None, or unclear ones, say nothing.
    """
    if not trained or trained.get(UNKNOWN, 0.0) >= _UNCLEAR:
        return None
    shares = detect_languages(texts).shares
    new = {code: share for code, share in shares.items() if code != UNKNOWN and trained.get(code, 0.0) < _RARE}
    if sum(new.values()) < _OTHERS:
        return None
    listed = ", ".join(f"{code} {100 * share:.0f} %" for code, share in list(new.items())[:SHOWN])
    before = ", ".join(code for code, share in trained.items() if code != UNKNOWN and share >= _RARE)
    return f"texts in languages that the model was not trained on: {listed}; it was trained on {before}"


@functools.cache
def _identifier() -> Any:
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def _identify(words: str, least: float = _CERTAIN) -> str:
    code, probability = _identifier().classify(words)
    return str(code) if probability >= least and code != _NO_LANGUAGE else UNKNOWN
