"""The words a run can meet: an embedding table of just those rows.

After tokenising it is known which tokens occur. The others' embeddings can receive no gradient, so they leave the
model, the optimizer, the clipping, the exchange between ranks and the checkpoints, and come back, bit for bit, when
the model is saved. With the default model that is half of all parameters, with XLM-RoBERTa two thirds.

Stock AdamW would shrink the embeddings of tokens that never occur by its weight decay in each step. Here they keep
their values, whether the table is made compact or not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from classify.data.tokenize import Tokens
from classify.modeling.classifier import LoadedModel

# Below this share of rows saved a compact table is not worth another indirection.
_WORTH = 0.1
_BLOCK = 1 << 22


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Which token ids occur: `used` (n,) ascending. Row i of the compact table is row used[i] of the full one.

    `name` is the table's key in the state dict, `full` (V, H) its values before training.
    """

    used: npt.NDArray[np.int64]
    name: str
    full: torch.Tensor
    compacted: bool

    def expand(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Weights with the full table: trained rows where tokens occur, the values before training elsewhere."""
        place = torch.from_numpy(self.used)
        trained = weights[self.name] if self.compacted else weights[self.name][place]
        table = self.full.clone()
        table[place] = trained.to(table.dtype)
        return {**weights, self.name: table}

    def without_table(self) -> Vocabulary:
        """The same for processes that write nothing: the values before training can be large."""
        return dataclasses.replace(self, full=self.full.new_empty(0))

    def as_tensor(self) -> torch.Tensor:
        """The id map, for checkpoints."""
        return torch.from_numpy(self.used)


def make_compact(
    model: LoadedModel, tables: Mapping[str, Tokens], special_ids: Iterable[int], *, wish: bool = True
) -> tuple[Vocabulary | None, dict[str, Tokens]]:
    """Cut a model's word embeddings to the tokens of all `tables`; returns what was cut, and tables with new ids.

    `special_ids` are kept as well. Without the `wish`, or where little would be saved, the table stays whole. None
    where the model has no plain table of its own, and nothing is changed.
    """
    stock = model.stock
    table = stock.get_input_embeddings()
    names = [name for name, p in stock.named_parameters(remove_duplicate=False) if p is getattr(table, "weight", None)]
    if type(table) is not nn.Embedding or len(names) != 1 or table.max_norm is not None:
        return None, dict(tables)
    kept = [*special_ids, model.pad_token_id, *_kept_for_positions(model)]
    used = _used_ids(table.num_embeddings, tables.values(), kept)
    compacted = wish and len(used) <= (1 - _WORTH) * table.num_embeddings
    vocabulary = Vocabulary(used, names[0], table.weight.detach().cpu().clone(), compacted)
    if not compacted:
        return vocabulary, dict(tables)
    renumber = np.full(table.num_embeddings, -1, dtype=np.int32)
    renumber[used] = np.arange(len(used), dtype=np.int32)
    stock.set_input_embeddings(_cut(table, used, renumber))
    model.pad_token_id = int(renumber[model.pad_token_id])
    return vocabulary, {path: dataclasses.replace(one, renumber=renumber) for path, one in tables.items()}


def _used_ids(count: int, tables: Iterable[Tokens], kept: Iterable[int]) -> npt.NDArray[np.int64]:
    seen = np.zeros(count, dtype=bool)
    for tokens in tables:
        for start in range(0, len(tokens.ids), _BLOCK):
            seen[tokens.ids[start : start + _BLOCK]] = True
        seen[[*tokens.prefix, *tokens.suffix]] = True
    seen[[number for number in kept if 0 <= number < count]] = True
    return np.flatnonzero(seen)


def _kept_for_positions(model: LoadedModel) -> range:
    """RoBERTa and its kin tell padding by its id when they count positions: it must keep its place."""
    return range(model.pad_token_id + 1 if model.first_position else 0)


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
