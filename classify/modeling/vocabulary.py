"""An embedding table of the tokens that occur.

After tokenising it is known which tokens occur. The others' embeddings can receive no gradient, so they leave the
model, the optimizer, the clipping, the exchange between ranks and the checkpoints, and come back, bit for bit, when
the model is saved. With the default model that is half of all parameters, with XLM-RoBERTa two thirds.

Stock AdamW would shrink the embeddings of tokens that never occur by its weight decay in each step. Here they keep
their values, whether the table is compact or not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from classify.data.tokenize import Tokens

# Below this share of rows saved a compact table is not worth another indirection.
_WORTH = 0.1
_BLOCK = 1 << 22


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The token ids that occur: `used` (n,) ascending. Row i of a compact table is row used[i] of the full one.

    `name` is the table's key in the state dict, `full` (V, H) its values before training. `renumber` (V,) maps ids to
    rows of the compact table; None where the table stayed whole.
    """

    used: npt.NDArray[np.int64]
    name: str
    full: torch.Tensor
    renumber: npt.NDArray[np.int32] | None = None

    @property
    def compacted(self) -> bool:
        """Whether the model holds the compact table."""
        return self.renumber is not None

    def map_ids(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the rows of the model's table for token ids."""
        return ids if self.renumber is None else self.renumber[ids].astype(np.int64)

    def expand(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return weights with the full table: trained rows where tokens occur, the values before training elsewhere."""
        place = torch.from_numpy(self.used)
        trained = weights[self.name] if self.compacted else weights[self.name][place]
        table = self.full.clone()
        table[place] = trained.to(table.dtype)
        return {**weights, self.name: table}

    def without_table(self) -> Vocabulary:
        """Return the same without the values before training, which can be large, for processes that write nothing."""
        return dataclasses.replace(self, full=self.full.new_empty(0))

    def as_tensor(self) -> torch.Tensor:
        """Return the id map, for checkpoints."""
        return torch.from_numpy(self.used)


def make_vocabulary(
    model: Any, tables: Sequence[Tokens], kept_ids: Iterable[int], *, compact: bool = True
) -> Vocabulary | None:
    """Find the tokens of all `tables` and cut the word embeddings of a stock model to them.

    `kept_ids` are kept as well. With `compact` off, or where little would be saved, the table stays whole. None where
    the model has no plain table of its own; nothing is changed then.
    """
    table = model.get_input_embeddings()
    names = [name for name, p in model.named_parameters(remove_duplicate=False) if p is getattr(table, "weight", None)]
    if type(table) is not nn.Embedding or len(names) != 1 or table.max_norm is not None:
        return None
    used = _used_ids(table.num_embeddings, tables, kept_ids)
    full = table.weight.detach().cpu().clone()
    if not compact or len(used) > (1 - _WORTH) * table.num_embeddings:
        return Vocabulary(used, names[0], full)
    renumber = np.full(table.num_embeddings, -1, dtype=np.int32)
    renumber[used] = np.arange(len(used), dtype=np.int32)
    model.set_input_embeddings(_cut(table, used, renumber))
    return Vocabulary(used, names[0], full, renumber)


def _used_ids(count: int, tables: Iterable[Tokens], kept: Iterable[int]) -> npt.NDArray[np.int64]:
    seen = np.zeros(count, dtype=bool)
    for tokens in tables:
        for segment in tokens.segments:
            for start in range(0, len(segment.ids), _BLOCK):
                seen[segment.ids[start : start + _BLOCK]] = True
        seen[tokens.template.tokens] = True
    seen[[number for number in kept if 0 <= number < count]] = True
    return np.flatnonzero(seen)


def _cut(table: nn.Embedding, used: npt.NDArray[np.int64], renumber: npt.NDArray[np.int32]) -> nn.Embedding:
    padding: Any = table.padding_idx
    small = nn.Embedding(
        len(used),
        table.embedding_dim,
        padding_idx=int(renumber[padding]) if padding is not None and renumber[padding] >= 0 else None,
        dtype=table.weight.dtype,
        device=table.weight.device,
    )
    with torch.no_grad():
        small.weight.copy_(table.weight[torch.from_numpy(used).to(table.weight.device)])
    small.weight.requires_grad_(table.weight.requires_grad)
    return small
