"""How tables are understood: `python -m tests.support.corpus [FOLDER]` reads each one and compares what came out.

FOLDER holds a folder for each table: `table.*`, or a folder of tables, and `expected.yaml` with `rows`, `flags` (what a
careful person would type, mostly none) and `accept`: a list of outcomes, each `ask`, or a mapping of `text`, `label`,
`pair`, `task`, `classes`, `split` (the rows of train, validation and test) and `first` (the text of row 1). What is not
named is not compared. A refusal that is not in the list is a question too many, anything else is wrong.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from classify.config.parser import parse_training
from classify.data.reading import read_tables
from classify.data.split_table import split_table
from classify.errors import InputError
from classify.tasks.registry import recognize

CORPUS = Path(__file__).resolve().parents[1] / "corpus"
ASK = "ask"


def main(arguments: list[str]) -> int:
    """Print a line for each table that is not read right, and the counts; return 1 where one is wrong."""
    folder = Path(arguments[0]).resolve() if arguments else CORPUS
    counts: Counter[str] = Counter()
    for table in find_tables(folder):
        kind, line = check(table)
        counts[kind] += 1
        if kind != "right":
            print(f"{kind}: {table.name}: {line}")
    print(f"right {counts['right']}, asked {counts['asked']}, wrong {counts['wrong']}")
    assert "torch" not in sys.modules, "a table is understood without torch"
    return int(counts["wrong"] > 0)


def find_tables(folder: Path) -> list[Path]:
    return sorted(file.parent for file in folder.glob("*/expected.yaml"))


def check(folder: Path) -> tuple[str, str]:
    """Return "right", "asked" or "wrong", and what came out."""
    expected = yaml.safe_load((folder / "expected.yaml").read_text(encoding="utf-8"))
    try:
        with contextlib.chdir(folder):
            outcome = read(arguments(folder, expected.get("flags")))
    except InputError as error:
        return ("right" if ASK in expected["accept"] else "asked"), str(error).splitlines()[0]
    except Exception as error:
        return "wrong", f"{type(error).__name__}: {error}"
    if expected.get("rows") in (None, outcome["rows"]):
        for accepted in expected["accept"]:
            if accepted != ASK and all(_is_same(name, value, outcome) for name, value in accepted.items()):
                return "right", ""
    return "wrong", ", ".join(f"{name} {value!r}" for name, value in outcome.items())


def read(arguments: list[str]) -> dict[str, Any]:
    """Return what a run would train on. Raises InputError where it would be refused."""
    config = parse_training(arguments, "corpus")
    tables = read_tables(config.data)
    task = recognize(tables)
    splits = split_table(tables, task.targets, config.training.seed)
    texts = splits.columns.texts
    return {
        "text": list(texts.fields),
        "pair": texts.pair,
        "label": list(splits.columns.labels),
        "task": task.name,
        "classes": len(task.labels),
        "rows": len(tables.train),
        "split": [len(part) if part is not None else 0 for part in (splits.train, splits.validation, splits.test)],
        "first": tables.train.column(texts.fields[0])[0],
    }


def _is_same(name: str, value: Any, outcome: Mapping[str, Any]) -> bool:
    found = outcome[name]
    if name in ("text", "label"):
        names = [value] if isinstance(value, str) else list(map(str, value))
        return names in (found, [",".join(found)])
    if name == "pair" and isinstance(value, bool):
        return value == (found is not None)
    return bool(value == found)


def arguments(folder: Path, flags: str | list[str] | None) -> list[str]:
    words = shlex.split(flags) if isinstance(flags, str) else list(map(str, flags or ()))
    return words if "--data" in words else ["--data", _find_data(folder), *words]


def _find_data(folder: Path) -> str:
    """Return the table's name: table.*, a folder of that name, the only folder, or this folder."""
    named = sorted(entry.name for entry in folder.glob("table*"))
    folders = [entry.name for entry in folder.iterdir() if entry.is_dir()]
    return (named or folders if len(named or folders) == 1 else ["."])[0]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
