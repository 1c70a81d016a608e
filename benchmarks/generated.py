"""Tables of texts that mean nothing, for speed and memory: words of a model's vocabulary drawn by chance."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable
from pathlib import Path


def write_texts(path: Path, rows: int, tokenizer_folder: str, words: Callable[[random.Random], int], seed: int) -> None:
    """Rows of two classes, `words` drawing how many words a text has; the first of them is the label."""
    from classify.data.tokenize import load_tokenizer

    vocabulary = sorted(
        word for word in load_tokenizer(tokenizer_folder).get_vocab() if word.isascii() and word.isalpha()
    )
    draw = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label"))
        for _ in range(rows):
            label = draw.choice(("up", "down"))
            writer.writerow((" ".join([label, *draw.choices(vocabulary, k=words(draw) - 1)]), label))
