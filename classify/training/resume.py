"""Find the checkpoint to continue from, and compare its run with this one.

Ranks may be on machines that do not share the main process's disk, so it finds and reads, and sends them the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from classify.config.fields import shown_name
from classify.config.run_config import FIELDS, RunConfig, fields_that_affect
from classify.data.sampler import BatchSampler
from classify.errors import CheckpointError, InputError
from classify.training import checkpoint
from classify.training.checkpoint import Checkpoint
from classify.training.output_dir import Output
from classify.training.strategies.base import Strategy
from classify.training.terminal import log


def find(output: Output) -> Checkpoint | None:
    """Find the checkpoint to continue from, the same on every rank; None: start afresh. A collective.

    Raises CheckpointError where there are some, but none is valid.
    """
    path, state, fault = None, dict[str, Any](), ""
    with output.world.sync_errors():
        if output.world.is_main:
            try:
                path, state = _find_on_main(output)
            except CheckpointError as error:
                fault = str(error)
    path, state, fault = output.world.broadcast([path, state, fault])
    if fault:
        raise CheckpointError(fault)
    return None if path is None else Checkpoint(Path(path), state)


def _find_on_main(output: Output) -> tuple[str | None, dict[str, Any]]:
    """Load the checkpoint that --resume names, or the newest that verifies; (None, {}) where there are none."""
    named = output.plan.checkpoint
    if named is None:
        saved, problems = checkpoint.find_newest(output.checkpoints)
        for problem in problems:
            log(f"note: a newer checkpoint is skipped, since it is not valid: {problem}")
        if saved is None:
            return None, {}
    else:
        try:
            saved = checkpoint.load(named)
        except CheckpointError as error:
            raise CheckpointError(
                f"{error}. --resume {output.folder} takes the newest valid checkpoint instead."
            ) from None
    try:
        if missing := checkpoint.STATE - set(saved.state):
            raise KeyError(min(missing))
        progress = saved.progress
    except (TypeError, KeyError) as error:
        raise CheckpointError(
            f"{saved.path}: another version of this program wrote its state.json ({type(error).__name__}: {error}). "
            "Resume with that version (run.json names it), or start over with --overwrite-output-dir."
        ) from None
    return str(saved.path), {**saved.state, "progress": vars(progress)}


# Values that would not help in a message, as words.
_DIFFER = {
    "texts": "the texts, their labels or the rows chosen from them (--max-train-samples, --seed) differ",
    "parts": "the functions that were given from Python (loss, metrics) differ",
    "label_texts": "the label names as training texts (--label-texts, --language) differ",
}


def require_same_run(
    saved: Checkpoint, identity: dict[str, Any], settings: dict[str, Any], model_folder: str, output: Output
) -> None:
    """Raise InputError where the run of a checkpoint was started with other settings."""
    before = saved.state["identity"]
    is_start_all = not settings["num_train_epochs"] and settings["max_steps"] < 0
    # Its name may be another from another working directory.
    not_compared = {"model"} if saved.state["model_folder"] == model_folder else set()
    # Only a run without epochs has label texts; it may be extended by some.
    not_compared |= set() if is_start_all else {"label_texts"}
    now = {name: value for name, value in identity.items() if name not in not_compared}
    changed = [
        _DIFFER.get(name)
        or f"{shown_name(FIELDS[name][1]) if name in FIELDS else name} was {before.get(name)!r} and is {value!r}"
        for name, value in now.items()
        if before.get(name) != value
    ]
    if before.get("batch_size") != now.get("batch_size") and settings["per_device_train_batch_size"]:
        changed.append("--per-device-train-batch-size counts for each device, --batch-size for all")
    # Without epochs the start is all there is, so what contrastive steps learn from cannot change later.
    initial = fields_that_affect("start", *(("steps", "start without epochs") if is_start_all else ()))
    compared = {*fields_that_affect("identity"), *fields_that_affect("computation")}
    changed += _list_changes(saved.state["settings"], settings, [name for name in initial if name not in compared])
    if changed:
        raise InputError(
            f"--resume {output.folder}: the run was started with other settings: {'; '.join(changed)}. Give the same, "
            "or start another run without --resume."
        )


def is_finished(output: Output, config: RunConfig, saved: Checkpoint | None, batches: BatchSampler) -> bool:
    """Find whether nothing is left to do in this folder; print that, or where training begins. A collective."""
    status = None
    if output.world.is_main:
        status = output.plan.recorded.get("status")
    finished = output.world.broadcast(status) == "finished"
    if saved is None:
        text = (
            "this run is finished, and without its checkpoints it cannot be extended; nothing to do."
            if finished
            else "no checkpoint to resume from; starting from the beginning."
        )
    elif finished and saved.progress.position >= saved.progress.end_of_training(config.training, batches):
        more = "A longer --patience" if saved.progress.is_out_of_patience(config.training.patience) else "More --epochs"
        text = f"this run is finished; nothing to do. {more} would extend it."
    else:
        finished, text = False, f"resuming from {saved.path.name}"
    log(f"{output.folder}: {text}")
    return finished


def log_changes(output: Output, now: dict[str, Any], saved: Checkpoint) -> None:
    before = saved.state["settings"]
    changed = _list_changes(before, now, fields_that_affect("later steps", "computation", "result"))
    if changed:
        log(f"note: {'; '.join(changed)} from step {saved.step} on")


def _list_changes(before: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    return [
        f"{shown_name(FIELDS[name][1])} was {before[name]} and is {now[name]}"
        for name in names
        if name in before and before[name] != now[name]
    ]


def load_step_weights(output: Output, strategy: Strategy, step: int) -> bool:
    """Load the weights of an earlier step; return False where their checkpoint is not valid. A collective."""
    world, tensors = output.world, {}
    if world.is_main:
        try:
            tensors = checkpoint.load(output.checkpoints / checkpoint.folder_name(step)).model_tensors()
        except (CheckpointError, OSError) as error:
            log(f"note: the checkpoint of step {step} is not valid, so the last weights are kept: {error}")
    tensors = world.broadcast_tensors(tensors if world.is_main else None)
    if tensors:
        strategy.weights.load(tensors)
    return bool(tensors)
