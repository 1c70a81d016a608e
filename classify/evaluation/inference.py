"""Evaluation passes over sharded rows; results are in file order on every rank."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from classify.console import progress_bar
from classify.data import sampler
from classify.data.sampler import Rows
from classify.data.tokenize import Tokens
from classify.distributed import sharding
from classify.distributed.memory import attempt
from classify.distributed.world import World
from classify.modeling.classifier import Classifier


@torch.no_grad()
def compute_logits(
    classifier: Classifier, tokens: Tokens, rows: Rows, world: World, *, features: bool = False
) -> npt.NDArray[np.float32]:
    """Logits (len(rows), outputs) of `rows`, or `features`: the output layer's inputs (len(rows), width).

    They are in the order of `rows`, the same array on every rank. A collective: all ranks call it with the same rows.
    """
    lengths = tokens.lengths(rows)
    batches = sampler.batch_by_tokens(lengths, world.accelerator.eval_tokens, padded=not classifier.packed)
    costs = sampler.token_cost(lengths, classifier.hidden_size)
    layer = classifier.output_layer
    width = layer.in_features if features else layer.out_features
    local_places: list[Rows] = []
    outputs: list[torch.Tensor] = []
    training = classifier.training
    classifier.eval()
    bar = progress_bar(len(rows), 0, "row", enabled=world.is_main, delayed=True)
    try:
        local_batches = sampler.shard_batches(batches, costs, world.rank, world.world_size)
        idle = world.all_reduce_max(len(local_batches)) - len(local_batches) if sharding.is_sharded(classifier) else 0
        for batch in local_batches:
            with world.dump_if_stalled():
                for places, output in _compute_in_memory(classifier, tokens, rows, batch, world, features):
                    local_places.append(places)
                    # A lazily executing device would compile all batches into one graph.
                    outputs.append((output.cpu() if world.accelerator.compiles else output)[: len(places)].float())
            bar.update(len(batch) * world.world_size)
        for _ in range(idle):  # FSDP: other ranks still compute; the result is dropped
            with world.dump_if_stalled():
                classifier(classifier.batch(tokens, rows[:1]).to(world.device), features=features)
    finally:
        bar.close()
        classifier.train(training)
    with world.dump_if_stalled():
        # To the device, since NCCL gathers no tensors of the CPU.
        numbers = torch.from_numpy(np.concatenate(local_places) if local_places else np.empty(0, np.int64))
        logits = torch.cat(outputs) if outputs else torch.zeros((0, width), device=world.device)
        all_places = world.gather(numbers.to(world.device)).cpu().numpy()
        all_outputs = world.gather(logits).cpu().numpy()
    assert len(all_places) == len(rows), "each row is computed by exactly one rank"
    result = np.empty((len(rows), width), dtype=np.float32)
    result[all_places] = all_outputs
    return result


@torch.no_grad()
def compute_local_logits(
    classifier: Classifier, tokens: Tokens, world: World, *, features: bool = False
) -> torch.Tensor:
    """Logits (len(tokens), outputs) of all rows, or `features`, by this rank alone; not for a sharded model."""
    assert not any(module.training for module in classifier.modules())
    lengths = tokens.lengths()
    batches = sampler.batch_by_tokens(lengths, world.accelerator.eval_tokens, padded=not classifier.packed)
    layer = classifier.output_layer
    result = torch.empty((len(tokens), layer.in_features if features else layer.out_features))
    for batch in batches:
        for places, output in _compute_in_memory(classifier, tokens, np.arange(len(tokens)), batch, world, features):
            result[torch.from_numpy(places)] = output[: len(places)].float().cpu()
    return result


def _compute_in_memory(
    classifier: Classifier, tokens: Tokens, rows: Rows, places: Rows, world: World, features: bool
) -> Iterator[tuple[Rows, torch.Tensor]]:
    """Yield (places within `rows`, output) of a batch, in parts where memory ran out; later batches have as many."""
    rest = places
    while len(rest):
        part = rest[: -(-len(places) // classifier.eval_parts)]
        output, _ = attempt(
            functools.partial(_forward, classifier, tokens, rows[part], world, features),
            world.device,
            # FSDP: all ranks must run the same number of passes, so no batch is divided.
            reraise=len(part) == 1 or sharding.is_sharded(classifier),
        )
        if output is None:
            classifier.eval_parts *= 2
        else:
            yield part, output
            rest = rest[len(part) :]


def _forward(classifier: Classifier, tokens: Tokens, rows: Rows, world: World, features: bool) -> torch.Tensor:
    output: torch.Tensor = classifier(classifier.batch(tokens, rows).to(world.device), features=features)
    return output
