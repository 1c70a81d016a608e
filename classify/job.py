"""One run on one process: what it was told, what it works with, and how that came about."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from classify import explain, launch, metrics
from classify.checks import Checked
from classify.config import RunConfig, TrainingConfig
from classify.data.infer import Guess
from classify.data.parts import Part
from classify.data.tokens import Tokens, TrainingSet, default_max_length, load_tokenizer, tokenize
from classify.destination import Destination, begun_before, check_folder, make_folder
from classify.errors import InputError
from classify.inference import logits_of
from classify.model import LoadedModel, decide_packing, freeze, freeze_unused, load_model, quiet_libraries
from classify.optimization import Objective, make_objective
from classify.outputs import TrainLog
from classify.packing import ragged_kernel_applies
from classify.precision import Precision, choose_precision
from classify.runtime import Runtime
from classify.tracking import Tracker
from classify.vocabulary import Vocabulary, make_compact


@dataclass
class Job:
    """One run on this process: what it was told, what it works with, where it writes.

    `writes` is true on the main process, and on one of each machine under --save-on-each-node.
    """

    checked: Checked
    runtime: Runtime
    tokens: dict[str, Tokens]
    tokenizer: Any
    max_length: int
    precision: Precision
    model: LoadedModel
    folder: Path
    batch_size: int
    guesses: list[Guess]
    writes: bool
    destination: Destination
    vocabulary: Vocabulary | None = None
    probe: dict[str, float] | None = None
    log: TrainLog | None = None
    tracker: Tracker = field(default_factory=Tracker)

    @property
    def config(self) -> RunConfig:
        """What the run was told."""
        return self.checked.config

    def say(self, text: str) -> None:
        """Print on the main process."""
        if self.runtime.is_main:
            try:
                tqdm.write(text, file=sys.stdout)
                sys.stdout.flush()
            except BrokenPipeError:  # whoever read our output has left; that must not end a training
                sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - stays open to the end

    def tokens_of(self, part: Part) -> Tokens:
        """Token ids of the table a part belongs to."""
        return self.tokens[part.table.path]

    @property
    def training_set(self) -> TrainingSet:
        """The rows to learn from."""
        train = self.checked.corpus.train
        return TrainingSet(self.tokens_of(train), train.rows, train.labels)

    @property
    def objective(self) -> Objective:
        """What is minimised."""
        corpus = self.checked.corpus
        return make_objective(self.config.training, corpus.train.truth, len(corpus.labels))

    def identity(self) -> dict[str, Any]:
        """What must be the same for a checkpoint to be gone on from."""
        return {
            "data": self.checked.corpus.fingerprint,
            "model": self.config.model.model,
            "max_length": self.max_length,
            "batch_size": self.batch_size,
            "seed": self.config.training.seed,
            "precision": self.precision.name,
            "compact_vocabulary": self.vocabulary is not None and self.vocabulary.compacted,
        }

    def predict(self, part: Part) -> tuple[npt.NDArray[np.float32], metrics.Score]:
        """Logits of a part in file order, and its score. A collective."""
        logits = logits_of(self.model, self.tokens_of(part), part.rows, self.runtime)
        return logits, metrics.score(logits, part.truth, self.checked.corpus.labels, self.config.training.seed)

    def score(self, part: Part) -> metrics.Score:
        """The score of a part as the model stands. A collective."""
        return self.predict(part)[1]


def _tokenize(checked: Checked) -> tuple[Any, dict[str, Tokens], int, Guess]:
    """Tokenise every table once; settle how much of a text is read. Before the process group, so nobody waits in it."""
    corpus, wanted = checked.corpus, checked.config.data.max_length
    tokenizer = load_tokenizer(str(checked.model.path))
    column = corpus.text_column
    cap = checked.model.max_length
    tokens = {
        table.path: tokenize(tokenizer, table.as_dataset()[column], cap, identity=f"{table.sha256}/{column}")
        for table in corpus.tables
    }
    lengths = tokens[corpus.train.table.path].full_lengths[corpus.train.rows]
    max_length = wanted or default_max_length(lengths, cap)
    longer = int((lengths > max_length).sum())
    why = f"{longer} of {len(lengths)} training texts are longer and cut at the end" if longer else "no text is longer"
    guess = Guess("max length", f"{max_length} tokens", why, "--max-length")
    return tokenizer, {path: one.with_max_length(max_length) for path, one in tokens.items()}, max_length, guess


def prepare(checked: Checked) -> Job:
    """Tokenise, start the process group, load the model, settle precision, packing, batch size and folder.

    Says every guess. The caller closes `job.runtime`; on an error it is closed here.
    """
    quiet_libraries()
    try:
        tokenizer, tokens, max_length, cut = _tokenize(checked)
    except Exception as error:
        if launch.several_machines():  # ranks on the others would wait for this one
            checked.config.training.runtime.share_faults(f"{type(error).__name__}: {error}")
        raise
    runtime = checked.config.training.runtime
    try:
        runtime.share_faults(None)
        return _prepare(checked, runtime, tokenizer, tokens, max_length, cut)
    except BaseException:
        runtime.close()
        raise


def _prepare(
    checked: Checked, runtime: Runtime, tokenizer: Any, tokens: dict[str, Tokens], max_length: int, cut: Guess
) -> Job:
    config = checked.config
    training = config.training
    _check_alike(checked, runtime)
    precision = choose_precision(_precision_name(training), runtime.device)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    model = load_model(
        checked.model, checked.corpus.labels, seed=training.seed, pad_token_id=pad, dropout=config.model.dropout
    )
    vocabulary, tokens = make_compact(model, tokens, tokenizer.all_special_ids, wish=config.model.compact_vocabulary)
    train_part = checked.corpus.train
    train_tokens = tokens[train_part.table.path]
    packing = decide_packing(model, train_tokens, train_part.rows, config.model.packing)
    freeze(model, embeddings=config.model.freeze_embeddings, layers=config.model.freeze_layers)
    unused = freeze_unused(model, train_tokens, int(train_part.rows[0]))
    if training.gradient_checkpointing:
        model.stock.gradient_checkpointing_enable({"use_reentrant": False})
    model.classifier.to(runtime.device)
    model.classifier.precision = precision
    batch_size = training.train_batch_size
    if len(train_part) < runtime.world_size * runtime.replicas:
        raise InputError(
            f"{train_part.table.path}: {len(train_part)} training rows are fewer than the "
            f"{runtime.world_size * runtime.replicas} devices that are to share them; start fewer processes."
        )
    guesses = [
        *checked.guesses,
        cut,
        Guess("texts", "packed end to end" if model.packed else "padded by length", packing, "packing in --config"),
        Guess("device", runtime.describe(), f"{batch_size} rows a step", "--cpu, --nproc"),
        Guess("precision", precision.name, precision.why, "--precision"),
    ]
    if vocabulary is not None and vocabulary.compacted:
        share = f"{len(vocabulary.used)} of {len(vocabulary.full)} tokens occur"
        why = "the embeddings of the others stay as they are"
        guesses.append(Guess("vocabulary", share, why, "compact_vocabulary in --config"))
    if model.packed and ragged_kernel_applies(runtime.device, precision.autocast_dtype, model.head_size):
        guesses.append(Guess("attention dropout", "0", "the kernel for packed texts has none", "packing in --config"))
    destination = _settle(checked.destination, runtime)
    folder = destination.folder
    assert folder is not None
    writes = _make_own_folder(folder, destination, runtime) if training.save_on_each_node else runtime.is_main
    job = Job(
        checked,
        runtime,
        tokens,
        tokenizer,
        max_length,
        precision,
        model,
        folder,
        batch_size,
        guesses,
        writes,
        destination,
        vocabulary,
    )
    for guess in guesses:
        job.say(guess.line())
    job.say(f"ranks: {explain.line(runtime.topology, os.environ)}")
    if destination.resume and not checked.destination.resume:
        job.say(f"note: an earlier attempt of this job began {folder}; the launcher started it anew")
    for warning in checked.corpus.warnings:
        job.say(f"note: {warning}")
    if unused:
        job.say(f"note: parameters that the classifier never uses are left alone: {', '.join(unused)}")
    if runtime.plan.advice:
        job.say(f"note: {runtime.plan.advice}")
    return job


def _settle(wanted: Destination, runtime: Runtime) -> Destination:
    """Where this run goes, decided and made by the main process and told to all. A collective."""
    told = None
    if runtime.is_main:
        chosen = begun_before(wanted) or wanted
        told = [str(make_folder(chosen)), str(chosen.checkpoint or ""), chosen.overwrite, chosen.resume]
    folder, named, overwrite, resume = runtime.broadcast(told)
    return Destination(Path(folder), wanted.stem, Path(named) if named else None, overwrite, resume)


def _make_own_folder(folder: Path, destination: Destination, runtime: Runtime) -> bool:
    """Under --save-on-each-node: the folder on this machine, and whether this process is the one to write there.

    Machines that share the main process's disk after all are found by a file it leaves there for a moment: two
    writers of one folder would spoil it. Raises InputError where the folder holds somebody's files on another
    machine. A collective.
    """
    sign = folder / runtime.broadcast(f".shared-{uuid.uuid4().hex}" if runtime.is_main else None)
    if runtime.is_main:
        sign.touch()
    runtime.barrier()
    writes, fault = runtime.is_main, None
    if runtime.is_local_main and not runtime.is_main:
        try:
            folder.mkdir(parents=True, exist_ok=True)  # asks the server: a network disk's cache may lack the folder
            writes = sign.name not in os.listdir(folder)
            if writes and begun_before(destination) is None:
                check_folder(destination, folder)
            if writes:
                make_folder(destination)
        except (InputError, OSError) as error:
            fault = str(error)
    runtime.share_faults(fault)
    if fault is not None:
        raise InputError(fault)
    if runtime.is_main:
        sign.unlink(missing_ok=True)
    return writes


def _check_alike(checked: Checked, runtime: Runtime) -> None:
    """Raise InputError where the ranks were started with different arguments or tables; they would train nonsense."""
    arguments = checked.config.to_dict()
    for own in ("local_rank", "nproc"):  # differ by nature
        arguments["training"].pop(own)
    kinds = {"arguments": json.dumps(arguments, sort_keys=True), "data": checked.corpus.fingerprint}
    hashes = torch.tensor([[int(hashlib.sha256(text.encode()).hexdigest()[:15], 16) for text in kinds.values()]])
    everywhere = runtime.gather(hashes.to(runtime.device)).cpu()
    for column, kind in enumerate(kinds):
        others = [place for place, value in enumerate(everywhere[:, column].tolist()) if value != everywhere[0, column]]
        if others:
            raise InputError(
                f"rank {', '.join(map(str, others))} was started with other {kind} than rank 0; start all processes "
                "with the same command on the same tables."
            )


def _precision_name(training: TrainingConfig) -> str:
    return "fp16" if training.fp16 else "bf16" if training.bf16 else training.precision
