"""How a rank cuts its share of a step into micro-batches, and a micro-batch into one piece a device."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from classify.data import sampler
from classify.modeling.classifier import LoadedModel

Rows = npt.NDArray[np.int64]


def micro_batches(
    model: LoadedModel,
    lengths: Rows,
    rank: int,
    world_size: int,
    parts: int,
    replicas: int,
    tokens_at_once: int | None = None,
) -> list[list[Rows]]:
    """The micro-batches of one rank: each holds, for up to `replicas` devices, indices into the step's rows.

    Ranks share the step by token cost, largest first; a rank's share is cut again into `parts` micro-batches, or into
    as many as it takes to hold about `tokens_at_once`, padding too. Texts of like length share a padded one. With fewer
    rows than ranks, some ranks have none.
    """
    costs = sampler.token_cost(lengths, model.hidden_size)
    share = sampler.divide(costs, world_size)[rank]
    if not len(share):
        return []
    if model.packed:
        if tokens_at_once is not None:
            parts = max(parts, math.ceil(lengths[share].sum() / tokens_at_once))
        cuts = [share[part] for part in sampler.divide(costs[share], parts)]
        return [
            [cut[piece] for piece in sampler.divide(costs[cut], replicas) if len(piece)] for cut in cuts if len(cut)
        ]
    if model.few_shapes:
        sizes = np.array([model.padded_length(length) for length in lengths[share].tolist()])
        alike = [share[sizes == size] for size in np.unique(sizes)]
        return [[cut] for group in alike for cut in np.array_split(group, parts) if len(cut)]
    pieces = sampler.divide_by_length(lengths[share], parts)
    if tokens_at_once is not None:
        within = sampler.chunks(lengths[share], tokens_at_once, padded=True)
        pieces = max(pieces, within, key=len)
    cuts = [share[piece] for piece in pieces]
    return [[cut[piece] for piece in sampler.divide_by_length(lengths[cut], replicas)] for cut in cuts]
