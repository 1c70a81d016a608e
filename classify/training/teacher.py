"""A teacher labels the rows of --unlabelled-data; they become a source, and train the model if they do no harm.

The teacher is a finished run, or a model that is fine-tuned on the labelled rows first, in the same splits: another
model, or the run's own. Where the rows are cross-validated, the model of each fold labels the texts, too. Then the
student of a fold learns from a teacher that has not seen that fold, and its score stays honest; the final student
learns from their mean.

Training on a teacher's probabilities is distillation (Hinton et al., 2015), on those of the own model self-training.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors
from safetensors.numpy import save_file

from classify.config.run_config import RunConfig
from classify.config.schema import NO_TEACHER, SELF_TEACHER
from classify.data.splits import Source, Split, Splits
from classify.errors import Interrupted
from classify.files import atomic_path
from classify.launch.launch import Launch
from classify.modeling.result_folder import is_result_folder
from classify.prediction.predictor import load_predictor
from classify.tasks.base import Task
from classify.training.inputs import RunInputs
from classify.training.terminal import log

# Name of the source.
NAME = "teacher"
FILE = "teacher.safetensors"
# Probability that a text has none of the student's classes above which it teaches nothing.
_MOST_OUTSIDE = 0.5

Probabilities = npt.NDArray[np.float64]


def teach(inputs: RunInputs, launch: Launch, train: Callable[[RunConfig, str], Path]) -> RunInputs:
    """The inputs with the rows of --unlabelled-data as a source, labelled by the teacher, which `train` trains first.

    `train` gets the settings and the stem of the output folder's name. A collective.
    """
    config, splits, task = inputs.config, inputs.splits, inputs.task
    to_teach = splits.to_teach
    teacher = inputs.output_dir.recorded.get("config", {}).get("data", {}).get("teacher")  # of the run that is resumed
    if teacher is None or not is_result_folder(teacher):
        teacher = config.data.teacher or SELF_TEACHER
    assert to_teach is not None
    if teacher == SELF_TEACHER or not is_result_folder(teacher):
        what = "this run's own model" if teacher == SELF_TEACHER else teacher
        log(f"teacher: {what}, trained first on the labelled rows, labels {len(to_teach):,} texts (--teacher)")
        try:
            folder = train(_teacher_config(inputs, teacher), f"{inputs.output_dir.stem}-{NAME}")
        except Interrupted as error:
            stopped = str(error).partition("; continue")[0]
            again = f"teacher {stopped}; give the same command again, with --output-dir and --resume to continue"
            raise Interrupted(again, error.exit_code - 128, is_printed=error.is_printed) from None
        teacher = str(folder.absolute())
        log(f"student: learns from the labelled rows and from {folder}")
    # A resumed run finds the folder here, and need not train the teacher again.
    inputs = replace(inputs, config=config.replace(teacher=teacher))
    labels = _read(Path(teacher), splits)
    if labels is None:
        with load_predictor(teacher, use_cpu=config.training.use_cpu, precision="auto", launch=launch) as predictor:
            outputs = predictor.table_outputs(to_teach.table, splits.columns.texts, to_teach.rows)
            logits = predictor.task.split(outputs)[0]
            labels = predictor.labels, predictor.task.answers.probabilities(logits)[None]
    names, probabilities = labels
    whole = [probabilities.mean(axis=0), *(probabilities if len(probabilities) > 1 else ())]
    everyone, *by_fold = (_label(to_teach, task, _by_own_labels(task, names, part)) for part in whole)
    sure = np.flatnonzero(everyone.weights) if everyone.weights is not None else np.arange(len(everyone))
    name = NAME if all(source.name != NAME for source in splits.sources) else "--teacher"
    source = Source(name, everyone.take(sure), is_taught=True, by_fold=tuple(part.take(sure) for part in by_fold))
    return replace(inputs, splits=replace(splits, sources=(*splits.sources, source), to_teach=None))


def write(folder: Path, splits: Splits, labels: Sequence[str], probabilities: Sequence[Probabilities]) -> None:
    """Write the probabilities (rows, outputs) of the rows to teach, by the final model or by that of each fold."""
    with atomic_path(folder / FILE) as temporary:
        stacked = np.stack(probabilities).astype(np.float32)
        save_file({"probabilities": stacked}, temporary, metadata=_identity(splits) | {"labels": json.dumps(labels)})


def _read(folder: Path, splits: Splits) -> tuple[list[str], Probabilities] | None:
    """What a teacher of the same splits has written, its labels and probabilities (teachers, rows, outputs), if any."""
    try:
        with safetensors.safe_open(folder / FILE, "np") as file:
            metadata = dict(file.metadata())
            labels = json.loads(metadata.pop("labels"))
            return (labels, file.get_tensor("probabilities")) if metadata == _identity(splits) else None
    except (OSError, safetensors.SafetensorError):
        return None


def _identity(splits: Splits) -> dict[str, str]:
    """A hash of the rows to teach, and of the folds."""
    assert splits.to_teach is not None
    digest = hashlib.sha256(splits.to_teach.hashes(splits.columns.text).tobytes())
    digest.update(splits.train.hashes(splits.columns.text).tobytes())
    digest.update(b"" if splits.folds is None else splits.folds.tobytes())
    return {"identity": digest.hexdigest()}


def _teacher_config(inputs: RunInputs, teacher: str) -> RunConfig:
    """The settings of the teacher's run: those given for the student, in the same splits, in half of the time."""
    values, folder = inputs.config.explicit_values(), inputs.output_dir.folder
    values |= {"teacher": NO_TEACHER, "resume_from_checkpoint": inputs.output_dir.resume and folder is not None}
    values["output_dir"] = None if folder is None else f"{folder}-{NAME}"
    if teacher != SELF_TEACHER:
        values["model"] = teacher
    if values.get("split_like") is None:
        values["folds"] = inputs.splits.num_folds
    if values.get("max_minutes") is not None:
        values["max_minutes"] /= 2
    return RunConfig.from_values(values)


def _by_own_labels(task: Task, names: Sequence[str], probabilities: Probabilities) -> Probabilities:
    """The columns of a teacher's probabilities by the student's labels; 0 for those that the teacher does not know."""
    if not task.answers.has_labels:
        return probabilities
    own = np.zeros((len(probabilities), len(task.labels)))
    for place, name in enumerate(names):
        label = task.targets.classes.of(name) or name
        if label in task.labels:
            own[:, task.labels.index(label)] += probabilities[:, place]
    return own


def _label(rows: Split, task: Task, probabilities: Probabilities) -> Split:
    """Rows with a teacher's labels; of one label a row, the weight is the probability of the most probable one."""
    soft, weights = None, None
    if task.answers.has_confidence:
        weights = np.where(probabilities.sum(axis=1) > _MOST_OUTSIDE, probabilities.max(axis=1), 0).astype(np.float32)
        probabilities = probabilities / probabilities.sum(axis=1, keepdims=True).clip(min=1e-9)
    if task.answers.has_labels:
        soft = probabilities.astype(np.float32)
    return Split(rows.table, rows.rows, task.answers.decide(probabilities), soft, weights)
