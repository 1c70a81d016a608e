"""Hash texts so that duplicates, up to case, spaces and Unicode form, share a number."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

TextHashes = npt.NDArray[np.uint64]
_BYTES = 8


def normalize_text(text: str) -> str:
    """Normalize case, whitespace and Unicode form.

    NFC, since it changes hardly any text: the hashes in `split.parquet` of earlier runs stay valid. NFKC would change
    all texts with the full-width punctuation of Chinese and Japanese, and make one label of `m2` and `m²`.
    """
    composed = text if text.isascii() else unicodedata.normalize("NFC", text)
    return " ".join(composed.split()).casefold()


def text_hashes(texts: Iterable[str]) -> TextHashes:
    """(texts,) hashes, equal for duplicates: the first eight bytes of a SHA-256."""
    digests = (
        hashlib.sha256(normalize_text(text).encode("utf-8", "surrogatepass")).digest()[:_BYTES] for text in texts
    )
    return np.frombuffer(b"".join(digests), dtype=">u8").astype(np.uint64)


# The hash of empty or blank texts.
EMPTY = text_hashes([""])[0]


def group_duplicates(numbers: TextHashes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(groups,) the first row of each group of duplicates, ascending, and (rows,) the group of each row."""
    _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return first[order], place[inverse]


def join_pairs(ones: npt.NDArray[np.int64], others: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """(count,) a group number each, shared by those that are a pair, directly or through others."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(ones), dtype=np.int8), (ones, others)), shape=(count, count))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


def find_overlap(hashes: TextHashes, *others: TextHashes) -> list[list[int]]:
    """For each of `others` the indices of its texts that also occur in `hashes`."""
    return [np.flatnonzero(np.isin(candidates, hashes)).tolist() for candidates in others]
