"""Estimate a run before its first step, from its plan and three rates of the device: memory, and seconds of each part.

A part takes as long as its products, the bytes that it moves and the kernels that it starts (the roofline model:
Williams et al., 2009, "Roofline: An Insightful Visual Performance Model for Multicore Architectures").
"""

from __future__ import annotations

import functools
import math
import re
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from classify.config.recipe import CONTRASTIVE_LENGTH, CONTRASTIVE_ROWS
from classify.data.tokenize import DEFAULT_LIMIT
from classify.distributed.world import World
from classify.modeling import memory_estimate
from classify.modeling.precision import Precision, choose_precision
from classify.training.inputs import RunInputs
from classify.training.linear_probe import row_limit

# A rule of thumb for BERT's vocabularies and European languages, where nothing is tokenized yet.
_CHARACTERS_PER_TOKEN = 4
# Bytes that clipping and AdamW move per trained weight: gradients are read twice, weight and two moments read, written.
_UPDATE_BYTES = 36
# How often a step moves the activations that it keeps, and how many kernels a layer starts; a forward pass a third of
# both. Fitted to bf16 steps of a CPU, of 7 layers and 384 wide, and to those of a GPU in benchmarks/RESULTS.md.
_MOVES, _KERNELS = 30, 150
# Each rate is measured this often, on products of up to this many tokens, and on a copy of as many floats as there are
# trained weights, up to this number: AdamW's moments will take the same memory.
_REPEATS, _TOKENS, _FLOATS = 5, 512, 1 << 24


@dataclass(frozen=True)
class Rates:
    """Operations of products, and bytes moved, per second on a device; seconds to start a kernel."""

    operations: float
    bytes: float
    launch: float


@dataclass(frozen=True)
class Estimate:
    """Bytes on each device, and seconds by part; without startup, the baseline and files."""

    memory: memory_estimate.Need
    seconds: dict[str, float]
    fast_seconds: float  # of the same run with --preset fast

    @property
    def total_seconds(self) -> float:
        return sum(self.seconds.values())


def guess_length(inputs: RunInputs) -> float:
    """Guess the mean number of tokens of a training text from its characters."""
    train = inputs.splits.train
    characters = float(train.table.lengths(inputs.splits.columns.text)[train.rows].mean())
    limit = inputs.config.data.max_length or min(DEFAULT_LIMIT, inputs.model.max_length)
    return min(characters / _CHARACTERS_PER_TOKEN + 2, limit)


def estimate(inputs: RunInputs, world: World, length: float, precision: Precision | None = None) -> Estimate:
    """Estimate a run on texts of `length` tokens on average, by default in the device's precision.

    Raises InputError where the device cannot compute as requested.
    """
    training, splits = inputs.config.training, inputs.splits
    precision = precision or choose_precision(training.precision, world.device, training.opt_level)
    run = _Run(inputs, world, length, precision)
    trainings, rows, classes = 1 + splits.num_folds, len(splits.train), len(inputs.task.labels)
    batch, probed = training.train_batch_size, inputs.config.model.head == "probe"
    epochs = training.max_steps * batch / rows if training.max_steps > 0 else training.epochs
    limit = row_limit(classes, is_final=not epochs)
    tested = len(splits.test) if splits.test else 0
    steps = math.floor(epochs * rows / batch)
    between = 0 if training.eval_steps is None else steps // training.eval_steps
    # Where only the head is fitted, the folds and the final model take the features of one pass each.
    most = row_limit(classes, is_final=True)
    shared = min(2, trainings) if rows <= most else trainings
    probings = trainings if training.trains_encoder else shared
    scorings = math.ceil(epochs) + between + probed
    if splits.num_folds:
        scorings = int(probings == trainings)
    pairs = (training.contrastive_steps or 0) * run.step_seconds(min(CONTRASTIVE_ROWS, rows), CONTRASTIVE_LENGTH)
    seconds = {
        "contrastive steps": trainings * pairs,
        "head": probings * run.pass_seconds(min(limit, rows)) if probed else 0.0,
        "epochs": trainings * epochs * rows / batch * run.step_seconds(batch),
        "evaluation": run.pass_seconds(len(splits.validation) * scorings + tested),
    }
    fast = shared * min(rows, most) + tested
    fast += 0 if splits.num_folds and shared < trainings else len(splits.validation)
    return Estimate(run.memory, seconds, run.pass_seconds(fast))


class _Run:
    """A model and its device: what a step costs on texts of `length` tokens."""

    def __init__(self, inputs: RunInputs, world: World, length: float, precision: Precision):
        self.inputs, self.world, self.length, self.precision = inputs, world, length, precision
        training = inputs.config.training
        self.config = inputs.model.config
        self.devices = world.world_size * max(1, training.n_gpu if world.plan.spec.processes == "one" else 1)
        self.trained, self.frozen = _count_weights(inputs)
        self.layers = (memory_estimate.layer_count(self.config) or 1) + inputs.model.added_layers
        self.width = memory_estimate.read_hidden_size(self.config)
        weights = max(self.trained, 4 * self.width)
        self.rates = measure_rates(world.device, self.width, self.precision.half_dtype or torch.float32, weights)

    @functools.cached_property
    def memory(self) -> memory_estimate.Need:
        config, spec = self.inputs.config, self.world.plan.spec
        training = config.training
        rows = training.train_batch_size / training.gradient_accumulation_steps
        each = rows if spec.spreads_layers else rows / self.devices
        if spec.may_split_steps and memory_estimate.limits_tokens(
            self.world.accelerator, half_weights=self.precision.rounds_weights, batch_norm=False
        ):
            most = memory_estimate.tokens_at_once(self.width, packed=config.model.packing != "padded")
            each = min(each, most // self.world.cache_sharers / self.length)
        return memory_estimate.training_need(
            self.config,
            (self.trained, self.frozen),
            each,
            self.length,
            half=self.precision.half_dtype is not None,
            level=training.opt_level,
            frozen_layers=config.model.freeze_layers,
            added_layers=self.inputs.model.added_layers,
            checkpointing=training.gradient_checkpointing,
        ).divide(self.devices, *spec.splits)

    def step_seconds(self, rows: float, most: float = math.inf) -> float:
        """Estimate an optimizer step on `rows` rows; a backward pass takes as long as two forward passes."""
        return 3 * self.pass_seconds(rows, most) + self.trained * _UPDATE_BYTES / self.rates.bytes

    def pass_seconds(self, rows: float, most: float = math.inf) -> float:
        """Estimate a forward pass on `rows` rows, cut at `most` tokens."""
        length = min(self.length, most)
        tokens = rows * length / self.devices
        weights = 4 * self.width**2 + 2 * self.width * memory_estimate.read_inner_size(self.config)
        operations = self.layers * tokens * (2 * weights + 4 * self.width * length)
        half = self.precision.half_dtype is not None
        kept = self.layers * memory_estimate.layer_activations(self.config, tokens, length, half)
        computed = operations / self.rates.operations + _MOVES / 3 * kept / self.rates.bytes
        return max(computed, self.layers * _KERNELS / 3 * self.rates.launch)


def measure_rates(device: torch.device, width: int, dtype: torch.dtype, weights: int) -> Rates:
    """Measure a device in a tenth of a second: products of `width`, a copy, and an operation on one number.

    Takes no more memory than the moments of `weights` weights.
    """
    floats = min(weights, _FLOATS)
    tokens = max(1, min(_TOKENS, floats // (8 * width)))
    inputs = torch.ones(tokens, width, dtype=dtype, device=device)
    weight = torch.ones(4 * width, width, dtype=dtype, device=device)
    source, one = torch.ones(floats, device=device), torch.ones(1, device=device)
    target = torch.empty_like(source)
    product = _median_seconds(lambda: torch.nn.functional.linear(inputs, weight), device)
    copied = _median_seconds(lambda: target.copy_(source), device)
    launched = _median_seconds(lambda: [one.add_(1) for _ in range(100)], device) / 100
    return Rates(8 * tokens * width**2 / product, 8 * floats / copied, launched)


def _median_seconds(compute: Callable[[], object], device: torch.device) -> float:
    def spend() -> float:
        begin = time.perf_counter()
        compute()
        torch.ones(1, device=device).item()  # waits for a device
        return time.perf_counter() - begin

    spend()
    return statistics.median(spend() for _ in range(_REPEATS))


def _count_weights(inputs: RunInputs) -> tuple[int, int]:
    """Count the (trained, frozen) weights from the names in the model's files."""
    settings, counts = inputs.config.model, inputs.model.weight_counts
    total = memory_estimate.count_weights(counts, inputs.model.added_layers)
    if settings.lora:
        return 0, total  # its matrices are small beside the rest
    frozen = memory_estimate.count_weights(_select_frozen(counts, settings.freeze_embeddings, settings.freeze_layers))
    return total - frozen, frozen


def _select_frozen(counts: Mapping[str, int], embeddings: bool, layers: int) -> dict[str, int]:
    """Return the weights that --freeze-embeddings and --freeze-layers freeze."""
    frozen = {}
    for name, count in counts.items():
        layer = re.search(r"\.(\d+)\.", name)
        below = int(layer[1]) < layers if layer is not None else "embedding" in name and (embeddings or layers > 0)
        if below:
            frozen[name] = count
    return frozen
