"""All that can be known to be wrong before torch is imported and before anything is written."""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from classify.config.schema import FIELDS, RunConfig, TrainingConfig
from classify.data.columns import Decision
from classify.data.inspect import inspect_corpus
from classify.data.reading import read_tables
from classify.data.source import STANDARD_INPUT
from classify.data.split_table import split_table
from classify.data.splits import Splits
from classify.errors import ErrorList, InputError
from classify.evaluation.predictions_file import check_columns_free
from classify.launch import device_plan, launcher
from classify.modeling import memory_estimate
from classify.modeling.hub import ModelFolder, resolve_model
from classify.tasks.base import Task
from classify.tasks.registry import recognise
from classify.training.output_dir import OutputDirPlan, nearest_existing, plan_output_dir
from classify.training.tracking import choose_trackers

# Of a number in predictions.csv, with the comma behind it.
_BYTES_A_SCORE = 12


@dataclass(frozen=True)
class RunInputs:
    """A run that can begin. `notes` are to be said."""

    config: RunConfig
    task: Task
    splits: Splits
    model: ModelFolder
    destination: OutputDirPlan
    trackers: tuple[str, ...]
    decisions: tuple[Decision, ...]
    notes: tuple[str, ...] = ()

    def choices(self) -> list[str]:
        """What was understood of the table, and chosen for it."""
        return [*(guess.line() for guess in self.decisions), *inspect_corpus(self.splits).brief()]

    def lines(self) -> list[str]:
        """The same, and what a person should know."""
        return [*self.choices(), *(f"note: {text}" for text in (*self.splits.warnings, *self.notes))]


def check(config: RunConfig) -> RunInputs:
    """Validate arguments, environment, tables, model name and output folder. Raises InputError with the faults."""
    config = config.validated()
    check_start(config.training)
    return check_inputs(config)


def check_inputs(config: RunConfig) -> RunInputs:
    """The part of `check` that looks at this machine's files; on another machine it may come out otherwise."""
    training = config.training
    faults = ErrorList()
    with faults.collect():
        destination = plan_output_dir(config)
    with faults.collect():
        trackers = choose_trackers(training.report_to)
    with faults.collect():
        _check_lora(config.model.lora)
    with faults.collect():
        _check_standard_input(config)
        tables = read_tables(config.data)
        task = recognise(tables)
        splits = split_table(tables, task, config.data, training.seed)
        for part in (splits.test or splits.validation, *splits.unlabelled.values()):
            check_columns_free(part.table, task.prediction_columns())
    with faults.collect():
        model = resolve_model(config.model.name, download=not faults, pooling=config.model.pooling)
        with faults.collect():
            _check_length(config, model)
        with faults.collect():
            _check_frozen(config, model)
    faults.raise_if_any()
    width = memory_estimate.width_of(model.config)
    config = config.resolve(len(splits.train), width)
    notes = _check_disk(config, splits, model, destination) if launcher.looks_at_folders() else ()
    if config.ignored:
        notes = (f"no effect here: {', '.join(config.ignored)}", *notes)
    decisions = (*_guesses(config, splits, model), *_recipe(config, splits, width))
    return RunInputs(config, task, splits, model, destination, trackers, decisions, notes)


def check_start(training: TrainingConfig) -> None:
    """Raise InputError where the flags contradict how this process was started."""
    place = launcher.read_launch(os.environ, training.local_rank)
    launcher.remember(training.local_rank)
    if training.nproc is not None and not launcher.started_here():
        if place.local_rank >= 0:
            raise InputError(
                f"--nproc {training.nproc} starts processes itself, but a launcher has already started "
                f"{place.world_size} (WORLD_SIZE); drop the flag, or start with python alone."
            )
        cores = launcher.available_cores()
        if isinstance(training.nproc, int) and training.nproc > 4 * cores:
            raise InputError(
                f"--nproc {training.nproc}: this machine has {cores} cores, and each process loads the model; "
                f"give at most {4 * cores}."
            )
        place = launcher.Launch("nproc", local_rank=0)  # as the processes will find themselves
    device_plan.check_strategy(place, training.strategy, training.ddp_backend, training.use_cpu)


def _check_standard_input(config: RunConfig) -> None:
    """Raise InputError where standard input cannot be the table: several would read it."""
    data = config.data
    paths = {
        "--data": data.data, "--eval-data": data.eval_data, "--test-data": data.test_data,
        "--labels": data.labels, "--eval-labels": data.eval_labels, "--test-labels": data.test_labels,
    }  # fmt: skip
    flags = [flag for flag, path in paths.items() if path == STANDARD_INPUT]
    if len(flags) > 1:
        raise InputError(f"{' and '.join(flags)} both name standard input (-), which holds one table; give a file.")
    if flags and (launcher.is_launched() or config.training.nproc is not None):
        raise InputError(f"{flags[0]} -: standard input reaches one of several processes only; give a file.")


def _check_lora(wanted: bool) -> None:
    if wanted and importlib.util.find_spec("peft") is None:
        raise InputError("--lora: the package peft is not installed; pip install peft, or drop the flag.")


def _check_length(config: RunConfig, model: ModelFolder) -> None:
    wanted = config.data.max_length
    if wanted is not None and wanted > model.max_length:
        raise InputError(
            f"--max-length {wanted}: {config.model.name} reads at most {model.max_length} tokens; give that or less."
        )


def _check_frozen(config: RunConfig, model: ModelFolder) -> None:
    wanted, layers = config.model.freeze_layers, memory_estimate.layer_count(model.config)
    if layers is not None and wanted > layers:
        raise InputError(f"--freeze-layers {wanted}: the model has {layers} layers; give that or less.")


def _check_disk(config: RunConfig, splits: Splits, model: ModelFolder, destination: OutputDirPlan) -> tuple[str, ...]:
    """Raise InputError where the disk has no room for the model; a note where the checkpoints may not fit.

    Files in a folder that the run resumes, or empties, count as room; a resumed run is never refused.
    """
    folder = destination.folder or Path("runs")
    training, part = config.training, splits.test or splits.validation
    saves = 1 + (math.ceil(training.epochs) if training.save_steps is None else training.save_total_limit)
    model_bytes, most = memory_estimate.disk_need(
        model.path, min(saves, max(2, training.save_total_limit) + 1), model.added_layers
    )
    predictions = part.table.arrow.nbytes * len(part) // len(part.table)
    predictions += len(part) * (len(splits.labels) + 2) * _BYTES_A_SCORE
    above = nearest_existing(folder)
    room = free = shutil.disk_usage(above).free
    has = f"{folder}: the disk of {above} has {memory_estimate.size_words(free)} free"
    if destination.folder is not None and folder.is_dir() and any(folder.iterdir()):
        room += sum(path.lstat().st_size for path in folder.rglob("*"))
        has += f" beside {memory_estimate.size_words(room - free)} in the folder"
    if model_bytes + predictions > room and not destination.resume:  # of which only a part may be left to do
        raise InputError(
            f"{has}, and the model takes {memory_estimate.size_words(model_bytes + predictions)}. Free some, or give "
            "an --output-dir on another disk."
        )
    if most + predictions > room:
        return (
            f"{has}, and this run may write up to {memory_estimate.size_words(most + predictions)}; "
            "--save-total-limit 1 keeps fewer checkpoints",
        )
    return ()


def _guesses(config: RunConfig, splits: Splits, model: ModelFolder) -> tuple[Decision, ...]:
    """What was chosen so far without being asked for."""
    table = splits.tables[0]
    values = config.flat()
    return (
        *(
            Decision(name.replace("_", " "), str(values[name]), f"from {source.name}", _flag(name))
            for name, source in config.sources.items()
            if source.kind in ("container", "earlier run")
        ),
        Decision("table", f"{table.path}, {len(table)} rows", table.form, table.flag),
        *splits.decisions,
        Decision("model", config.model.name, model.found, "--model"),
        _pooling(config.model.pooling, model),
    )


def _pooling(asked: str, model: ModelFolder) -> Decision:
    """What the classifier reads of a text."""
    value = "the mean of a text's tokens" if model.pooling == "mean" else "a text's first token"
    why = "the model was trained with it" if model.pooling == "mean" else "no file of the model asks for the mean"
    value += ", by one more layer" if model.added_layers else ""
    return Decision("pooling", value, why if asked == "auto" else "asked for", "pooling in --config")


def _recipe(config: RunConfig, splits: Splits, width: int) -> tuple[Decision, ...]:
    """The line on what the recipe chose; none where everything was given."""
    training = config.training
    chosen = [name for name in config.from_recipe if name != "contrastive_steps" or training.contrastive_steps]
    if not chosen:
        return ()
    words = {
        "batch_size": f"batches of {training.batch_size}",
        "num_train_epochs": f"{training.epochs:g} epochs" if training.epochs else "no epochs",
        "learning_rate": f"learning rate {training.peak_learning_rate:g}",
        "contrastive_steps": f"{training.contrastive_steps} steps on pairs of rows before",
    }
    why = f"for {len(splits.train):,} training rows and an encoder {width} wide"
    return (Decision("recipe", ", ".join(words[name] for name in chosen), why, ", ".join(map(_flag, chosen))),)


def _flag(name: str) -> str:
    """How a person sets a field: by its flag, or in a file."""
    flags = FIELDS[name][1].metadata["flags"]
    return flags[0] if flags else f"{name} in --config"
