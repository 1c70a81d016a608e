"""Find near-duplicates: texts that were edited, forwarded, or filled from one template."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from classify.data.text_hashes import join_pairs, normalize_text

# Characters of a shingle, numbers of a signature, and the share of shingles in common from which on texts are nearly
# the same: those that the study of near-duplicates in language models' data uses (Lee et al. 2022, appendix A), but
# for shingles of characters, which short texts and scripts without spaces have enough of.
_CHARACTERS, _NUMBERS, _COMMON = 5, 128, 0.8


def group_near_duplicates(texts: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return (texts,) a group number per text, shared by near-duplicates, directly or through others.

    Uses MinHash and locality-sensitive hashing, so a pair near the threshold may be missed.
    """
    from datasketch import MinHash, MinHashLSH

    if not texts:
        return np.empty(0, dtype=np.int64)
    index = MinHashLSH(threshold=_COMMON, num_perm=_NUMBERS)
    empty = MinHash(num_perm=_NUMBERS, seed=1, hashfunc=zlib.crc32)
    first: dict[str, int] = {}
    signatures: dict[int, MinHash] = {}
    pairs: list[tuple[int, int]] = []
    for number, text in enumerate(texts):
        key = normalize_text(text)
        copied = first.setdefault(key, number)
        pairs.append((number, copied))
        if copied == number:
            signatures[number] = signature = empty.copy()
            signature.update_batch([shingle.encode("utf-8", "surrogatepass") for shingle in _shingles(key)])
            alike = [row for row in index.query(signature) if signature.jaccard(signatures[row]) >= _COMMON]
            pairs += [(number, row) for row in alike]
            index.insert(number, signature)
    ones, others = np.array(pairs).T
    return join_pairs(ones, others, len(texts))


def _shingles(text: str) -> set[str]:
    return {text[start : start + _CHARACTERS] for start in range(max(1, len(text) - _CHARACTERS + 1))}
