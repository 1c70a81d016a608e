"""All that is decided before a run's first step, and how that comes about."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.config.schema import RunConfig
from classify.data.columns import Guess
from classify.data.corpus import Corpus, Part
from classify.data.coverage import check_coverage
from classify.data.tokenize import (
    Tokens,
    TrainingSet,
    default_max_length,
    load_tokenizer,
    max_length_reason,
    tokenize_column,
)
from classify.distributed.batch_norm import synchronisation_note
from classify.distributed.world import World
from classify.evaluation.inference import logits_of
from classify.evaluation.metrics import Scores
from classify.launch import describe, launcher
from classify.modeling.classifier import LoadedModel
from classify.modeling.precision import choose_precision
from classify.training import resume
from classify.training.agreement import require_enough, require_same
from classify.training.checkpoint import Checkpoint
from classify.training.inputs import Checked
from classify.training.loading import Loaded, choices, load, settle_arithmetic
from classify.training.output import Output, claimed, say
from classify.training.strategies.base import Strategy, make_strategy


@dataclass(frozen=True)
class Tokenized:
    """The tables as token ids, by path; `cut` says how much of a text is read, and why."""

    tokenizer: Any
    tokens: dict[str, Tokens]
    max_length: int
    cut: Guess


@dataclass(frozen=True)
class Run:
    """One run on this process, as it is when its first step begins.

    `begun` is when the command was given (seconds since the epoch), `checkpoint` what is gone on from. `loaded` holds
    the token ids as the model counts them.
    """

    checked: Checked
    world: World
    output: Output
    tokenized: Tokenized
    loaded: Loaded
    strategy: Strategy
    guesses: tuple[Guess, ...]
    checkpoint: Checkpoint | None
    begun: float

    @property
    def config(self) -> RunConfig:
        """What the person asked for."""
        return self.checked.config

    @property
    def corpus(self) -> Corpus:
        """The tables and their parts."""
        return self.checked.corpus

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
        train = self.corpus.train
        return TrainingSet(self.loaded.tokens[train.table.path], train.rows, train.labels)

    @property
    def identity(self) -> dict[str, Any]:
        """What must be the same for a checkpoint to be gone on from."""
        config, vocabulary = self.config, self.loaded.vocabulary
        model, training = config.model, config.training
        return {
            "texts": self.corpus.fingerprint,
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

    def predict(self, part: Part) -> tuple[npt.NDArray[np.float32], Scores]:
        """Logits of a part in file order, and its score, as the model stands. A collective."""
        logits = logits_of(self.model, self.loaded.tokens[part.table.path], part.rows, self.world)
        return logits, self.checked.task.score(logits, part.truth, self.config.training.seed)


def tokenize_tables(checked: Checked) -> Tokenized:
    """Tokenise every table once; settle how much of a text is read. Before the process group, so nobody waits in it.

    Raises InputError where the default model knows few of the words.
    """
    corpus, wanted = checked.corpus, checked.config.data.max_length
    tokenizer = load_tokenizer(str(checked.model.path))
    column = corpus.text_column
    cap = checked.model.max_length
    whole = {table.path: tokenize_column(tokenizer, table, column, cap) for table in corpus.tables}
    unreadable = check_coverage(corpus.train, column, whole[corpus.train.table.path], tokenizer, checked.config.model)
    if unreadable is not None and launcher.decides_alone():
        say(f"note: {unreadable}")
    lengths = whole[corpus.train.table.path].full_lengths[corpus.train.rows]
    max_length = wanted or default_max_length(lengths, cap)
    why = max_length_reason(lengths, max_length, cap, given=wanted is not None)
    cut = Guess("max length", f"{max_length} tokens", why, "--max-length")
    tokens = {path: one.with_max_length(max_length) for path, one in whole.items()}
    return Tokenized(tokenizer, tokens, max_length, cut)


@contextlib.contextmanager
def prepared(checked: Checked, tokenized: Tokenized, world: World, begun: float) -> Iterator[Run]:
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
    train = checked.corpus.train
    strategy.check_room(float(loaded.tokens[train.table.path].lengths[train.rows].mean()))
    with claimed(checked.destination, world, each_node=training.save_on_each_node) as output:
        checkpoint = resume.find(output) if output.resumes else None
        placed = strategy.place(output.folder)
        before = checkpoint.state["identity"].get("precision") if checkpoint is not None else None
        packing = settle_arithmetic(checked, loaded, world, precision, before)
        guesses = choices(loaded, packing, world, training.train_batch_size)
        if loaded.vocabulary is not None and not output.writes:
            loaded = replace(loaded, vocabulary=loaded.vocabulary.without_table())
        if placed is not None:
            guesses.append(placed)
        guesses.insert(0, tokenized.cut)
        run = Run(checked, world, output, tokenized, loaded, strategy, (*checked.guesses, *guesses), checkpoint, begun)
        _describe(run, guesses)
        if checkpoint is not None:
            folder = str(checked.model.path.resolve())
            resume.require_same_run(checkpoint, run.identity, checked.config, folder, output)
        yield run


def _describe(run: Run, guesses: list[Guess]) -> None:
    """Say every guess, where each rank sits, and what the person should know."""
    output, world = run.output, run.world
    for guess in guesses:
        output.say(guess.line())
    output.say(f"ranks: {describe.line(world.topology, os.environ)}")
    if output.resumes and not run.checked.destination.resume:
        output.say(f"note: an earlier attempt of this job began {output.folder}; the launcher started it anew")
    for warning in (*run.corpus.warnings, *run.checked.notes):
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
