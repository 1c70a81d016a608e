"""The files of the output folder: each is whole or not there."""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.config.schema import RunConfig
from classify.data.columns import Guess
from classify.data.corpus import Corpus
from classify.data.files import TEMPORARY, umask, whole_file
from classify.data.table import Table
from classify.errors import InputError
from classify.modeling import safetensors_file

# Of classify.json; a higher one may ask prediction for what this version does not know.
FORMAT = 1
_LIBRARIES = ("classify", "torch", "transformers", "datasets", "scikit-learn", "accelerate", "safetensors", "numpy")


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, whole or not at all."""
    with whole_file(path) as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")


def prediction_columns(labels: Sequence[str]) -> list[str]:
    """The columns that predictions add behind those of the table."""
    return ["predicted_label", "confidence", *(f"prob_{label}" for label in labels)]


def check_columns_free(table: Table, labels: Sequence[str]) -> None:
    """Raise InputError where the table already has a column that predictions would add."""
    taken = [name for name in prediction_columns(labels) if name in table.columns]
    if taken:
        raise InputError(
            f"{table.path}: the table already has the column{'s' if len(taken) > 1 else ''} "
            f"{', '.join(map(repr, taken[:3]))}, which predictions are written to; rename it first."
        )


def write_predictions(
    path: Path, table: Table, rows: npt.NDArray[np.int64], labels: Sequence[str], probabilities: npt.NDArray[np.float64]
) -> None:
    """Write every input column, the predicted label, its probability and one column a class, in file order.

    `probabilities` is (len(rows), classes), one line for each of the table's `rows` in the order given. A .tsv file has
    tabs between the columns, as it is read.
    """
    picked = table.arrow.take(rows)
    best = probabilities.argmax(axis=1)
    with whole_file(path) as file:
        between = "\t" if path.suffix.lower() == ".tsv" else ","
        writer = csv.writer(file, delimiter=between, lineterminator="\n")
        # Python before 3.13 leaves a lone carriage return bare, which readers take for the end of the row.
        quoting = csv.writer(file, delimiter=between, lineterminator="\n", quoting=csv.QUOTE_ALL)

        def write_row(fields: list[str]) -> None:
            (quoting if any("\r" in text for text in fields) else writer).writerow(fields)

        write_row([*table.columns, *prediction_columns(labels)])
        for start in range(0, len(rows), 4096):
            columns = [column.to_pylist() for column in picked.slice(start, 4096).columns]
            for offset, fields in enumerate(zip(*columns, strict=True)):
                row = start + offset
                numbers = [f"{p:.8g}" for p in probabilities[row]]
                write_row([*fields, labels[best[row]], numbers[best[row]], *numbers])


def save_model(folder: Path, stock: Any, weights: dict[str, Any], tokenizer: Any, settings: dict[str, Any]) -> None:
    """Write what transformers loads (config, safetensors, tokenizer) and classify.json into the output folder.

    `weights` is the state dict in full: a sharded model holds a part of it only.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=f"{TEMPORARY}model-") as temporary:
        tokenizer.model_max_length = settings["max_length"]
        tokenizer.save_pretrained(temporary)
        stock.save_pretrained(temporary, state_dict=weights)
        write_json(Path(temporary) / "classify.json", settings)
        for file in sorted(Path(temporary).iterdir()):
            with file.open("rb") as written:
                os.fsync(written.fileno())
            os.chmod(file, 0o666 & ~umask())  # safetensors leaves its files readable by their owner only
            os.replace(file, folder / file.name)


def read_settings(folder: str) -> dict[str, Any]:
    """classify.json of a result folder. Raises InputError where the folder is no result of this program."""
    path = Path(folder)
    if not path.is_dir():
        raise InputError(f"--model {folder}: no such folder. Expected the output folder of a training run.")
    try:
        settings: dict[str, Any] = json.loads((path / "classify.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"--model {folder}: no classify.json in it; expected the output folder of a finished training run."
        ) from None
    except ValueError as error:
        raise InputError(f"--model {folder}: classify.json is not valid JSON ({error}).") from None
    settings = settings if isinstance(settings, dict) else {}
    missing = sorted({"text_column", "max_length", "temperature"} - set(settings))
    if settings.get("format") != FORMAT or missing:
        raise InputError(
            f"--model {folder}: classify.json must be of format {FORMAT}. Got "
            + (f"one without {missing[0]!r}" if missing else f"format {settings.get('format')!r}")
            + " instead; predict with the version of this program that trained it (run.json names it)."
        )
    try:
        safetensors_file.header(path / "model.safetensors")
    except FileNotFoundError:
        raise InputError(f"--model {folder}: no model.safetensors in it; the run did not finish.") from None
    except ValueError as error:
        raise InputError(f"--model {folder}: model.safetensors {error}; copy the folder again.") from None
    return settings


def fingerprint(folder: str) -> str:
    """A text that differs between result folders whose predictions may."""
    digests = []
    for name in ("classify.json", "config.json", "tokenizer.json", "model.safetensors"):
        if (Path(folder) / name).exists():
            with (Path(folder) / name).open("rb") as file:
                digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    return " ".join(digests)


def labels_of(folder: str) -> list[str]:
    """The class names of a result folder, by class number. Raises InputError where its config.json has none."""
    try:
        names = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))["id2label"]
        return [names[str(number)] for number in range(len(names))]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"--model {folder}: config.json does not name the classes ({type(error).__name__}: {error}); expected the "
            "output folder of a finished training run."
        ) from None


def versions() -> dict[str, str]:
    """Python, this program and the libraries that decide its numbers."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@dataclass
class RunRecord:
    """run.json: what was asked, what was guessed, on what it ran, how it ended.

    `earlier` are the starts of this run before this one, which goes on from `from_step`.
    """

    folder: Path
    config: RunConfig
    corpus: Corpus
    guesses: list[Guess]
    topology: list[dict[str, Any]] = field(default_factory=list)
    strategy: str = "none"
    launcher: str = "none"
    precision: str = "fp32"
    extra: dict[str, Any] = field(default_factory=dict)
    earlier: list[dict[str, Any]] = field(default_factory=list)
    from_step: int = 0

    def write(self, status: str) -> None:
        """Write run.json with the run's status: finished, interrupted or failed."""
        table = self.corpus.tables[0]
        write_json(
            self.folder / "run.json",
            {
                "command": sys.orig_argv,
                "commands": [
                    *self.earlier,
                    {"command": sys.orig_argv, "from_step": self.from_step, "status": status},
                ],
                "cwd": os.getcwd(),
                "config": self.config.to_dict(),
                "guesses": [vars(guess) for guess in self.guesses],
                "versions": versions(),
                "data": {
                    "path": table.path,
                    "sha256": table.sha256,
                    "rows": len(table),
                    "columns": table.columns,
                    "fingerprint": self.corpus.fingerprint,
                },
                "seed": self.config.training.seed,
                "topology": self.topology,
                "strategy": self.strategy,
                "launcher": self.launcher,
                "precision": self.precision,
                **self.extra,
                "status": status,
            },
        )


class TrainLog:
    """train_log.jsonl: one JSON object a line. A resumed run first drops the lines beyond its checkpoint."""

    def __init__(self, path: Path, after_step: int):
        kept: list[str] = []
        if after_step and path.exists():
            kept = [line for line in _json_lines(path) if json.loads(line).get("step", 0) <= after_step]
        with whole_file(path) as file:
            file.writelines(kept)
        self._file = path.open("a", encoding="utf-8")

    def write(self, values: dict[str, Any]) -> None:
        """Append one line and hand it to the operating system."""
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _json_lines(path: Path) -> Iterable[str]:
    """Complete lines of a file that may end in the middle of one."""
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            json.loads(line)
        except ValueError:
            continue
        if line.endswith("\n"):
            yield line
