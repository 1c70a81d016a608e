"""Going on from a checkpoint: found and read by the main process, handed to the others.

The others may sit on machines that do not share its disk, so they hear what was found and are sent the tensors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from classify.config.fields import shown_name
from classify.config.schema import FIELDS, RunConfig
from classify.errors import CheckpointError, InputError
from classify.training import checkpoint
from classify.training.checkpoint import Checkpoint
from classify.training.output import Output
from classify.training.progress import Progress
from classify.training.strategies.base import Strategy


def find(output: Output) -> Checkpoint | None:
    """The checkpoint to go on from, the same on every rank; None: start afresh. A collective.

    Raises CheckpointError where none can be trusted.
    """
    answer = output.world.broadcast(_answer(output) if output.world.is_main else None)
    if answer is None:
        return None
    if "fault" in answer:
        raise CheckpointError(answer["fault"])
    return Checkpoint(Path(answer["path"]), answer["state"])


def _answer(output: Output) -> dict[str, Any] | None:
    """What the main process has found, or why none can be trusted, as JSON can say it."""
    try:
        saved = _newest(output)
    except CheckpointError as error:
        return {"fault": str(error)}
    return None if saved is None else {"path": str(saved.path), "state": saved.state}


def _newest(output: Output) -> Checkpoint | None:
    """On the main process: the checkpoint named, or the newest that verifies."""
    named = output.destination.checkpoint
    saved: Checkpoint | None
    if named is not None:
        saved = checkpoint.load(named)
    else:
        saved, problems = checkpoint.newest(output.checkpoints)
        for problem in problems:
            output.say(f"note: a newer checkpoint is passed over: {problem}")
    if saved is not None:
        _require_known_state(saved)
    best = saved.state["progress"]["best"] if saved is not None else None
    if saved is not None and best is not None and int(best["step"]) != saved.step:
        try:
            checkpoint.load(output.checkpoints / checkpoint.name_of(int(best["step"])))
        except CheckpointError as error:
            output.say(
                f"note: the weights of the best epoch so far cannot be trusted, so the best is sought anew: {error}"
            )
            saved.state["progress"] |= {"best": None, "scored": None, "waited": 0}
    return saved


def _require_known_state(saved: Checkpoint) -> None:
    """Raise CheckpointError where the state is not in the form that this version writes."""
    try:
        Progress(**saved.state["progress"])
        missing = {"probe", "scaler", "identity"} - set(saved.state)
        if missing:
            raise KeyError(min(missing))
    except (TypeError, KeyError) as error:
        raise CheckpointError(
            f"{saved.path}: another version of this program wrote its state.json ({type(error).__name__}: {error}). "
            "Resume with that version (run.json names it), or start afresh with --overwrite-output-dir."
        ) from None


# Settings of a run's start, which a checkpoint lies behind.
_OF_THE_START = ("preset", "head", "contrastive_steps")


def require_same_run(
    saved: Checkpoint, identity: dict[str, Any], config: RunConfig, model_folder: str, output: Output
) -> None:
    """Raise InputError where a checkpoint is of a run that was started with other settings."""
    before = saved.state["identity"]
    now = dict(identity)
    if saved.state.get("model_folder") == model_folder:
        now.pop("model")  # may be named otherwise from another working directory
    if "texts" not in before:
        now.pop("texts")
        output.say("note: an earlier version wrote the checkpoint; whether the tables are the same cannot be compared")
    changed = [
        f"{key} was {before.get(key)!r} and is {now[key]!r}"
        if key != "texts"  # whose hashes say nothing to a person
        else "the texts, their labels or the rows chosen from them (--max-train-samples, --seed) differ"
        for key in now
        if before.get(key) != now[key]
    ]
    settings, current = saved.state.get("settings", {}), config.flat()
    changed += [
        f"{shown_name(FIELDS[name][1])} was {settings[name]} and is {current[name]}"
        for name in _OF_THE_START
        if name in settings and settings[name] != current[name]
    ]
    if changed:
        raise InputError(
            f"--resume {output.folder}: the run was started with other settings: {'; '.join(changed)}. Give the same, "
            "or start another run without --resume."
        )


def is_finished(output: Output, config: RunConfig, saved: Checkpoint | None, end: int) -> bool:
    """Whether there is nothing left to do in this folder; says what there is to do or not. A collective."""
    status = None
    if output.world.is_main:
        try:
            status = json.loads((output.folder / "run.json").read_text(encoding="utf-8"))["status"]
        except (OSError, ValueError, KeyError, TypeError):
            status = None
    finished = output.world.broadcast(status) == "finished"
    if finished and saved is None:
        output.say(
            f"{output.folder}: this run is finished, and without its checkpoints it cannot be extended; nothing to do."
        )
    elif finished and saved is not None and saved.state["progress"]["position"] >= end:
        more = "More --epochs would extend it."
        if Progress(**saved.state["progress"]).waited_long(config.training.patience):
            more = "A longer --patience would extend it."
        output.say(f"{output.folder}: this run is finished; nothing to do. {more}")
    elif saved is None:
        output.say(f"{output.folder}: no finished checkpoint to resume from; starting afresh.")
        return False
    else:
        output.say(f"{output.folder}: resuming from {saved.path.name}")
        _say_changes(output, config, saved)
        return False
    return True


def _say_changes(output: Output, config: RunConfig, saved: Checkpoint) -> None:
    """Say which settings that bear on learning are others than those the checkpoint was trained with."""
    before, now = saved.state.get("settings", {}), config.flat()
    changed = [
        f"{shown_name(FIELDS[name][1])} was {before[name]} and is {now[name]}"
        for name in now
        if FIELDS[name][1].metadata["learning"] and name in before and before[name] != now[name]
    ]
    if changed:
        output.say(f"note: {'; '.join(changed)} from step {saved.step} on")


def take_weights(output: Output, strategy: Strategy, step: int) -> bool:
    """Load the weights of an earlier step; False where they cannot be trusted any more. A collective."""
    world, tensors = output.world, None
    if world.is_main:
        try:
            tensors = checkpoint.load(output.checkpoints / checkpoint.name_of(step)).model_tensors()
        except CheckpointError as error:
            output.say(f"note: the weights of step {step} cannot be trusted, so the last ones are kept: {error}")
    if not world.broadcast(tensors is not None):
        return False
    strategy.load_weights(world.broadcast_tensors(tensors))
    return True
