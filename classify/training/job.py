"""One run on one process: what it was told, what it works with, and how that came about."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from classify.config.schema import RunConfig
from classify.data.columns import Guess
from classify.data.corpus import Part
from classify.data.coverage import check_coverage
from classify.data.files import TEMPORARY
from classify.data.tokenize import Tokens, TrainingSet, default_max_length, load_tokenizer, max_length_reason, tokenize
from classify.distributed.batch_norm import told
from classify.distributed.process_group import telling_other_machines
from classify.distributed.world import World
from classify.errors import DiskError, InputError, disk_refusal
from classify.evaluation import metrics
from classify.evaluation.inference import logits_of
from classify.launch import describe, launcher, restarts
from classify.modeling.classifier import LoadedModel, quiet_libraries
from classify.modeling.precision import Precision, choose_precision
from classify.modeling.vocabulary import Vocabulary
from classify.training import checkpoint
from classify.training.agreement import check_alike, check_enough
from classify.training.averaging import WeightAverage
from classify.training.inputs import Checked
from classify.training.loading import choices, load, settle_arithmetic
from classify.training.optimizer import Objective, make_objective
from classify.training.output_dir import CHECKPOINTS, Destination, begun_before, claim_folder
from classify.training.strategies.base import Strategy, make_strategy
from classify.training.tracking import Tracker
from classify.training.train_log import TrainLog


@dataclass
class Job:
    """One run on this process: what it was told, what it works with, where it writes.

    `writes` is true on the main process, and on one of each machine under --save-on-each-node. `names` are those that
    the launcher's agents have for this job, by which a restarted one knows its folder: rank 0 may be elsewhere then.
    `scores` are the evaluation scores by step, of those that this process has seen. `held` is what is given
    back at the end: the folder's lock and the process group.
    """

    checked: Checked
    world: World
    tokens: dict[str, Tokens]
    tokenizer: Any
    max_length: int
    precision: Precision
    strategy: Strategy
    folder: Path
    batch_size: int
    guesses: list[Guess]
    writes: bool
    destination: Destination
    names: list[str] = field(default_factory=list)
    held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    vocabulary: Vocabulary | None = None
    adapted: Any = None
    probe: dict[str, float] | None = None
    average: WeightAverage = field(default_factory=WeightAverage)
    scores: dict[int, metrics.Score] = field(default_factory=dict)
    begun: float = field(default_factory=time.time)
    start_seconds: float | None = None
    log: TrainLog | None = None
    tracker: Tracker = field(default_factory=Tracker)

    @property
    def model(self) -> LoadedModel:
        """The model that is trained and scored."""
        return self.strategy.model

    @property
    def config(self) -> RunConfig:
        """What the run was told."""
        return self.checked.config

    def say(self, text: str) -> None:
        """Print on the main process."""
        if self.world.is_main:
            _print(text)

    @contextlib.contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """Raise DiskError where the disk refuses what is written in this block, with what the folder keeps."""
        try:
            yield
        except Exception as error:
            reason = disk_refusal(error)
            if reason is None:
                raise
            kept = [f"{CHECKPOINTS}/{path.name}" for path in checkpoint.finished(self.folder / CHECKPOINTS)]
            raise DiskError(
                f"{self.folder}: {what} could not be written: {reason}. Kept: {', '.join(kept) or 'nothing yet'}; mend "
                f"that (free some space, say) and go on with --resume {shlex.quote(str(self.folder))}."
            ) from error

    def tokens_of(self, part: Part) -> Tokens:
        """Token ids of the table a part belongs to."""
        return self.tokens[part.table.path]

    @property
    def elapsed(self) -> float:
        """Seconds since the command was given, or `train` called."""
        return time.time() - self.begun

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

    @property
    def limits(self) -> list[float | None]:
        """What a plan for --max-minutes was made for."""
        training = self.config.training
        return [training.max_minutes, training.epochs, training.max_steps]

    def identity(self) -> dict[str, Any]:
        """What must be the same for a checkpoint to be gone on from."""
        return {
            "data": self.checked.corpus.fingerprint,
            "model": self.config.model.name,
            "max_length": self.max_length,
            "batch_size": self.batch_size,
            "seed": self.config.training.seed,
            "precision": self.precision.name,
            "pooling": "mean" if self.checked.model.pooling == "mean" else None,
            "average": [self.config.training.cycles, self.config.training.epochs]
            if self.config.training.cycles > 1
            else None,
            "lora": [self.config.model.lora_rank, self.config.model.lora_alpha] if self.config.model.lora else None,
            "freeze_embeddings": self.config.model.freeze_embeddings,
            "freeze_layers": self.config.model.freeze_layers,
            "compact_vocabulary": self.vocabulary is not None and self.vocabulary.compacted,
        }

    def predict(self, part: Part) -> tuple[npt.NDArray[np.float32], metrics.Score]:
        """Logits of a part in file order, and its score. A collective."""
        logits = logits_of(self.model, self.tokens_of(part), part.rows, self.world)
        return logits, metrics.score(logits, part.truth, self.checked.corpus.labels, self.config.training.seed)

    def score(self, part: Part) -> metrics.Score:
        """The score of a part as the model stands. A collective."""
        return self.predict(part)[1]


def _print(text: str) -> None:
    try:
        tqdm.write(text, file=sys.stdout)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has left; that must not end a training
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - stays open to the end


def _tokenize(checked: Checked) -> tuple[Any, dict[str, Tokens], int, Guess]:
    """Tokenise every table once; settle how much of a text is read. Before the process group, so nobody waits in it.

    Raises InputError where the default model knows few of the words.
    """
    corpus, wanted = checked.corpus, checked.config.data.max_length
    tokenizer = load_tokenizer(str(checked.model.path))
    column = corpus.text_column
    cap = checked.model.max_length
    tokens = {
        table.path: tokenize(tokenizer, table.as_dataset()[column], cap, identity=f"{table.sha256}/{column}")
        for table in corpus.tables
    }
    note = check_coverage(corpus.train, column, tokens[corpus.train.table.path], tokenizer, checked.config.model)
    if note is not None and launcher.decides_alone():
        _print(f"note: {note}")
    lengths = tokens[corpus.train.table.path].full_lengths[corpus.train.rows]
    max_length = wanted or default_max_length(lengths, cap)
    why = max_length_reason(lengths, max_length, cap, given=wanted is not None)
    guess = Guess("max length", f"{max_length} tokens", why, "--max-length")
    return tokenizer, {path: one.with_max_length(max_length) for path, one in tokens.items()}, max_length, guess


def prepare(checked: Checked) -> Job:
    """Tokenise, start the process group, load the model, settle precision, packing, batch size and folder.

    Says every guess. The caller closes `job.held`; on an error it is closed here.
    """
    quiet_libraries()
    if launcher.decides_alone():  # at once: a long table takes its time to tokenise
        for guess in checked.guesses:
            _print(guess.line())
    with telling_other_machines(lambda: checked.config.training.world):
        tokenizer, tokens, max_length, cut = _tokenize(checked)
    world = checked.config.training.world
    with contextlib.ExitStack() as held:
        held.push(lambda _kind, error, _trace: world.close(error))
        world.share_faults(None)
        job = _prepare(checked, world, held, tokenizer, tokens, max_length, cut)
        job.held = held.pop_all()
        return job


def _prepare(
    checked: Checked,
    world: World,
    held: contextlib.ExitStack,
    tokenizer: Any,
    tokens: dict[str, Tokens],
    max_length: int,
    cut: Guess,
) -> Job:
    training = checked.config.training
    check_alike(checked, world)
    check_enough(checked, world)
    precision = choose_precision(training.asked_precision, world.device, training.opt_level)
    loaded = load(checked, tokenizer, tokens)
    strategy = make_strategy(loaded.model, training, world)
    strategy.check_room(float(loaded.tokens[checked.corpus.train.table.path].lengths[checked.corpus.train.rows].mean()))
    destination = _settle(checked.destination, world, held)
    assert destination.folder is not None
    writes = _makes_files(destination.folder, destination, world, held, training.save_on_each_node)
    placed = strategy.place(destination.folder)
    precision, packing = settle_arithmetic(checked, loaded, world, precision)
    found = choices(loaded, packing, world, precision, training.train_batch_size)
    if placed is not None:
        found.append(placed)
    vocabulary = loaded.vocabulary
    job = Job(
        checked=checked,
        world=world,
        tokens=loaded.tokens,
        tokenizer=tokenizer,
        max_length=max_length,
        precision=precision,
        strategy=strategy,
        folder=destination.folder,
        batch_size=training.train_batch_size,
        guesses=[*checked.guesses, cut, *found],
        writes=writes,
        destination=destination,
        names=sorted({name for name in world.gather_texts(restarts.job_name() or "") if name}),
        vocabulary=vocabulary if writes or vocabulary is None else vocabulary.without_table(),
        adapted=loaded.adapted,
    )
    _tell(job, loaded.unused)
    return job


def _tell(job: Job, unused: list[str]) -> None:
    """Say every guess, where each rank sits, and what the person should know."""
    for guess in job.guesses[len(job.checked.guesses) :]:
        job.say(guess.line())
    job.say(f"ranks: {describe.line(job.world.topology, os.environ)}")
    if job.destination.resume and not job.checked.destination.resume:
        job.say(f"note: an earlier attempt of this job began {job.folder}; the launcher started it anew")
    for warning in (*job.checked.corpus.warnings, *job.checked.notes):
        job.say(f"note: {warning}")
    if unused:
        job.say(f"note: parameters that the classifier never uses are left alone: {', '.join(unused)}")
    if job.config.training.sync_batch_norm:
        job.say(f"note: {told(job.model.stock, job.world.world_size, job.world.replicas)}")
    if job.world.plan.advice:
        job.say(f"note: {job.world.plan.advice}")


def _settle(wanted: Destination, world: World, held: contextlib.ExitStack) -> Destination:
    """Where this run goes, decided, made and locked by the main process and told to all. A collective."""
    told = None
    with world.awaited():
        if world.is_main:
            before = begun_before(wanted)
            chosen = before or wanted
            folder, lock = claim_folder(chosen, restarted=before is not None)
            held.callback(lock.release)
            if not lock.held:
                _print(f"note: the disk of {folder} knows no locks; nothing keeps another run out of the folder")
            told = [str(folder), str(chosen.checkpoint or ""), chosen.overwrite, chosen.resume]
    name, named, overwrite, resume = world.broadcast(told)
    return Destination(Path(name), wanted.stem, Path(named) if named else None, overwrite, resume)


def _makes_files(
    folder: Path, destination: Destination, world: World, held: contextlib.ExitStack, each_node: bool
) -> bool:
    """Whether this process writes the files: the main one, and one of each machine under --save-on-each-node.

    Machines that share the main process's disk after all are found by a file it leaves there for a moment: two
    writers of one folder would spoil it. Raises InputError where the folder holds somebody's files on another
    machine. A collective.
    """
    if not each_node:
        return world.is_main
    sign = folder / world.broadcast(f"{TEMPORARY}shared-{uuid.uuid4().hex}" if world.is_main else None)
    if world.is_main:
        sign.touch()
    world.barrier()
    writes, fault = world.is_main, None
    if world.is_local_main and not world.is_main:
        try:
            folder.mkdir(parents=True, exist_ok=True)  # asks the server: a network disk's cache may lack the folder
            writes = sign.name not in os.listdir(folder)
            if writes:
                _, lock = claim_folder(destination, restarted=begun_before(destination) is not None)
                held.callback(lock.release)
        except (InputError, OSError) as error:
            fault = str(error)
    try:
        world.share_faults(fault)
    finally:
        if world.is_main:
            sign.unlink(missing_ok=True)
    if fault is not None:
        raise InputError(fault)
    return writes
