"""Forecast the memory of a run for --plan, before anything is tokenized or loaded."""

from __future__ import annotations

from typing import Any

from classify.data.tokenize import DEFAULT_LIMIT
from classify.distributed import batch_norm
from classify.distributed.sharding import parameter_depths
from classify.distributed.world import World
from classify.modeling import memory_estimate
from classify.modeling.loading import freeze, make_empty
from classify.modeling.precision import choose_precision
from classify.training.inputs import RunInputs

# A rule of thumb for BERT's vocabularies and European languages, good enough to estimate memory by.
_CHARACTERS_PER_TOKEN = 4


def describe_memory(inputs: RunInputs, world: World) -> str:
    """Return a line on the memory of each device, estimated conservatively: a CPU may train in bf16 by default.

    Raises InputError where the device cannot compute as requested.
    """
    train = inputs.splits.train
    characters = float(train.table.lengths(inputs.splits.columns.text)[train.rows].mean())
    limit = inputs.config.data.max_length or min(DEFAULT_LIMIT, inputs.model.max_length)
    length = min(characters / _CHARACTERS_PER_TOKEN + 2, limit)
    words = estimate(inputs, world, length).describe()
    return f"memory: {words}, for texts of about {length:.0f} tokens, not counting what --compact-vocabulary saves"


def estimate(inputs: RunInputs, world: World, length: float) -> memory_estimate.Need:
    """Estimate the memory of each device, for texts of `length` tokens on average.

    Raises InputError where the device cannot compute as requested.
    """
    config, plan = inputs.config, world.plan
    training, settings = config.training, config.model
    devices = world.world_size * max(1, training.n_gpu if plan.spec.processes == "one" else 1)
    rows = training.train_batch_size / training.gradient_accumulation_steps
    precision, model = choose_precision(training.precision, world.device, training.opt_level), _make_empty(inputs)
    each = rows if plan.spec.spreads_layers else rows / devices
    if plan.spec.may_split_steps and memory_estimate.limits_tokens(
        world.accelerator, half_weights=precision.rounds_weights, batch_norm=bool(batch_norm.layers(model))
    ):
        width, packed = memory_estimate.read_hidden_size(inputs.model.config), settings.packing != "padded"
        each = min(each, memory_estimate.tokens_at_once(width, packed=packed) // world.cache_sharers / length)
    return memory_estimate.training_need(
        inputs.model.config,
        _count_weights(model, lora=settings.lora),
        each,
        length,
        half=precision.half_dtype is not None,
        level=training.opt_level,
        frozen_layers=settings.freeze_layers,
        added_layers=inputs.model.added_layers,
        checkpointing=training.gradient_checkpointing,
    ).divide(devices, *plan.spec.splits)


def _make_empty(inputs: RunInputs) -> Any:
    """Create the run's model without weights, frozen as requested."""
    model = make_empty(inputs.model, inputs.task.labels)
    freeze(model, embeddings=inputs.config.model.freeze_embeddings, layers=inputs.config.model.freeze_layers)
    return model


def _count_weights(model: Any, *, lora: bool) -> tuple[int, int]:
    """Count the (trained, frozen) parameters."""
    depth = parameter_depths(model)
    head = max(depth.values())
    counts = {True: 0, False: 0}
    for name, parameter in model.named_parameters():
        # LoRA freezes all but the head; its own matrices are small beside the rest.
        trained = depth[name] == head if lora else parameter.requires_grad
        counts[trained] += parameter.numel()
    return counts[True], counts[False]
