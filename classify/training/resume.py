"""Going on from a checkpoint: found and read by the main process, handed to the others.

The others may sit on machines that do not share its disk, so they are told what was found and sent the tensors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from classify.config.fields import shown_name
from classify.config.schema import FIELDS
from classify.data.columns import Guess
from classify.errors import CheckpointError, InputError
from classify.modeling.precision import for_training
from classify.training import checkpoint, train_state
from classify.training.checkpoint import Checkpoint
from classify.training.job import Job
from classify.training.output_dir import CHECKPOINTS

# Settings that a resumed run may change without learning otherwise, or that its identity answers for.
_NO_LEARNING = {
    *("data", "eval_data", "test_data", "text_column", "label_column", "max_length", "max_train_samples"),
    *("model", "head", "pooling", "lora", "lora_rank", "lora_alpha", "freeze_embeddings", "freeze_layers"),
    *("compact_vocabulary", "keep", "patience", "preset", "contrastive_steps"),
    *("batch_size", "per_device_train_batch_size", "seed", "precision", "fp16", "bf16"),
    *("use_cpu", "local_rank", "nproc", "ddp_backend", "device_memory"),
    *("output_dir", "overwrite_output_dir", "resume_from_checkpoint", "save_steps", "save_on_each_node"),
    *("save_total_limit", "logging_steps", "report_to"),
}
# Name of the id map among the weights of a checkpoint with a compact embedding table.
VOCABULARY = "vocabulary"


def find_checkpoint(job: Job) -> Checkpoint | None:
    """The checkpoint to go on from, the same on every rank; None: start afresh, which is said. A collective.

    Raises CheckpointError where none can be trusted, and InputError where the run was started with other settings.
    """
    told = job.world.broadcast(_told(job) if job.world.is_main else None)
    if told is None:
        return None
    if "fault" in told:
        raise CheckpointError(told["fault"])
    found = Checkpoint(Path(told["path"]), told["state"])
    before = found.state["identity"]
    _keep_precision(job, before.get("precision"))
    now = job.identity()
    if found.state.get("model_folder") == str(job.checked.model.path.resolve()):
        now.pop("model")  # may be named otherwise from another working directory
    changed = [
        f"{key} was {before.get(key)!r} and is {now[key]!r}"
        if key != "data"  # whose hashes say nothing to a person
        else "the tables, their columns or the rows chosen from them (--max-train-samples, --seed) differ"
        for key in now
        if before.get(key) != now[key]
    ]
    if changed:
        raise InputError(
            f"--resume {job.folder}: the run was started with other settings: {'; '.join(changed)}. Give the same, or "
            "start another run without --resume."
        )
    return found


def _keep_precision(job: Job, before: str | None) -> None:
    """Go on in the precision that a run on a CPU began in, where nobody asks for one: processors choose differently."""
    chosen = job.precision
    if chosen.automatic and chosen.device_type == "cpu" and before in ("bf16", "fp32") and before != chosen.name:
        job.precision = for_training(before, "the run began in it")
        job.model.compute_in(job.precision)
        guess = Guess("precision", before, job.precision.why, "--precision")
        job.guesses = [guess if one.what == guess.what else one for one in job.guesses]
        job.say(guess.line())


def _told(job: Job) -> dict[str, Any] | None:
    """What the main process tells the others: the checkpoint that it has found, or why none can be trusted."""
    try:
        found = _look(job)
    except CheckpointError as error:
        return {"fault": str(error)}
    return None if found is None else {"path": str(found.path), "state": found.state}


def _look(job: Job) -> Checkpoint | None:
    """On the main process: the checkpoint named, or the newest that verifies."""
    named = job.destination.checkpoint
    folder = job.folder / CHECKPOINTS
    found: Checkpoint | None
    if named is not None:
        found = checkpoint.load(named)
    else:
        found, problems = checkpoint.newest(folder)
        for problem in problems:
            job.say(f"note: a newer checkpoint is passed over: {problem}")
    best = found.state["progress"]["best"] if found is not None else None
    if found is not None and best is not None and int(best["step"]) != found.step:
        try:
            checkpoint.load(folder / checkpoint.name_of(int(best["step"])))
        except CheckpointError as error:
            job.say(
                f"note: the weights of the best epoch so far cannot be trusted, so the best is sought anew: {error}"
            )
            found.state["progress"] |= {"best": None, "scored": None, "waited": 0}
    return found


def is_finished(job: Job, found: Checkpoint | None, end: int) -> bool:
    """Whether there is nothing left to do in this folder; says what there is to do or not. A collective."""
    status = None
    if job.world.is_main:
        try:
            status = json.loads((job.folder / "run.json").read_text(encoding="utf-8"))["status"]
        except (OSError, ValueError, KeyError, TypeError):
            status = None
    finished = job.world.broadcast(status) == "finished"
    if finished and found is None:
        job.say(
            f"{job.folder}: this run is finished, and without its checkpoints it cannot be extended; nothing to do."
        )
    elif finished and found is not None and found.state["progress"]["position"] >= end:
        progress = train_state.Progress(**found.state["progress"])
        more = "More --epochs would extend it."
        if job.config.training.cycles > 1:
            more = "An average cannot be extended."
        elif progress.waited_long(job.config.training.patience):
            more = "A longer --patience would extend it."
        job.say(f"{job.folder}: this run is finished; nothing to do. {more}")
    elif found is None:
        job.say(f"{job.folder}: no finished checkpoint to resume from; starting afresh.")
        return False
    else:
        job.say(f"{job.folder}: resuming from {found.path.name}")
        _tell_changes(job, found)
        return False
    return True


def _tell_changes(job: Job, found: Checkpoint) -> None:
    """Say which settings that bear on learning are others than those the checkpoint was trained with."""
    before, now = found.state.get("settings", {}), job.config.flat()
    changed = [
        f"{shown_name(FIELDS[name][1])} was {before[name]} and is {now[name]}"
        for name in now
        if name not in _NO_LEARNING and name in before and before[name] != now[name]
    ]
    if changed:
        job.say(f"note: {'; '.join(changed)} from step {found.step} on")


def restore(job: Job, found: Checkpoint) -> train_state.TrainState:
    """Weights, optimizer, scaler and progress as they were. A collective."""
    main = job.world.is_main
    weights = job.world.broadcast_tensors(found.model_tensors() if main else None)
    if job.vocabulary is not None and job.vocabulary.compacted:
        _check_vocabulary(found, weights.get(VOCABULARY), job.vocabulary.as_tensor())
    job.strategy.load_weights(weights)
    if job.writes:
        job.average.restore(weights, found.state.get("averaged", 0))
    state = train_state.make_state(job.strategy, job.objective)
    tensors = job.world.broadcast_tensors(found.optimizer_tensors() if main else None)
    job.strategy.load_optimizer(tensors, found.state["scaler"])
    state.progress = train_state.Progress(**found.state["progress"])
    state.parts = max(state.parts, state.progress.parts)
    job.probe = found.state["probe"]
    return state


def _check_vocabulary(found: Checkpoint, before: torch.Tensor | None, now: torch.Tensor) -> None:
    """Rows of a compact table mean tokens only together with the ids they had."""
    if before is None or not torch.equal(before.cpu(), now):
        raise CheckpointError(
            f"{found.path}: its embedding table is of other tokens than these tables hold; start afresh with "
            "--overwrite-output-dir."
        )


def take_weights(job: Job, step: int) -> bool:
    """Load the weights of an earlier step; False where they cannot be trusted any more. A collective."""
    tensors = None
    if job.world.is_main:
        try:
            tensors = checkpoint.load(job.folder / CHECKPOINTS / checkpoint.name_of(step)).model_tensors()
        except CheckpointError as error:
            job.say(f"note: the weights of step {step} cannot be trusted, so the last ones are kept: {error}")
    if not job.world.broadcast(tensors is not None):
        return False
    job.strategy.load_weights(job.world.broadcast_tensors(tensors))
    return True
