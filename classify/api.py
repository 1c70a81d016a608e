"""The program from Python: `train`, `load` and `Run`; a thin layer over `training` and `prediction`."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from classify import distributed as processes, modeling, prediction, report, tables, tasks, training
from classify.config.parser import merge_settings
from classify.config.run_config import RunConfig
from classify.errors import InputError
from classify.files import read_json
from classify.launch.launch import Launch
from classify.versions import check_platform

if TYPE_CHECKING:
    from classify.prediction.explanations import WordAttribution
    from classify.prediction.predictor import Predictor
    from classify.tables.table import Table
    from classify.training.parts import LossFunction, Metric, Parts, TrainerCallback


class Run:
    """A finished run: its scores, and its model, which is loaded at the first prediction.

    `folder` is the output folder, as an absolute path. As a context manager it frees the model on exit.
    """

    def __init__(self, folder: str | os.PathLike[str], *, use_cpu: bool = False, distributed: bool = False):
        """Open an output folder. Raises InputError if it is not one.

        With `distributed` the processes of a launcher share the texts of each prediction; see `load`.
        """
        self.folder = Path(folder).absolute()
        self._use_cpu, self._distributed = use_cpu, distributed
        modeling.result_folder.read_settings(str(self.folder))

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def __fspath__(self) -> str:
        return str(self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @functools.cached_property
    def metrics(self) -> dict[str, Any]:
        return dict(read_json(self.folder / "metrics.json"))

    @functools.cached_property
    def labels(self) -> list[str]:
        return tasks.registry.trained_task(str(self.folder)).labels

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    def predict(self, texts: Iterable[Any]) -> list[Any]:
        """For each text its label, a list of labels (multi-label), a number (regression), or of several columns a
        dictionary of these by column.

        `texts` are strings, or pairs of strings for a model of text pairs: a list, an array, a column of a table; or a
        DataFrame with the text columns of training, or with one column. Raises TypeError for anything else, and
        InputError for a DataFrame without these columns.
        """
        return self._predictor.answers(*self._predictor.predict(self._read_texts(texts)))

    def predict_proba(self, texts: Iterable[Any]) -> npt.NDArray[np.float64]:
        """The probabilities (texts, labels), or the scores (texts, 1) of a regression; texts as `predict`."""
        return self._predictor.probabilities(self._read_texts(texts))

    def _read_texts(self, texts: Any) -> Iterable[Any]:
        """The texts, or pairs of texts, of a DataFrame. Raises TypeError for a missing one."""
        is_table = (hasattr(texts, "columns") and hasattr(texts, "__arrow_c_stream__")) or hasattr(texts, "with_format")
        if not is_table:
            return texts
        typed = as_arrow(texts, None)
        read, columns = prediction.inputs.read_texts(in_memory(typed, "table"), self._predictor.settings)
        for name in columns.named:
            if name in typed.column_names and typed.column(name).null_count:
                place = typed.column(name).is_null().to_pylist().index(True)
                raise TypeError(f"texts must be strings. Got None in column {name!r} at index {place} instead.")
        inputs = [read.column(name) for name in columns.inputs]
        return inputs[0] if len(inputs) == 1 else list(zip(*inputs, strict=True))

    def evaluate(self, table: Any, *, output_dir: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Score the model on a table with labels, a path or a DataFrame; the scores are named as in metrics.json.

        Where the model was trained on some of the texts, `unseen` has the scores of the others.

        With `output_dir` the folder of `classify evaluate` is written there, with its report. Raises InputError for a
        table without the columns of training, or a folder that is not empty. Metrics of your own are not among them.
        """
        if output_dir is not None and Path(output_dir).exists() and any(Path(output_dir).iterdir()):
            raise InputError(f"evaluate: output_dir {output_dir} is not empty; give another folder.")
        read = os.fspath(table) if isinstance(table, str | os.PathLike) else in_memory(as_arrow(table, None), "table")
        with tempfile.TemporaryDirectory(prefix="classify-") as made:
            settings = modeling.result_folder.read_settings(str(self.folder))
            found, texts = prediction.inputs.read_texts(read, settings)
            labelled = prediction.evaluate.read_labelled(str(self.folder), found, texts)
            folder = Path(made) / "evaluation" if output_dir is None else Path(output_dir)
            if (trained := labelled.trained).any():
                seen = f"{trained.sum()} of {len(trained)} texts; the scores of the others are under 'unseen'"
                warnings.warn(f"the model was trained on {seen if not trained.all() else 'all texts'}", stacklevel=2)
            scores, unseen = prediction.evaluate.evaluate(self._predictor, labelled, folder)
            if output_dir is not None:
                report.page.write_pages(folder)
        return {**scores.as_json(), **({} if unseen is None else {"unseen": unseen.as_json()})}

    def explain(self, text: str | tuple[str, str], label: str | None = None) -> list[WordAttribution]:
        """By how much each word raises the logit of a label, the predicted one by default.

        Of several label columns give the name of one, or a label as in "topic: billing". `text` is a string, or a
        tuple of two for a model of text pairs.
        """
        return self._predictor.explain(text, label)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_predictor"}

    def close(self) -> None:
        """Free the model; it is loaded again when needed."""
        if "_predictor" in self.__dict__:
            self._predictor.close()
            del self.__dict__["_predictor"]

    @functools.cached_property
    def _predictor(self) -> Predictor:
        return prediction.predictor.load_classifier(
            str(self.folder), use_cpu=self._use_cpu, distributed=self._distributed
        )


@overload
def train(
    data: RunConfig,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    init_method: str | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    loss: LossFunction | None = None,
    metrics: Mapping[str, Metric] | None = None,
) -> Path: ...


@overload
def train(data: Any, labels: Sequence[Any] | None = None, **options: Any) -> Run: ...


def train(
    data: Any,
    labels: Sequence[Any] | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    init_method: str | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    loss: LossFunction | str | None = None,
    metrics: Mapping[str, Metric] | None = None,
    **options: Any,
) -> Run | Path:
    """Train a classifier and return its `Run`.

    `data` is a path, a DataFrame (of pandas, polars, or anything with `__arrow_c_stream__`), a `datasets.Dataset`, or
    a list of texts beside `labels`. `options` are the flags of `classify train --help-all` by name: `epochs=3`,
    `text_column="body"`, `output_dir="runs/mine"`.

    Your own parts, each the same in every process:
    - `callbacks` are `classify.TrainerCallback`s.
    - `loss(logits, targets)` returns one value per row, (n,), of logits (n, outputs) in fp32: class indices (n,), zeros
      and ones (n, labels), or standardized scores (n,) are the targets. A step's loss is the mean over its rows.
    - `metrics` are functions of probabilities (rows, outputs) and targets that return a number, larger is better; their
      names may be `metric_for_best_model`.
    A run is resumed with the same loss and metrics.

    If `data` is a `RunConfig`, returns the path of the output folder. Processes that you start yourself pass `rank`,
    `world_size` and the rendezvous address (`init_method="tcp://127.0.0.1:29500"`).

    Raises InputError (settings, data), TypeError or ValueError (tables in memory), CheckpointError (there are
    checkpoints, but none is valid) and Interrupted.
    """
    check_platform()
    named_loss = {"loss": loss} if isinstance(loss, str) else {}
    parts = training.parts.Parts(callbacks, None if isinstance(loss, str) else loss, metrics or {})
    if isinstance(data, RunConfig):
        if labels is not None or options or named_loss:
            raise TypeError("train(RunConfig) takes no labels and no options; change the RunConfig.")
        return _run(data, _find_place(rank, world_size, init_method, data.training.local_rank), parts)
    launch = _find_place(rank, world_size, init_method, int(options.get("local_rank", -1)))
    return train_on_table(data, labels, {**options, **named_loss}, launch, parts)


def _find_place(rank: int | None, world_size: int | None, init_method: str | None, local_rank: int) -> Launch:
    """The place of this process: the caller's, else the one that a launcher's variables say."""
    if rank is not None and world_size is not None and init_method is not None:
        return Launch.spawned(rank, world_size, init_method, local_rank)
    if rank is not None or world_size is not None or init_method is not None:
        raise InputError("train needs rank, world_size and init_method together; give all three, or none.")
    return Launch.read(local_rank=local_rank)


def train_on_table(
    data: Any, labels: Any, options: dict[str, Any], launch: Launch, parts: Parts | None = None, *, pages: bool = True
) -> Run:
    config, in_memory = _configure(data, labels, options)
    return Run(_run(config, launch, parts, in_memory, pages=pages), use_cpu=config.training.use_cpu)


def _run(
    config: RunConfig,
    launch: Launch,
    parts: Parts | None = None,
    in_memory: Mapping[str, Table] | None = None,
    *,
    pages: bool = True,
) -> Path:
    processes.torch_settings.prepare_threads()  # these stay: a forked process has no others
    timeline = training.terminal.Timeline()
    with processes.torch_settings.preserve_settings():
        folder = training.run.train(config, launch=launch, timeline=timeline, parts=parts, in_memory=in_memory)
        if pages:
            report.page.write_pages_of_run(folder, config.training, timeline, launch)
    return folder


def _configure(data: Any, labels: Any, options: Mapping[str, Any]) -> tuple[RunConfig, dict[str, Table]]:
    """The settings of a training, and its tables in memory by flag, which settings call by their argument."""
    settings = {name.replace("-", "_"): _as_setting(name, value) for name, value in options.items()}
    by_flag: dict[str, Table] = {}
    others = {name: options.get(name) for name in ("eval_data", "test_data", "unlabelled_data")}
    for name, table in {"data": data, **others}.items():
        if isinstance(table, str | os.PathLike):
            if name == "data" and labels is not None:
                raise TypeError("train: labels are for a list of texts; the table of a path has its own.")
            settings[name] = os.fspath(table)
        elif table is not None or name == "data":
            typed = as_arrow(table, labels if name == "data" else None)
            by_flag[f"--{name.replace('_', '-')}"] = in_memory(typed, name)
            settings[name] = name
    return merge_settings(settings), by_flag


def _as_setting(name: str, value: Any) -> Any:
    """A keyword argument as YAML would have it. Raises TypeError for a dictionary where a file is expected."""
    if isinstance(value, dict) and name == "class_weights":
        return json.dumps(value)
    if isinstance(value, dict):
        if name != "label_names":
            raise TypeError(f"train: {name} must not be a dictionary; only label_names and class_weights may be one.")
        if any(sign in f"{label}{shown}" for label, shown in value.items() for sign in ",="):
            raise ValueError("train: a label or name in label_names contains , or =; rename it in the table.")
        return [f"{label}={shown}" for label, shown in value.items()]
    if isinstance(value, np.generic):
        return value.item()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def inspect(data: Any, labels: Sequence[Any] | None = None, **options: Any) -> dict[str, Any]:
    """What `classify inspect --json` prints: rows, columns, task, classes, splits and findings.

    Takes the arguments of `train` but for your own parts, and raises its errors; nothing is trained.
    """
    config, by_flag = _configure(data, labels, options)
    return asdict(training.inputs.inspect_run(training.inputs.check(config, in_memory=by_flag)))


def compare(*folders: str | os.PathLike[str]) -> dict[str, Any]:
    """Compare runs or evaluations on the rows that all scored, the first is the reference; as `compare --json`.

    Raises InputError where tasks differ, or no row is shared.
    """
    if len(folders) < 2:
        raise InputError(f"compare: expected two folders or more. Got {len(folders)} instead.")
    compared = report.comparison.compare([Path(folder) for folder in folders])
    content = {name: asdict(comparison) for name, comparison in compared.items()}
    return content.get("", content)


def load(folder: str | os.PathLike[str], *, use_cpu: bool = False, distributed: bool = False) -> Run:
    """Open the output folder of a run, trained on any device. Raises InputError if it is not one.

    This process predicts by itself. With `distributed` the processes that a launcher started form a group and share the
    texts: each makes the same calls with the same texts, and gets all results.
    """
    return Run(folder, use_cpu=use_cpu, distributed=distributed)


def in_memory(typed: pa.Table, name: str) -> Table:
    """An Arrow table as one that was read; messages call it `name`."""
    table = tables.arrow_file.from_arrow(typed, name, "", "in memory")
    digest = hashlib.sha256("".join(map(table.digest, table.columns)).encode()).hexdigest()
    return replace(table, sha256=digest)


def as_arrow(data: Any, labels: Sequence[Any] | None) -> pa.Table:
    """A DataFrame, or lists of texts and labels, as an Arrow table. Raises TypeError for anything else."""
    if labels is not None:
        return _join_columns(data, labels)
    if hasattr(data, "with_format") and hasattr(data, "features") and hasattr(data, "__len__"):
        metadata = data.features.arrow_schema.metadata  # has the names of the classes
        return data.with_format("arrow")[:].replace_schema_metadata(metadata)
    if not hasattr(data, "__arrow_c_stream__"):
        raise TypeError(
            "train: data must be a path, a DataFrame, a datasets.Dataset, or a list of texts beside a list of labels. "
            f"Got {type(data).__name__} instead."
        )
    try:
        table = pa.table(data)
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError):  # a column of pandas of several types
        table = pa.table({str(name): _as_column(data[name]) for name in data.columns})
    for place, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):  # Arrow cannot cast categories of polars, whose words are views
            chunks = [chunk.dictionary.cast(pa.string()).take(chunk.indices) for chunk in table.column(place).chunks]
            table = table.set_column(place, field.name, pa.chunked_array(chunks, pa.string()))
    return _restore_integers(table)


def _join_columns(texts: Any, labels: Any) -> pa.Table:
    """A table of a list of texts, or of pairs of texts, and one of labels."""
    if hasattr(texts, "columns") or hasattr(texts, "with_format"):
        raise TypeError("train: labels are for a list of texts; name the column of a table with label_column.")
    if indexes_differ(texts, labels):
        raise ValueError("train: the indexes of texts and labels differ; give a DataFrame with both, or lists.")
    texts, cells = list(texts), list(labels)
    if len(texts) != len(cells):
        raise ValueError(f"train: {len(texts)} texts and {len(cells)} labels; expected equal numbers.")
    if all(isinstance(text, str) for text in texts):
        columns = {"text": texts}
    elif all(map(_is_pair, texts)):
        columns = {"text1": [first for first, _ in texts], "text2": [second for _, second in texts]}
    else:
        wrong = next(text for text in texts if not isinstance(text, str))
        raise TypeError(f"train: texts must be strings, or pairs of strings. Got {type(wrong).__name__} instead.")
    arrays = {name: tables.table.to_arrow(values) for name, values in columns.items()}
    try:
        return _restore_integers(pa.table({**arrays, "label": pa.array(cells, from_pandas=True)}))  # NaN is no label
    except UnicodeEncodeError:
        return pa.table({**arrays, "label": tables.table.to_arrow(cells)})
    except pa.ArrowException:
        kinds = sorted({type(cell).__name__ for cell in cells if cell is not None})
        raise TypeError(f"train: labels must be of one type. Got {' and '.join(kinds)} instead.") from None


def _as_column(values: Any) -> Any:
    """A column of pandas; one with values of several types, which Arrow does not take, as text."""
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError):
        return tables.table.to_arrow(map(tables.json_file.as_text, values))


def _is_pair(value: Any) -> bool:
    if isinstance(value, str | Mapping | Set) or not isinstance(value, Iterable):
        return False
    return [isinstance(text, str) for text in value] == [True, True]


def indexes_differ(texts: Any, labels: Any) -> bool:
    """Whether texts and labels are Series of pandas with different indexes: rows would be paired by position."""
    indexes: list[Any] = [getattr(values, "index", None) for values in (texts, labels)]
    if any(callable(index) or not hasattr(index, "equals") for index in indexes):  # lists have a method index
        return False
    return not indexes[0].equals(indexes[1])


def _restore_integers(table: pa.Table) -> pa.Table:
    """Make whole numbers integers again: pandas makes floats of a column with gaps."""
    for place, field in enumerate(table.schema):
        if pa.types.is_floating(field.type):
            filled = pc.if_else(pc.is_nan(table.column(place)), None, table.column(place))
            if filled.null_count:
                with contextlib.suppress(pa.ArrowInvalid):  # a fraction
                    table = table.set_column(place, field.name, filled.cast(pa.int64()))
    return table
