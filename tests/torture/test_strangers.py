"""Files from a stranger: nothing in them runs, none makes the program hang or fill the memory, each ends in a line."""

from __future__ import annotations

import json
import os
import pickle  # noqa: TID251 - what a stranger may send
import resource
import shutil
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from classify.cli import main
from tests.support import tiny
from tests.support.processes import Process, unlaunched
from tests.support.runs import read_json

SECONDS = 180
# Address space of a run; the tiny model and all libraries take a third of it.
BYTES = 12 << 30


class Canary:
    """Unpickling this writes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {self.path}",))


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**read_json(path), **changes}))


def pickled_weights(folder: Path, canary: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Canary(canary)))


def pickle_beside_weights(folder: Path, canary: Path) -> None:
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (folder / name).write_bytes(pickle.dumps(Canary(canary)))


def remote_code(folder: Path, canary: Path) -> None:
    classes = {"AutoConfig": "evil.C", "AutoModel": "evil.M", "AutoModelForSequenceClassification": "evil.M"}
    edit(folder / "config.json", auto_map=classes)
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T", "evil.T"]}, tokenizer_class="T")
    (folder / "evil.py").write_text(f"open({str(canary)!r}, 'w')\n")


def index_outside(folder: Path, canary: Path) -> None:
    outside = shutil.copy(folder / "model.safetensors", folder.parent / "outside.safetensors")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    index = {"metadata": {}, "weight_map": {"bert.embeddings.word_embeddings.weight": f"../{Path(outside).name}"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def long_header(folder: Path, canary: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + b"{}")


def many_numbers(folder: Path, canary: Path) -> None:
    """A tensor of 4 EiB, whose numbers are not in the file."""
    header = json.dumps({"x": {"dtype": "F32", "shape": [1 << 60], "data_offsets": [0, 1 << 62]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)


def large_shapes(folder: Path, canary: Path) -> None:
    edit(folder / "config.json", hidden_size=1 << 24, intermediate_size=1 << 26)


def slow_pattern(folder: Path, canary: Path) -> None:
    """A regular expression that backtracks."""
    tokenizer = read_json(folder / "tokenizer.json")
    tokenizer["pre_tokenizer"] = {
        "type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False,
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def large_tokenizer(folder: Path, canary: Path) -> None:
    """100 MB of words that no text has."""
    tokenizer = read_json(folder / "tokenizer.json")
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary |= {f"{number:x}" * 4: len(vocabulary) + number for number in range(3_000_000)}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def template(folder: Path, canary: Path) -> None:
    code = "{{ cycler.__init__.__globals__.os.system('touch " + str(canary) + "') }}"
    edit(folder / "tokenizer_config.json", chat_template=code)
    (folder / "chat_template.jinja").write_text(code)


def checkpoint_of_pickles(folder: Path, canary: Path) -> None:
    """The model folder is also an output folder with a checkpoint of transformers' Trainer."""
    place = folder / "checkpoint-10"
    place.mkdir()
    pickle_beside_weights(place, canary)


MODELS: dict[Callable[[Path, Path], None], str | None] = {
    pickled_weights: "no *.safetensors",
    pickle_beside_weights: None,
    remote_code: None,
    index_outside: "outside",
    long_header: "model.safetensors",
    many_numbers: "model.safetensors",
    large_shapes: "",
    slow_pattern: "the tokenizer of the model fails on a text",
    large_tokenizer: "",
    template: None,
    checkpoint_of_pickles: None,
}


def train(folder: Path, model: Path, *more: str, table: Path | None = None) -> Any:
    """A run of a few steps with little address space."""
    if table is None:
        rows = [(f"{'a' * 40}! {text}", label) for text, label in tiny.table_rows(60)]
        table = tiny.write_table(folder / "my.csv", rows)
    words = ["--data", str(table), "--model", str(model), "--cpu", "--contrastive-steps", "0", "--max-steps", "3"]
    return run_limited(folder, "run_classify.py", *words, *more, "--report-to", "none")


def run_limited(folder: Path, *words: str) -> Any:
    environment = {**unlaunched(), "XDG_CACHE_HOME": str(folder / "cache")}
    return Process(limit_and_run, (list(words),), folder, environment).finish(SECONDS)


def limit_and_run(words: list[str]) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    program, *sys.argv[1:] = words
    return main(program=program)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(change, id=change.__name__, marks=[pytest.mark.slow] * (change in (large_tokenizer, slow_pattern)))
        for change in MODELS
    ],
)
def test_a_model_folder(model_folder: Path, tmp_path: Path, change: Callable[[Path, Path], None]) -> None:
    model, canary = shutil.copytree(model_folder, tmp_path / "model"), tmp_path / "canary"
    change(model, canary)
    done = train(tmp_path, model, "--output-dir", "out")
    assert not canary.exists()
    part = MODELS[change]
    if part is None:
        assert done.returncode == 0, done.stderr
        return
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode in (1, 2), done.stdout
    assert len(errors) == 1, done.stderr
    assert part in errors[0]
    assert "internal error" not in errors[0]
    assert len(errors[0]) < 500


def test_a_settings_file_that_explodes(model_folder: Path, tmp_path: Path) -> None:
    """Nine lists of nine references each: a billion words, if anybody writes them out."""
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in zip("abcdefgh", "bcdefghi")]  # noqa: B905
    (tmp_path / "settings.yaml").write_text("\n".join([*lines, "epochs: *i", ""]))
    done = train(tmp_path, model_folder, "--config", str(tmp_path / "settings.yaml"))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert len(done.stderr) < 5_000


@pytest.mark.slow
def test_a_table_that_unpacks_without_end(model_folder: Path, tmp_path: Path) -> None:
    """8 GB of one letter in a few megabytes."""
    path = tmp_path / "my.zip"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("my.csv", "w", force_zip64=True) as file,
    ):
        file.write(b"text,label\n")
        block = b"a" * (64 << 20)
        for _ in range(128):
            file.write(block)
    done = train(tmp_path, model_folder, table=path)
    assert done.returncode in (1, 2), done.stdout
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: ")


def test_what_a_terminal_and_a_page_would_obey(model_folder: Path, tmp_path: Path) -> None:
    """Escapes, a title, text from right to left, elements of a page; also in names."""
    turned, title, element = "\u202egnp.exe", "\x1b]0;owned\x07\x1b[31m", "<img src=x onerror=alert(1)>"
    rows = [(f"{title} {turned} {element} {text}", f"{label}{turned}{element}") for text, label in tiny.table_rows(60)]
    table = tiny.write_table(tmp_path / f"my{turned}.csv", rows, (f"text{title}", "label"))
    flags = ["--output-dir", "out", "--verbose", "--text-column", f"text{title}", "--delimiter", ","]
    done = train(tmp_path, model_folder, *flags, table=table)
    assert done.returncode == 0, done.stderr
    flags = ["--model", "out", "--data", str(table), "--delimiter", ",", "--cpu", "--out", "predictions.csv"]
    predicted = run_limited(tmp_path, "classify", "predict", *flags)
    assert predicted.returncode == 0, predicted.stderr
    for printed in (done.stdout, done.stderr, predicted.stdout, predicted.stderr):
        assert not set(printed) & set("\x1b\x07\u202e"), printed
    for page in ("report.html", "README.md"):
        assert element not in (tmp_path / "out" / page).read_text(encoding="utf-8")
