"""A scikit-learn estimator around a training run."""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from classify import api, data, tables
from classify.config.fields import describe
from classify.config.recipe import FEW_ROWS
from classify.errors import InputError
from classify.files import read_json
from classify.launch.launch import Launch
from classify.prediction import explanations
from classify.tasks.registry import trained_task

_SPLIT_COLUMN = "split"
# Flags after which a run has other classes than y.
_RENAMING = ("label_names", "unlabelled_value", "out_of_scope_label")
# What `save` adds to a run's folder: parameters and classes with their type.
_ESTIMATOR = "estimator.json"
# Files of a run's folder that prediction and `Run.metrics` read, and attributes that are not copied.
_MODEL_FILES = ("*.safetensors", "*.json", "*.txt", "*.model")
_OF_THIS_PROCESS = ("_finalizer", "_folder", "run_")


class TextClassifier(ClassifierMixin, BaseEstimator):
    """Fine-tune a BERT classifier on texts; for pipelines, `cross_val_score` and `GridSearchCV`.

    Parameters are the flags of the same name; None is the recipe's choice. `verbose` prints what a run prints,
    `options` holds any other flags. `output_dir` is the folder of the run (default: a temporary one, deleted with the
    estimator): another fit of this estimator overwrites it, a fit of a clone raises ValueError. A pickle holds the
    model. A tenth of the rows is held out for calibration; below 300 rows cross-validation is used, and all rows
    train.
    """

    def __init__(
        self,
        model: str | None = None,
        epochs: float | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        max_length: int | None = None,
        preset: str | None = None,
        seed: int = 42,
        cpu: bool = False,
        output_dir: str | None = None,
        verbose: bool = False,
        options: dict[str, Any] | None = None,
    ):
        self.model = model
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.max_length = max_length
        self.preset = preset
        self.seed = seed
        self.cpu = cpu
        self.output_dir = output_dir
        self.verbose = verbose
        self.options = options

    def fit(self, X: Sequence[str], y: Sequence[Any]) -> Self:
        """Train on texts X (n,) and their classes y (n,).

        Raises ValueError for other shapes or types, InputError as `classify.train` does.
        """
        texts, targets = _check_texts(X), np.asarray(y)
        if api.indexes_differ(X, y):
            warnings.warn("the indexes of X and y differ; rows are paired by position", stacklevel=2)
        if targets.ndim != 1 or len(targets) != len(texts):
            raise ValueError(f"y must have one class per text: shape ({len(texts)},). Got {targets.shape} instead.")
        missing = [place for place, value in enumerate(targets.tolist()) if value is None or value != value]
        if missing:
            raise ValueError(
                f"y must have a class for each text. Got {targets[missing[0]]} at index {missing[0]} instead."
            )
        classes, numbers = np.unique(targets, return_inverse=True)
        names = _name_classes(classes)
        columns = {"text": texts, "label": [names[number] for number in numbers]}
        if len(texts) >= FEW_ROWS:
            hashes = tables.table.text_hashes(texts)
            # A tenth is for validation, by class; duplicates stay together.
            split = data.split_rows.split_rows(hashes, numbers, seed=self.seed, eval_share=0.1, test_share=0.0)
            # Few different texts cannot be split, and are refused where they are read.
            columns |= {_SPLIT_COLUMN: np.array(["train", "validation"])[split].tolist()} if split.any() else {}
        folder = Path(self.output_dir or tempfile.mkdtemp(prefix="classify-")).absolute()
        if self.output_dir is None:
            self._finalizer = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            folder = folder / "run"
        options = self._choose_options(folder, splits=_SPLIT_COLUMN in columns)
        if getattr(self, "_folder", None) == folder:  # of an earlier fit, which may have failed
            options["overwrite_output_dir"] = True
        elif (folder / "run.json").exists() and "overwrite_output_dir" not in options:
            raise ValueError(
                f"output_dir: {folder} holds the run of another estimator or an earlier session; give each estimator "
                "another, or none. Clones, as in cross-validation, would share it."
            )
        self._folder = folder
        self.run_ = api.train_on_table(
            pa.table(columns), None, options, Launch.read(), pages=self.output_dir is not None
        )
        self.classes_, self._names = classes, names
        return self

    def _choose_options(self, folder: Path, *, splits: bool) -> dict[str, Any]:
        """The options of the run: parameters, `options`, and what follows from X and y. Raises ValueError."""
        values = self.get_params(deep=False)
        more = {name.replace("-", "_"): value for name, value in (values.pop("options") or {}).items()}
        if twice := sorted(name for name in more.keys() & values.keys() if values[name] is not None):
            raise ValueError(f"options: {twice[0]} is a parameter, {values[twice[0]]!r}; give it once.")
        fixed = {"text_column": "text", "label_column": "label", "task": "single", "normalize_labels": "none"}
        for name, value in {**fixed, **dict.fromkeys(_RENAMING)}.items():
            if more.get(name, value) != value:
                raise ValueError(f"options: {name} must not be {more[name]!r}; drop it: X and y are texts and classes.")
        fixed |= {"split_column": _SPLIT_COLUMN} if splits else {}
        values |= {"output_dir": folder, "quiet": not values.pop("verbose")}
        return {**fixed, **values, **more}

    def predict(self, X: Sequence[str]) -> npt.NDArray[Any]:
        """The class (n,) of each text."""
        check_is_fitted(self, "run_")
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def predict_proba(self, X: Sequence[str]) -> npt.NDArray[np.float64]:
        """The calibrated probabilities (n, classes), in the order of `classes_`."""
        check_is_fitted(self, "run_")
        order = list(map(self.run_.labels.index, self._names))
        return self.run_.predict_proba(_check_texts(X))[:, order]

    def save(self, folder: str | Path) -> Path:
        """Copy the output folder, which `load`, `classify.load` and transformers read; nothing is pickled."""
        check_is_fitted(self, "run_")
        copy = Path(shutil.copytree(self.run_.folder, folder))
        parameters = {name: value for name, value in self.get_params(deep=False).items() if name != "output_dir"}
        classes = {"dtype": self.classes_.dtype.str, "values": self.classes_.tolist(), "labels": self._names}
        content = json.dumps({"parameters": parameters, "classes": classes}, indent=2, default=str)
        (copy / _ESTIMATOR).write_text(content + "\n", encoding="utf-8")
        return copy

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The fitted estimator that `save` wrote, or of any run's folder, whose classes are texts.

        Raises InputError if the folder is not that of a run with one label per row.
        """
        run = api.Run(folder)
        if not (task := trained_task(str(run.folder))).answers.has_confidence:
            raise InputError(f"{folder}: expected one label per row. Got {task.name} instead; use classify.load.")
        try:
            saved = read_json(run.folder / _ESTIMATOR)
        except FileNotFoundError:
            saved = {"parameters": {}, "classes": {"dtype": "U", "values": run.labels, "labels": run.labels}}
        estimator = cls(**saved["parameters"])
        classes = saved["classes"]
        estimator.classes_, estimator._names = np.array(classes["values"], dtype=classes["dtype"]), classes["labels"]
        estimator.run_ = api.Run(folder, use_cpu=estimator.cpu)
        return estimator

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.non_deterministic = False
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """The parameters, the classes and the model's files, without texts: a copy may be on another machine."""
        state = {name: value for name, value in super().__getstate__().items() if name not in _OF_THIS_PROCESS}
        if hasattr(self, "run_"):
            files = (path for pattern in _MODEL_FILES for path in self.run_.folder.glob(pattern))
            state["_files"] = {path.name: path.read_bytes() for path in files if path.name != explanations.FILE}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Write the model's files into a temporary folder, which is deleted with the estimator."""
        files = state.pop("_files", None)
        super().__setstate__(state)
        if files is None:
            return
        folder = Path(tempfile.mkdtemp(prefix="classify-"))
        self._finalizer = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        self.run_ = api.Run(folder, use_cpu=self.cpu)


def _name_classes(classes: npt.NDArray[Any]) -> list[str]:
    """Labels for the classes that a table keeps apart: a cell "NA", say, would be a missing value."""
    names = [str(label) for label in classes]
    missing = set(tables.labels.find_missing(names))
    names = [f"class {name}" if name in missing else name for name in names]
    kept = tables.labels.name_classes(dict.fromkeys(names, 1), normalize=False)
    if len(set(names)) == len(names) and all(name.strip() and kept.of(name) == name for name in names):
        return names
    return [f"class {number}" for number in range(len(names))]


def _check_texts(texts: Any) -> list[str]:
    """A list of the texts. Raises ValueError for anything but strings."""
    if getattr(texts, "ndim", 1) == 2 and texts.shape[1] == 1:  # a column that a pipeline selected
        texts = np.asarray(texts)[:, 0]
    is_column = not isinstance(texts, str) and hasattr(texts, "__len__") and getattr(texts, "ndim", 1) == 1
    listed = list(texts) if is_column else []
    wrong = next((place for place, text in enumerate(listed) if not isinstance(text, str)), None)
    if not listed or wrong is not None:
        what = describe(texts) if wrong is None else f"{describe(listed[wrong])} at index {wrong}"
        raise ValueError(f"X must be a list, an array or a column of strings, at least one. Got {what} instead.")
    return listed
