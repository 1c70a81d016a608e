"""A first classifier from the names of the classes, and the rows to label first."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from classify import distributed, modeling, prediction, tables, training
from classify.config.fields import option
from classify.config.parser import CommandParser
from classify.config.schema import ReadConfig
from classify.console import allow_progress
from classify.errors import InputError, escape_controls
from classify.launch.launch import Launch
from classify.launch.plan import plan_devices
from classify.tables.roles import TextColumns
from classify.tables.source import ReadOptions
from classify.tables.table import EMPTY, Table, normalize_text

OUT = "label-me.csv"
LABEL_COLUMN = "label"
CHOSEN = "chosen"
# Rows to label first: those that the model is least certain of, and rows at random, which alone give an honest score.
_UNCERTAIN = 30
_RANDOM = 20
_FEWEST_TEXTS = 50


@dataclass(frozen=True)
class Options(ReadConfig):
    labels: str = option(
        "", "YAML file with the classes: a list of names, or name: a sentence about it", metavar="FILE"
    )
    data: str = option(
        "", "table of texts, in any format that training reads; several become one", metavar="FILE", several=True
    )
    output_dir: str = option("", "output folder", metavar="DIR")
    text_column: str | None = option(None, "text column (default: text, or the only one)", metavar="COLUMN")
    model: str | None = option(
        None, "encoder (default: that of training for the language of the texts)", metavar="MODEL"
    )
    use_cpu: bool = option(False, "use the CPU only", "--cpu", "--use-cpu", "--no-cuda")


make_parser = functools.partial(
    CommandParser,
    Options,
    description="Train a first classifier on the names of the classes and on texts without labels, and write the rows "
    "to label first. No label is seen, so its accuracy is unknown until some are given.",
)


def run(arguments: Sequence[str], program: str) -> int:
    options = make_parser(program).read(arguments, ["labels", "data", "output_dir"])
    allow_progress(True)
    folder = Path(options.output_dir)
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"--output-dir {folder}: the folder exists and is not empty; give another.")
    names = read_names(options.labels)
    reading = ReadOptions.from_settings(vars(options))
    table = tables.read.read_table(options.data, "--data", reading)
    texts = tables.roles.find_first_texts(table, options.text_column)
    table = texts.derive(table)
    _check_table(table, texts, len(names))
    training.output_dir.check_writable(folder)
    suggest, zero_shot = prediction.suggest, prediction.zero_shot  # imports torch
    plan = plan_devices(Launch(), strategy="none", use_cpu=options.use_cpu)
    with distributed.group.start(plan) as world, modeling.load.quiet_libraries():
        encoder = zero_shot.load_encoder(table, texts, list(names), world, reading.given, options.model)
        started = zero_shot.start(encoder, table, texts, names, folder)
        # Rows to label: the least certain ones, and others at random, as the column `chosen` says.
        suggestions = suggest.suggest(started.predictor, table, texts, _UNCERTAIN, _RANDOM, started.logits)
        suggest.write_suggestions(folder / OUT, started.predictor, table, suggestions)
    count = len(suggestions.rows)
    lines = [
        f"model: {folder} ({len(names)} classes from their names; no label has been seen, so the accuracy is unknown)",
        f"self-training: {100 * started.renamed:.0f} % of the texts changed their class",
        f"{folder / OUT}: {count} rows to label, {_RANDOM} of them at random: these alone give an honest score",
        f"next:   fill in {LABEL_COLUMN!r}, of the random rows at least, then "
        f"{shlex.join(['classify', 'evaluate', '--model', str(folder), '--data', str(folder / OUT)])}",
        *(f"note: {text}" for text in (*(finding.sentence for finding in table.findings), *started.notes)),
    ]
    print(escape_controls("\n".join(lines)))
    return 0


def _check_table(table: Table, texts: TextColumns, classes: int) -> None:
    """Raise InputError where there are too few texts to learn from and to label, or a column is to be written."""
    if table.has_column(CHOSEN):
        raise InputError(f"{table.path}: {OUT} has a column {CHOSEN!r} of its own; rename that of the table.")
    hashes = table.text_hashes(texts.whole)
    if table.has_column(LABEL_COLUMN):
        hashes = hashes[table.is_blank(LABEL_COLUMN)]
    count, fewest = len(np.unique(hashes[hashes != EMPTY])), max(_FEWEST_TEXTS, classes)
    if count < fewest:
        raise InputError(
            f"{table.path}: {count} different texts without a label for {classes} classes. Expected {fewest} or more, "
            "since the classes are learned from them."
        )


def read_names(path: str) -> dict[str, list[str]]:
    """The texts of each class by its name, from a YAML list of names, or of name: sentence.

    Instead of a sentence there may be {description: ..., examples: [...]}. Raises InputError for anything else.
    """
    expected = "Expected a YAML list of names, or a line 'name: a sentence about it' for each class"
    try:
        # All values are text: 007 and no are names, too.
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # noqa: S506
    except OSError as error:
        raise InputError(f"--labels {path}: cannot be read ({error.strerror}). {expected}.") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"--labels {path}: {' '.join(str(error).split())}. {expected}.") from None
    entries = dict.fromkeys(map(str, content)) if isinstance(content, list) else content
    if not isinstance(entries, dict) or any(isinstance(name, dict | list) for name in content):
        raise InputError(f"--labels {path}: {expected}.")
    names = {str(name).strip(): _read_texts(entry) for name, entry in entries.items()}
    if len({normalize_text(name) for name in names}) < len(content):
        raise InputError(f"--labels {path}: two names are the same but for case and spaces. Give each class once.")
    if len(names) < 2 or not all(names):
        raise InputError(f"--labels {path}: {len(names)} classes. Expected two or more, each with a name.")
    return names


def _read_texts(entry: Any) -> list[str]:
    if isinstance(entry, dict):
        examples = entry.get("examples") or []
        entry = [entry.get("description"), *([examples] if isinstance(examples, str) else examples)]
    texts = entry if isinstance(entry, list) else [entry]
    return [str(text).strip() for text in texts if text is not None and str(text).strip()]
