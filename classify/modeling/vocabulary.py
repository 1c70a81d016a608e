"""Compact the word embeddings to the tokens that occur in the data.

Embeddings of other tokens get no gradient. They are removed from model, optimizer, clipping, all-reduce and
checkpoints, and restored, bit for bit, when the model is saved. That is half of all parameters of the default model
and two thirds of XLM-RoBERTa's.

Stock AdamW would shrink unused embeddings by weight decay in each step. Here they keep their values, with a compact
table or a full one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from classify.data.tokenize import Tokens

# Least share of rows saved for which a compact table is worth the indirection.
_WORTH = 0.1
# Token ids that are looked at in one pass: as an index they take 8 bytes each.
_BLOCK = 1 << 22


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The token ids that occur: `used` (n,) ascending. Row i of a compact table is row used[i] of the full one.

    `name` is the table's key in the state dict, `full` (V, H) its values before training. `renumber` (V,) maps ids to
    rows of the compact table; None if the table is not compact.
    """

    used: npt.NDArray[np.int64]
    name: str
    full: Tensor
    renumber: npt.NDArray[np.int32] | None = None

    @property
    def compacted(self) -> bool:
        return self.renumber is not None

    def expand(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Put the full table into weights: trained rows for used tokens, initial values for the others."""
        place = torch.from_numpy(self.used)
        trained = weights[self.name] if self.compacted else weights[self.name][place]
        table = self.full.clone()
        table[place] = trained.to(table.dtype)
        return {**weights, self.name: table}


def make_vocabulary(
    model: Any, tables: Sequence[Tokens], kept_ids: Iterable[int], *, compact: bool = True
) -> Vocabulary | None:
    """Find the tokens of all `tables` and cut the word embeddings of a stock model to them and `kept_ids`.

    The table stays full if `compact` is False or little would be saved. Returns None, without changes, if the model has
    no plain, untied table.
    """
    table = model.get_input_embeddings()
    names = [name for name, p in model.named_parameters(remove_duplicate=False) if p is getattr(table, "weight", None)]
    if type(table) is not nn.Embedding or len(names) != 1 or table.max_norm is not None:
        return None
    is_used = np.zeros(table.num_embeddings, dtype=bool)
    for tokens in tables:
        for segment in tokens.segments:
            for start in range(0, len(segment.ids), _BLOCK):
                is_used[segment.ids[start : start + _BLOCK]] = True
        is_used[tokens.template.tokens] = True
    is_used[[number for number in kept_ids if 0 <= number < table.num_embeddings]] = True
    used = np.flatnonzero(is_used)
    full = table.weight.detach().cpu().clone()
    if not compact or len(used) > (1 - _WORTH) * table.num_embeddings:
        return Vocabulary(used, names[0], full)
    renumber = np.full(table.num_embeddings, -1, dtype=np.int32)
    renumber[used] = np.arange(len(used), dtype=np.int32)
    padding = -1 if table.padding_idx is None else int(renumber[table.padding_idx])
    small = nn.Embedding(len(used), table.embedding_dim, padding_idx=padding if padding >= 0 else None)
    rows = table.weight.detach()[torch.from_numpy(used).to(table.weight.device)]
    small.weight = nn.Parameter(rows, requires_grad=table.weight.requires_grad)
    model.set_input_embeddings(small)
    return Vocabulary(used, names[0], full, renumber)
