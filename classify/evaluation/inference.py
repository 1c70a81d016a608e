"""Evaluation passes: every row once, in the file's order, on any number of processes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from classify.data import sampler
from classify.data.tokenize import Tokens
from classify.distributed import sharding
from classify.distributed.memory import attempt
from classify.distributed.world import World
from classify.modeling.classifier import LoadedModel, output_layer

Rows = npt.NDArray[np.int64]


def logits_of(model: LoadedModel, tokens: Tokens, rows: Rows, world: World) -> npt.NDArray[np.float32]:
    """Logits (len(rows), classes) of the given rows, in their order, the same array on every rank.

    A collective: all ranks call it with the same rows.
    """
    classes = int(model.stock.config.num_labels)
    return _gathered(_forward(model, tokens, rows, world), len(rows), classes, world)


def features_of(model: LoadedModel, tokens: Tokens, rows: Rows, world: World) -> npt.NDArray[np.float32]:
    """What the output layer sees of each row: (len(rows), width), in order, the same on every rank. A collective."""
    layer = output_layer(model.stock)
    caught: list[torch.Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, args: caught.__setitem__(slice(None), [args[0]]))

    def passes() -> Iterator[tuple[Rows, torch.Tensor]]:
        for batch, _ in _forward(model, tokens, rows, world):
            yield batch, caught.pop()

    try:
        return _gathered(passes(), len(rows), layer.in_features, world)
    finally:
        hook.remove()


@torch.no_grad()
def _forward(model: LoadedModel, tokens: Tokens, rows: Rows, world: World) -> Iterator[tuple[Rows, torch.Tensor]]:
    """This rank's share: (places within `rows`, logits) of one batch after the other, in evaluation mode."""
    lengths = tokens.lengths[rows]
    batches = sampler.batch_by_tokens(lengths, world.accelerator.eval_tokens, padded=not model.packed)
    costs = sampler.token_cost(lengths, model.hidden_size)
    training = model.classifier.training
    model.classifier.eval()
    try:
        own = sampler.shard_batches(batches, costs, world.rank, world.world_size)
        idle = world.all_reduce_max(len(own)) - len(own) if sharding.is_sharded(model.classifier) else 0
        for places in own:
            yield from _where_it_fits(model, tokens, rows, places, world)
        for _ in range(idle):  # for the ranks that still compute, not for its result
            model.classifier(model.batch(tokens, rows[:1]).to(world.device))
    finally:
        model.classifier.train(training)


def _where_it_fits(
    model: LoadedModel, tokens: Tokens, rows: Rows, places: Rows, world: World
) -> Iterator[tuple[Rows, torch.Tensor]]:
    """One batch, or its halves and their halves where memory runs out."""
    # The ranks of a sharded model count on each other's passes.
    whole = len(places) == 1 or sharding.is_sharded(model.classifier)
    logits, _ = attempt(
        lambda: model.classifier(model.batch(tokens, rows[places]).to(world.device)), world.device, last=whole
    )
    if logits is not None:
        yield places, logits
        return
    for half in np.array_split(places, 2):
        yield from _where_it_fits(model, tokens, rows, half, world)


def _gathered(
    passes: Iterator[tuple[Rows, torch.Tensor]], count: int, width: int, world: World
) -> npt.NDArray[np.float32]:
    """Put the batches of all ranks back into order."""
    places: list[Rows] = []
    values: list[torch.Tensor] = []
    with torch.no_grad():
        for batch_places, batch_values in passes:
            places.append(batch_places)
            if world.accelerator.lazy_execution:  # or all batches would be one program
                batch_values = batch_values.cpu()
            values.append(batch_values[: len(batch_places)].float())
    own_values = torch.cat(values) if values else torch.zeros((0, width), device=world.device)
    own_places = torch.from_numpy(np.concatenate(places) if places else np.empty(0, np.int64)).to(world.device)
    all_places = world.gather(own_places).cpu().numpy()
    all_values = world.gather(own_values).cpu().numpy()
    assert len(all_places) == count, "each row is computed by exactly one rank"
    result = np.empty((count, width), dtype=np.float32)
    result[all_places] = all_values
    return result
