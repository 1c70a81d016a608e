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
from classify.modeling.classifier import Classifier

Rows = npt.NDArray[np.int64]


def compute_logits(classifier: Classifier, tokens: Tokens, rows: Rows, world: World) -> npt.NDArray[np.float32]:
    """Return logits (len(rows), classes) of the given rows, in their order, the same array on every rank.

    A collective: all ranks call it with the same rows.
    """
    return _compute(classifier, tokens, rows, world, features=False)


def compute_features(classifier: Classifier, tokens: Tokens, rows: Rows, world: World) -> npt.NDArray[np.float32]:
    """Return the output layer's inputs (len(rows), width), in order, the same on every rank. A collective."""
    return _compute(classifier, tokens, rows, world, features=True)


@torch.no_grad()
def _compute(
    classifier: Classifier, tokens: Tokens, rows: Rows, world: World, *, features: bool
) -> npt.NDArray[np.float32]:
    """Compute this rank's batches in evaluation mode, and put those of all ranks back into order."""
    lengths = tokens.lengths[rows]
    batches = sampler.batch_by_tokens(lengths, world.accelerator.eval_tokens, padded=not classifier.packed)
    costs = sampler.token_cost(lengths, classifier.hidden_size)
    layer = classifier.output_layer
    width = layer.in_features if features else layer.out_features
    own_places: list[Rows] = []
    outputs: list[torch.Tensor] = []
    training = classifier.training
    classifier.eval()
    try:
        own = sampler.shard_batches(batches, costs, world.rank, world.world_size)
        idle = world.all_reduce_max(len(own)) - len(own) if sharding.is_sharded(classifier) else 0
        for batch in own:
            for places, output in _compute_in_memory(classifier, tokens, rows, batch, world, features):
                own_places.append(places)
                # A device that records operations would make one program of all batches.
                outputs.append((output.cpu() if world.accelerator.lazy_execution else output)[: len(places)].float())
        for _ in range(idle):  # for the ranks that still compute, not for its result
            classifier(classifier.batch(tokens, rows[:1]).to(world.device), features=features)
    finally:
        classifier.train(training)
    return _gather(own_places, outputs, len(rows), width, world)


def _compute_in_memory(
    classifier: Classifier, tokens: Tokens, rows: Rows, places: Rows, world: World, features: bool
) -> Iterator[tuple[Rows, torch.Tensor]]:
    """Yield (places within `rows`, output) of one batch, or of its halves where memory runs out."""
    # The ranks of a sharded model count on each other's passes.
    last = len(places) == 1 or sharding.is_sharded(classifier)
    output, _ = attempt(
        lambda: classifier(classifier.batch(tokens, rows[places]).to(world.device), features=features),
        world.device,
        last=last,
    )
    if output is not None:
        yield places, output
        return
    for half in np.array_split(places, 2):
        yield from _compute_in_memory(classifier, tokens, rows, half, world, features)


def _gather(
    places: list[Rows], outputs: list[torch.Tensor], count: int, width: int, world: World
) -> npt.NDArray[np.float32]:
    """Put the outputs of all ranks into order."""
    own_outputs = torch.cat(outputs) if outputs else torch.zeros((0, width), device=world.device)
    own_places = torch.from_numpy(np.concatenate(places) if places else np.empty(0, np.int64)).to(world.device)
    all_places = world.gather(own_places).cpu().numpy()
    all_outputs = world.gather(own_outputs).cpu().numpy()
    assert len(all_places) == count, "each row is computed by exactly one rank"
    result = np.empty((count, width), dtype=np.float32)
    result[all_places] = all_outputs
    return result
