"""The model as a run wants it: cut to the words that occur, packed, frozen, adapted; and what was chosen for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from classify.data.columns import Guess
from classify.data.coverage import check_ids
from classify.data.tokenize import Tokens, padding_id
from classify.distributed.world import World
from classify.modeling.classifier import (
    LoadedModel,
    checkpoint_activations,
    decide_packing,
    freeze,
    freeze_unused,
    load_model,
)
from classify.modeling.lora import add_adapters
from classify.modeling.precision import Precision, faster_on_cpu, for_training, multiplies_bf16
from classify.modeling.vocabulary import Vocabulary, make_compact
from classify.training.inputs import Checked


@dataclass(frozen=True)
class Loaded:
    """The model, and what was found out about it on these tables."""

    model: LoadedModel
    tokens: dict[str, Tokens]
    vocabulary: Vocabulary | None
    unused: list[str]
    adapted: Any


def load(checked: Checked, tokenizer: Any, tokens: dict[str, Tokens], device: torch.device) -> Loaded:
    """The model as the configuration wants it on a device, still on the CPU, and its batches still padded."""
    config, part = checked.config, checked.corpus.train
    model = load_model(
        checked.model,
        checked.task.labels,
        seed=config.training.seed,
        pad_token_id=padding_id(tokenizer),
        dropout=config.model.dropout,
        problem_type=checked.task.problem_type,
    )
    if config.model.kernels == "auto":
        model.install_kernels(device)
    for one in tokens.values():
        check_ids(one, tokenizer, model.stock.get_input_embeddings(), config.model.name)
    vocabulary, tokens = make_compact(model, tokens, tokenizer.all_special_ids, wish=config.model.compact_vocabulary)
    freeze(model, embeddings=config.model.freeze_embeddings, layers=config.model.freeze_layers)
    unused = freeze_unused(model, tokens[part.table.path], int(part.rows[0]))
    adapted = add_adapters(model, config.model.lora_rank, config.model.lora_alpha) if config.model.lora else None
    if config.training.gradient_checkpointing:
        checkpoint_activations(model)
    return Loaded(model, tokens, vocabulary, unused, adapted)


def settle_arithmetic(
    checked: Checked, loaded: Loaded, world: World, precision: Precision, before: str | None = None
) -> str:
    """Settle the model's precision, and whether to pack, which is returned with its reason. A collective.

    The model is on its device. A CPU that multiplies bf16 trains packed texts in it where nobody asked for a precision:
    packing is checked in it. A run that is gone on with stays in the precision that it began in, `before`, since
    processors choose differently.
    """
    model, part = loaded.model, checked.corpus.train
    undecided = precision.automatic and world.device.type == "cpu"
    fastest = precision
    if undecided and not world.any(not multiplies_bf16()):  # all processes compute alike
        fastest = faster_on_cpu(model.hidden_size)
    model.compute_in(fastest)
    tokens = loaded.tokens[part.table.path]
    packing = decide_packing(model, tokens, part.rows, world, checked.config.model.packing)
    if not model.packed:
        model.compute_in(precision)
    if undecided and before in ("bf16", "fp32") and before != model.classifier.precision.name:
        model.compute_in(for_training(before, "the run began in it"))
    return packing


def choices(loaded: Loaded, packing: str, world: World, batch_size: int) -> list[Guess]:
    """What was chosen for the model and the machine, each with the way to change it."""
    model, vocabulary = loaded.model, loaded.vocabulary
    precision = model.classifier.precision
    way = "packed end to end" if model.packed else "padded" if model.few_shapes else "padded by length"
    guesses = [
        Guess("texts", way, packing, "packing in --config"),
        Guess("device", world.describe(), f"{batch_size} rows a step", "--cpu, --nproc"),
        Guess("precision", precision.name, precision.why, "--precision"),
    ]
    if loaded.adapted is not None:
        stock = model.stock
        trained, whole = (sum(p.numel() for p in stock.parameters() if p.requires_grad or every) for every in (0, 1))
        share, why = (
            f"{trained:,} of {whole:,} weights are trained",
            "LoRA and the head; merged into the rest at the end",
        )
        guesses.append(Guess("weights", share, why, "--lora"))
    if vocabulary is not None and vocabulary.compacted:
        share = f"{len(vocabulary.used)} of {len(vocabulary.full)} tokens occur"
        why = "the embeddings of the others stay as they are"
        guesses.append(Guess("vocabulary", share, why, "compact_vocabulary in --config"))
    if model.loses_attention_dropout(world.device):
        guesses.append(Guess("attention dropout", "0", "the kernel for packed texts has none", "packing in --config"))
    return guesses
