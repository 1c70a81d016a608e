"""Check whether a model can read the texts: the share of tokens that it does not know."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from classify.data.splits import Split
from classify.data.tokenize import Segment, Tokens
from classify.errors import InputError

# Share of unknown tokens from which there is a note.
_NOTED = 0.05
# Share of unknown tokens from which the default model is refused.
_REFUSED = 0.5
# What SentencePiece puts before an unknown word.
_SPACE = "▁"
_MULTILINGUAL = "FacebookAI/xlm-roberta-base"


def compute_unknown_share(tokens: Tokens, rows: npt.NDArray[np.int64], tokenizer: Any) -> float:
    unknown, total = count_unknown(tokens, tokenizer)
    return int(unknown[rows].sum()) / max(1, int(total[rows].sum()))


def count_unknown(tokens: Tokens, tokenizer: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Count each row's tokens that the tokenizer does not know, and all of them.

    Special tokens do not count, nor does the space mark that SentencePiece puts before an unknown word.
    """
    unknown, space = tokenizer.unk_token_id, tokenizer.convert_tokens_to_ids(_SPACE)
    total = np.sum([segment.lengths() for segment in tokens.segments], axis=0)
    if unknown is None:
        return np.zeros_like(total), total
    if space not in (None, unknown):  # other tokenizers do not know the mark
        total = total - sum(_count(segment, space) for segment in tokens.segments)
    return np.sum([_count(segment, unknown) for segment in tokens.segments], axis=0), total


def _count(segment: Segment, token: int) -> npt.NDArray[np.int64]:
    rows = np.searchsorted(segment.offsets, np.flatnonzero(segment.ids == token), side="right") - 1
    return np.bincount(rows, minlength=len(segment))


def check_coverage(
    train: Split, text_column: str, tokens: Tokens, tokenizer: Any, model: str, *, named: bool
) -> str | None:
    """A note where the model does not know many of the training tokens; None where it does.

    Raises InputError where it does not know most of them, unless the user `named` it.
    """
    share = compute_unknown_share(tokens, train.rows, tokenizer)
    if share <= _NOTED:
        return None
    line = f"{100 * share:.0f} % of the tokens of the training texts are unknown to {model}"
    take = f"one for the language of the texts, or a multilingual one, such as {_MULTILINGUAL}"
    if share <= _REFUSED or named:
        return f"{line}; if the scores are poor, give another --model: {take}"
    raise InputError(
        f"{train.table.path}, column {text_column!r}: {line}. Give another --model: {take}. To train with it anyway, "
        f"give --model {model}."
    )


def note_unknown(tokens: Tokens, tokenizer: Any) -> str | None:
    """A note where the model does not know many tokens of the texts to predict; None where it does."""
    share = compute_unknown_share(tokens, np.arange(len(tokens)), tokenizer)
    return f"{100 * share:.0f} % of the tokens of the texts are unknown to the model" if share > _NOTED else None
