"""Tokens: as transformers makes them, once, cached whole or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import transformers

from classify.config.schema import DEFAULT_MODEL
from classify.data import token_cache as cache, tokenize as module
from classify.data.tokenize import default_max_length, load_tokenizer, tokenize, tokenize_columns
from classify.errors import InputError
from classify.modeling.find import resolve_model
from classify.tables.read import read_table
from classify.tables.source import ReadOptions
from tests.support import tiny

TEXTS = [text for text, _ in tiny.table_rows(50)] + ["", "qqq zzz", "card " * 40]


@pytest.mark.parametrize("max_length", [4, 10, 64])
def test_ids_are_those_of_transformers(model_folder: Path, max_length: int) -> None:
    tokenizer = load_tokenizer(str(model_folder))
    got = tokenize(tokenizer, TEXTS, max_length)
    wanted = tokenizer(TEXTS, truncation=True, max_length=max_length)["input_ids"]
    collated = got.collate(np.arange(len(TEXTS)))
    assert collated.ids.tolist() == [token for ids in wanted for token in ids]
    assert collated.lengths.tolist() == got.lengths().tolist() == [len(ids) for ids in wanted]
    some = np.array([52, 3, 50, 3])
    assert got.collate(some).ids.tolist() == [token for row in some for token in wanted[row]]


def test_truncation_and_padding_of_the_embedded_tokenizer_are_off() -> None:
    folder = resolve_model(DEFAULT_MODEL).path
    tokenizer = load_tokenizer(str(folder))
    assert len(tokenizer("word " * 300)["input_ids"]) == 302
    assert len(tokenizer(["a", "a b c"])["input_ids"][0]) == 3
    got = tokenize(tokenizer, ["word " * 300, "Hello, world!"], 512)
    assert got.lengths().tolist() == [302, 6]
    assert (got.template.prefix, got.template.suffix) == ((101,), (102,))


def test_the_cache_is_used_and_mapped(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tokenizer = load_tokenizer(str(model_folder))
    first = tokenize(tokenizer, TEXTS, 64, digest="table-1")
    monkeypatch.setattr(module, "_encode", lambda *_: pytest.fail("tokenized twice"))
    again = tokenize(tokenizer, TEXTS, 10, digest="table-1")
    assert isinstance(again.first.ids, np.memmap)
    assert again.first.ids.tolist() == first.first.ids.tolist()
    with pytest.raises(pytest.fail.Exception):
        tokenize(tokenizer, TEXTS, 64, digest="table-2")
    with pytest.raises(pytest.fail.Exception):  # the same table, read by another tokenizer
        tokenize(load_tokenizer(str(resolve_model(DEFAULT_MODEL).path)), TEXTS, 64, digest="table-1")


@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(b"garbage"), Path.unlink], ids=["cut", "lost"])
def test_a_damaged_cache_is_made_anew(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], object]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tokenizer = load_tokenizer(str(model_folder))
    wanted = tokenize(tokenizer, TEXTS, 64, digest="t").first.ids.tolist()
    (folder,) = [path for path in cache.cache_folder().iterdir() if path.is_dir()]
    damage(folder / "ids.bin")
    for _ in range(2):
        assert tokenize(tokenizer, TEXTS, 64, digest="t").first.ids.tolist() == wanted


def test_without_a_writable_cache_it_works_in_memory(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(tokenize(load_tokenizer(str(model_folder)), TEXTS, 64, digest="t")) == len(TEXTS)


def test_the_cache_has_a_size(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache, "MOST_BYTES", 20_000)
    tokenizer = load_tokenizer(str(model_folder))
    for number in range(8):
        tokenize(tokenizer, TEXTS, 64, digest=str(number))
    kept = [path for path in cache.cache_folder().iterdir() if path.is_dir()]
    assert 1 <= len(kept) < 8
    shutil.rmtree(tmp_path / "classify")


def test_default_max_length() -> None:
    assert default_max_length(np.array([5, 20, 60]), 512) == 128
    assert default_max_length(np.full(1000, 300), 512) == 300
    assert default_max_length(np.full(1000, 9000), 512) == 512
    assert default_max_length(np.array([10] * 995 + [400] * 5), 512) == 128
    assert default_max_length(np.array([5]), 64) == 64
    assert default_max_length(np.full(1000, 9000), 8192) == 512


def test_the_cache_knows_a_column_by_its_values(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which column of a table without a header is the text depends on the header of the table beside it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tokenizer = load_tokenizer(str(model_folder))
    (tmp_path / "test.csv").write_text("card,the card is lost\nmoney,my money was stolen\n")
    lengths = []
    for names in (("text", "label"), ("label", "text")):
        table = read_table(str(tmp_path / "test.csv"), options=ReadOptions(columns=names))
        lengths.append(tokenize_columns(tokenizer, table, ["text"], 64).full_lengths().tolist())
    assert lengths == [[3, 3], [6, 6]]


def test_special_tokens_must_leave_room(model_folder: Path) -> None:
    tokens = tokenize(load_tokenizer(str(model_folder)), ["lost card"], 8)
    assert tokens.cut(3).max_length == 3
    with pytest.raises(InputError, match="--max-length 2: the tokenizer adds 2 special tokens to each row"):
        tokens.cut(2)


def test_texts_are_truncated_at_the_end(model_folder: Path, tmp_path: Path) -> None:
    """Also where the model's tokenizer would keep the end; the one that is saved does as the program."""
    folder = Path(shutil.copytree(model_folder, tmp_path / "model"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "truncation_side": "left"}))
    tokenizer, text = load_tokenizer(str(folder)), "lost card money app " * 8
    tokenizer.save_pretrained(tmp_path / "saved")
    stock = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    ids = tokenize(tokenizer, [text], 8).collate(np.array([0])).ids
    assert ids.tolist() == stock(text, truncation=True, max_length=8)["input_ids"]
