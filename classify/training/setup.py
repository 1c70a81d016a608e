"""All that is decided before a run's first step, and how that comes about."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from classify.config.schema import RunConfig
from classify.data.columns import Decision
from classify.data.coverage import check_coverage, check_ids
from classify.data.splits import Split, Splits
from classify.data.tokenize import (
    Tokens,
    TrainingSet,
    default_max_length,
    load_tokenizer,
    max_length_reason,
    padding_id,
    tokenize_column,
)
from classify.distributed.batch_norm import synchronisation_note
from classify.distributed.world import World
from classify.errors import InputError
from classify.evaluation.inference import logits_of
from classify.evaluation.metrics import Scores
from classify.launch import describe, launcher
from classify.modeling.classifier import (
    LoadedModel,
    checkpoint_activations,
    freeze,
    freeze_unused,
    load_model,
    verify_packing,
)
from classify.modeling.lora import add_adapters
from classify.modeling.precision import Precision, choose_precision, faster_on_cpu, for_training, multiplies_bf16
from classify.modeling.vocabulary import Vocabulary, make_compact
from classify.training import resume
from classify.training.checkpoint import Checkpoint
from classify.training.inputs import RunInputs
from classify.training.output import Output, acquire_output_dir, say
from classify.training.strategies.base import Strategy, make_strategy


@dataclass(frozen=True)
class TokenizedData:
    """The tables as token ids, by path; `cut` says how much of a text is read, and why."""

    tokenizer: Any
    tokens: dict[str, Tokens]
    max_length: int
    cut: Decision


@dataclass(frozen=True)
class Run:
    """One run on this process, as it is when its first step begins.

    `begun` is when the command was given (seconds since the epoch), `checkpoint` what is gone on from. `loaded` holds
    the token ids as the model counts them.
    """

    checked: RunInputs
    world: World
    output: Output
    tokenized: TokenizedData
    loaded: ModelBundle
    strategy: Strategy
    decisions: tuple[Decision, ...]
    checkpoint: Checkpoint | None
    begun: float

    @property
    def config(self) -> RunConfig:
        """What the person asked for."""
        return self.checked.config

    @property
    def splits(self) -> Splits:
        """The tables and their parts."""
        return self.checked.splits

    @property
    def model(self) -> LoadedModel:
        """The model that is trained and scored."""
        return self.strategy.model

    @property
    def elapsed(self) -> float:
        """Seconds since the command was given, or `train` called."""
        return time.time() - self.begun

    @property
    def training_set(self) -> TrainingSet:
        """The rows to learn from."""
        train = self.splits.train
        return TrainingSet(self.loaded.tokens[train.table.path], train.rows, train.targets)

    @property
    def identity(self) -> dict[str, Any]:
        """What must be the same for a checkpoint to be gone on from."""
        config, vocabulary = self.config, self.loaded.vocabulary
        model, training = config.model, config.training
        return {
            "texts": self.splits.fingerprint,
            "model": model.name,
            "max_length": self.tokenized.max_length,
            "batch_size": training.train_batch_size,
            "seed": training.seed,
            "precision": self.model.classifier.precision.name,
            "pooling": "mean" if self.checked.model.pooling == "mean" else None,
            "lora": [model.lora_rank, model.lora_alpha] if model.lora else None,
            "freeze_embeddings": model.freeze_embeddings,
            "freeze_layers": model.freeze_layers,
            "compact_vocabulary": vocabulary is not None and vocabulary.compacted,
        }

    def predict(self, part: Split) -> tuple[npt.NDArray[np.float32], Scores]:
        """Logits of a part in file order, and its score, as the model stands. A collective."""
        logits = logits_of(self.model, self.loaded.tokens[part.table.path], part.rows, self.world)
        return logits, self.checked.task.score(logits, part.targets, self.config.training.seed)


def tokenize_tables(checked: RunInputs) -> TokenizedData:
    """Tokenise every table once; settle how much of a text is read. Before the process group, so nobody waits in it.

    Raises InputError where the default model knows few of the words.
    """
    splits, wanted = checked.splits, checked.config.data.max_length
    tokenizer = load_tokenizer(str(checked.model.path))
    column = splits.text_column
    cap = checked.model.max_length
    whole = {table.path: tokenize_column(tokenizer, table, column, cap) for table in splits.tables}
    unreadable = check_coverage(splits.train, column, whole[splits.train.table.path], tokenizer, checked.config.model)
    if unreadable is not None and launcher.decides_alone():
        say(f"note: {unreadable}")
    lengths = whole[splits.train.table.path].full_lengths[splits.train.rows]
    max_length = wanted or default_max_length(lengths, cap)
    why = max_length_reason(lengths, max_length, cap, given=wanted is not None)
    cut = Decision("max length", f"{max_length} tokens", why, "--max-length")
    tokens = {path: one.with_max_length(max_length) for path, one in whole.items()}
    return TokenizedData(tokenizer, tokens, max_length, cut)


@contextlib.contextmanager
def prepared(checked: RunInputs, tokenized: TokenizedData, world: World, begun: float) -> Iterator[Run]:
    """Load and place the model, claim the output folder, settle precision and packing; says every choice.

    The folder is given back when the block ends. A collective.

    Raises InputError (arguments, memory, folder; a run to resume that was started with other settings) and
    CheckpointError (nothing to resume from can be trusted).
    """
    training = checked.config.training
    require_same(checked, world)
    require_enough(checked, world)
    precision = choose_precision(training.precision, world.device, training.opt_level)
    loaded = load(checked, tokenized.tokenizer, tokenized.tokens, world.device)
    strategy = make_strategy(loaded.model, training, world)
    train = checked.splits.train
    strategy.check_room(float(loaded.tokens[train.table.path].lengths[train.rows].mean()))
    with acquire_output_dir(checked.destination, world, each_node=training.save_on_each_node) as output:
        checkpoint = resume.find(output) if output.resumes else None
        placed = strategy.place(output.folder)
        before = checkpoint.state["identity"].get("precision") if checkpoint is not None else None
        packing = configure_precision(checked, loaded, world, precision, before)
        decisions = choices(loaded, packing, world, training.train_batch_size)
        if loaded.vocabulary is not None and not output.is_writer:
            loaded = replace(loaded, vocabulary=loaded.vocabulary.without_table())
        if placed is not None:
            decisions.append(placed)
        decisions.insert(0, tokenized.cut)
        run = Run(
            checked, world, output, tokenized, loaded, strategy, (*checked.decisions, *decisions), checkpoint, begun
        )
        _describe(run, decisions)
        if checkpoint is not None:
            folder = str(checked.model.path.resolve())
            resume.require_same_run(checkpoint, run.identity, checked.config, folder, output)
        yield run


def _describe(run: Run, decisions: list[Decision]) -> None:
    """Say every guess, where each rank sits, and what the person should know."""
    output, world = run.output, run.world
    for guess in decisions:
        output.say(guess.line())
    output.say(f"ranks: {describe.line(world.topology, os.environ)}")
    if launcher.restart_count() and not output.resumes:
        output.say("note: the launcher restarted this job; with --output-dir and --resume it would go on")
    for warning in (*run.splits.warnings, *run.checked.notes):
        output.say(f"note: {warning}")
    if run.model.note is not None:
        output.say(f"note: {run.model.note}")
    if run.loaded.unused:
        names = ", ".join(run.loaded.unused)
        output.say(f"note: parameters that the classifier never uses are left alone: {names}")
    if run.config.training.sync_batch_norm:
        output.say(f"note: {synchronisation_note(run.model.stock, world.world_size, world.replicas)}")
    if world.plan.advice:
        output.say(f"note: {world.plan.advice}")


def require_enough(checked: RunInputs, world: World) -> None:
    """Raise InputError where some device would never get a row."""
    part, devices = checked.splits.train, world.world_size * world.replicas
    if len(part) < devices:
        raise InputError(
            f"{part.table.path}: {len(part)} training rows are fewer than the {devices} devices that are to share "
            "them; start fewer processes."
        )


def require_same(checked: RunInputs, world: World) -> None:
    """Raise InputError where the ranks were started with different arguments or tables; they would train nonsense."""
    arguments = checked.config.to_dict()
    for own in ("local_rank", "nproc"):  # differ by nature
        arguments["training"].pop(own)
    world.check_same({"arguments": json.dumps(arguments, sort_keys=True), "data": checked.splits.fingerprint})


@dataclass(frozen=True)
class ModelBundle:
    """The model, and what was found out about it on these tables."""

    model: LoadedModel
    tokens: dict[str, Tokens]
    vocabulary: Vocabulary | None
    unused: list[str]
    adapted: Any


def load(checked: RunInputs, tokenizer: Any, tokens: dict[str, Tokens], device: torch.device) -> ModelBundle:
    """The model as the configuration wants it on a device, still on the CPU, and its batches still padded."""
    config, part = checked.config, checked.splits.train
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
    return ModelBundle(model, tokens, vocabulary, unused, adapted)


def configure_precision(
    checked: RunInputs, loaded: ModelBundle, world: World, precision: Precision, before: str | None = None
) -> str:
    """Settle the model's precision, and whether to pack, which is returned with its reason. A collective.

    The model is on its device. A CPU that multiplies bf16 trains packed texts in it where nobody asked for a precision:
    packing is checked in it. A run that is gone on with stays in the precision that it began in, `before`, since
    processors choose differently.
    """
    model, part = loaded.model, checked.splits.train
    undecided = precision.automatic and world.device.type == "cpu"
    fastest = precision
    if undecided and not world.all_reduce_any(not multiplies_bf16()):  # all processes compute alike
        fastest = faster_on_cpu(model.hidden_size)
    model.set_precision(fastest)
    tokens = loaded.tokens[part.table.path]
    packing = verify_packing(model, tokens, part.rows, world, checked.config.model.packing)
    if not model.packed:
        model.set_precision(precision)
    if undecided and before in ("bf16", "fp32") and before != model.classifier.precision.name:
        model.set_precision(for_training(before, "the run began in it"))
    return packing


def choices(loaded: ModelBundle, packing: str, world: World, batch_size: int) -> list[Decision]:
    """What was chosen for the model and the machine, each with the way to change it."""
    model, vocabulary = loaded.model, loaded.vocabulary
    precision = model.classifier.precision
    way = "packed end to end" if model.packed else "padded" if model.static_shapes else "padded by length"
    decisions = [
        Decision("texts", way, packing, "packing in --config"),
        Decision("device", world.describe(), f"{batch_size} rows a step", "--cpu, --nproc"),
        Decision("precision", precision.name, precision.why, "--precision"),
    ]
    if loaded.adapted is not None:
        stock = model.stock
        trained, whole = (sum(p.numel() for p in stock.parameters() if p.requires_grad or every) for every in (0, 1))
        share, why = (
            f"{trained:,} of {whole:,} weights are trained",
            "LoRA and the head; merged into the rest at the end",
        )
        decisions.append(Decision("weights", share, why, "--lora"))
    if vocabulary is not None and vocabulary.compacted:
        share = f"{len(vocabulary.used)} of {len(vocabulary.full)} tokens occur"
        why = "the embeddings of the others stay as they are"
        decisions.append(Decision("vocabulary", share, why, "compact_vocabulary in --config"))
    if model.loses_attention_dropout(world.device):
        decisions.append(
            Decision("attention dropout", "0", "the kernel for packed texts has none", "packing in --config")
        )
    return decisions
