"""Random tiny models, a local vocabulary and small tables, made on the spot; nothing is downloaded."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

WORDS = (  # noqa: SIM905 - a sentence is easier to read than a list of strings
    "the a my your it is was not very good bad slow fast broken new old card app phone order bank money late early "
    "please help why how when where never always again today lost found stolen paid twice refund delivery screen"
).split()
CLASS_WORDS = {
    "card": ("card", "stolen", "lost"),
    "money": ("money", "refund", "paid"),
    "app": ("app", "screen", "phone"),
}
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

COMMON = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}


def table_rows(count: int, seed: int = 0, classes: tuple[str, ...] = ("card", "money", "app")) -> list[tuple[str, str]]:
    """(text, label) rows of 2 to 25 words; a text of a class holds one of its words."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        label = classes[number % len(classes)]
        words = draw.choices(WORDS, k=draw.randint(1, 24))
        words.insert(draw.randint(0, len(words)), draw.choice(CLASS_WORDS[label]))
        rows.append((" ".join(words), label))
    return rows


def crossed_rows(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Rows whose labels are each another class's: who learns `table_rows` gets worse and worse on them."""
    classes = tuple(CLASS_WORDS)
    other = dict(zip(classes, (*classes[1:], classes[0]), strict=True))
    return [(text, other[label]) for text, label in table_rows(count, seed)]


def write_table(path: Path, rows: list[tuple[str, str]], header: tuple[str, str] = ("text", "label")) -> Path:
    """A CSV with a header."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
    return path


def make_tokenizer(words: Iterable[str] = ()) -> Any:
    """A WordPiece tokenizer over the words above and single letters, and more words, in any script."""
    import string

    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pieces = [*SPECIAL, *WORDS, *string.ascii_lowercase, *("##" + letter for letter in string.ascii_lowercase)]
    normalizer = normalizers.BertNormalizer(lowercase=True)
    for word in words:
        pieces += normalizer.normalize_str(word).split()  # Chinese: single characters
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=64,
    )


def configurations() -> dict[str, Any]:
    """A tiny random configuration of each architecture that must work."""
    import transformers as t

    size = {"vocab_size": 128, "pad_token_id": 0}
    ids = {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    modern = {**COMMON, **size, **ids, "local_attention": 8, "global_attn_every_n_layers": 2}
    return {
        "bert": t.BertConfig(**COMMON, **size),
        "roberta": t.RobertaConfig(**COMMON, **size),
        "xlm-roberta": t.XLMRobertaConfig(**COMMON, **size),
        "camembert": t.CamembertConfig(**COMMON, **size),
        "distilbert": t.DistilBertConfig(
            dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=64, **size
        ),
        "electra": t.ElectraConfig(**COMMON, **size, embedding_size=16),
        "albert": t.AlbertConfig(**COMMON, **size, embedding_size=16),
        "modernbert": t.ModernBertConfig(**modern),
        "modernbert-mean": t.ModernBertConfig(**modern, classifier_pooling="mean"),
        "eurobert": t.EuroBertConfig(**COMMON, **size),
        "deberta": t.DebertaV2Config(
            **COMMON, **size, relative_attention=True, pos_att_type=["p2c", "c2p"], position_biased_input=False
        ),
    }


def make_model(
    folder: Path, kind: str = "bert", seed: int = 0, spread: float = 0.2, words: Iterable[str] = (), **changes: Any
) -> Path:
    """Save a random encoder and the tokenizer into a folder, as a pre-trained model would lie there.

    `words` are added to its vocabulary, `changes` set in its configuration.
    `spread` is the standard deviation of the weights: at the usual 0.02 a tiny model's outputs are all alike.
    """
    import torch
    import transformers

    config = configurations()[kind]
    config.initializer_range = spread
    for name, value in changes.items():
        setattr(config, name, value)
    torch.manual_seed(seed)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    make_tokenizer(words).save_pretrained(folder)
    return folder
