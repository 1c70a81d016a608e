"""Attribute a prediction to the words of the text, by integrated gradients through packed batches."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from classify.data.tokenize import Tokens, get_padding_id
from classify.errors import InputError
from classify.modeling.classifier import Classifier

# Points between the baseline and the text; fewer where many texts are explained.
STEPS, FEW_STEPS = 32, 16
# Tokens whose activations are in memory at once.
_TOKENS = 2048
# Scripts without spaces between words; their tokens are shown one by one.
_WITHOUT_SPACES = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff]")


@dataclass(frozen=True)
class WordAttribution:
    """A word of the text and by how much it raises the logit compared with padding in its place."""

    word: str
    score: float


def integrated_gradients(
    classifier: Classifier,
    tokens: Tokens,
    row: int,
    output: int,
    pad_token_id: int,
    device: torch.device,
    steps: int = STEPS,
) -> torch.Tensor:
    """Return the attribution (tokens,) of each token of a row to a logit, special tokens included; they have 0.

    The sum is the difference to the logit of padding tokens in their place. Sundararajan et al., 2017, "Axiomatic
    Attribution for Deep Networks", equation 3, by the midpoint rule with `steps` points.
    """
    places = tokens.text_places(row)
    count = places[-1].stop + len(tokens.template.suffix)
    fixed = torch.ones(count, 1, device=device)  # special tokens do not move
    for place in places:
        fixed[place] = 0.0
    table: Any = classifier.model.get_input_embeddings()
    baseline = table.weight[pad_token_id].detach().float()

    def sum_gradients(alphas: torch.Tensor) -> torch.Tensor:
        """Return (tokens,) the sum of gradient times the path's direction over points: shares (points,) of the text."""
        points: list[torch.Tensor] = []
        directions: list[torch.Tensor] = []

        def interpolate(embedded: torch.Tensor) -> torch.Tensor:
            texts = _rows(embedded, len(alphas), count).detach()  # (points, tokens, width)
            directions.append((1 - fixed) * (texts[0] - baseline))
            points.append((texts - (1 - alphas[:, None, None]) * directions[0]).requires_grad_())
            return _like(embedded, points[0], count)

        batch = classifier.batch(tokens, np.full(len(alphas), row)).to(device)
        with _hook(table, interpolate), torch.enable_grad():
            logits = classifier(batch)[: len(alphas), output].float().sum()
            (gradient,) = torch.autograd.grad(logits, points[0])
        return (gradient * directions[0]).sum(-1).sum(0)

    every = (torch.arange(steps, device=device) + 0.5) / steps
    total = torch.zeros(count, device=device)
    for alphas in every.split(max(1, _TOKENS // count)):
        total += sum_gradients(alphas)
    return (total / steps).cpu()


def explain(
    classifier: Classifier,
    tokenizer: Any,
    texts: Sequence[str],
    tokens: Tokens,
    output: int,
    device: torch.device,
    steps: int = STEPS,
) -> list[WordAttribution]:
    """Return the attribution of each word to a logit, in order; the text, or the two, are the only row of `tokens`.

    A long text is read as in prediction: words that no sequence holds are left out, of several sequences the mean of
    their logits is attributed. Raises InputError if the tokenizer gives no character offsets.
    """
    if not tokenizer.is_fast:
        raise InputError(
            f"explanations need a fast tokenizer. Got {type(tokenizer).__name__} instead; train with a --model that "
            "has a tokenizer.json."
        )
    attribute = functools.partial(
        integrated_gradients,
        classifier,
        output=output,
        pad_token_id=get_padding_id(tokenizer),
        device=device,
        steps=steps,
    )
    if tokens.second is None:
        read = [_attribute_sequences(tokens, attribute)]
    else:
        scores = attribute(tokens, 0).numpy()
        read = [(np.arange(place.stop - place.start), scores[place]) for place in tokens.text_places(0)]
    words: list[WordAttribution] = []
    for text, (places, values) in zip(texts, read, strict=True):
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        spans = encoded["offset_mapping"]
        words += _join_tokens(text, [spans[place] for place in places.tolist()], values.tolist())
    return words


def _attribute_sequences(
    tokens: Tokens, attribute: Callable[[Tokens, int], torch.Tensor]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return the places (n,) of the tokens that are read of the one text, and their attributions (n,).

    The output layer is linear, so the logit is the mean of the sequences' logits, and so are its attributions.
    """
    sequences, places = tokens.split_sequences(0)
    total = np.zeros(int(tokens.first.lengths()[0]))
    for number, held in enumerate(places):
        scores = attribute(sequences, number).numpy()
        np.add.at(total, held, scores[sequences.text_places(number)[0]] / len(places))
    read = np.unique(np.concatenate(places))
    return read, total[read]


def _join_tokens(text: str, spans: Sequence[tuple[int, int]], values: Sequence[float]) -> list[WordAttribution]:
    """Return the words of one text with the sums over their tokens."""
    words = []
    for _, places in itertools.groupby(range(len(spans)), key=_word_numbers(text, spans).__getitem__):
        group = list(places)
        word = text[spans[group[0]][0] : spans[group[-1]][1]].strip()
        if word:
            words.append(WordAttribution(word, sum(values[place] for place in group)))
    return words


def _word_numbers(text: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    """Number the words of tokens: a new one begins after a space, and at each token without spaces between words."""
    numbers: list[int] = []
    end = 0
    for start, stop in spans:
        part = text[start:stop]
        begins = start > end or part[:1].isspace() or " " in text[end:start] or bool(_WITHOUT_SPACES.search(part))
        previous = numbers[-1] if numbers else 0
        numbers.append(previous + (1 if begins or not numbers else 0))
        end = stop
    return numbers


def _rows(embedded: torch.Tensor, steps: int, count: int) -> torch.Tensor:
    """Return embeddings, packed (1, T, H) or padded (N, L, H), as (steps, count, H)."""
    if embedded.shape[0] == 1:
        return embedded[0, : steps * count].float().reshape(steps, count, -1)
    return embedded[:steps, :count].float()


def _like(embedded: torch.Tensor, rows: torch.Tensor, count: int) -> torch.Tensor:
    """Return the embeddings with those of the texts replaced."""
    steps, rows = len(rows), rows.to(embedded.dtype)
    if embedded.shape[0] == 1:
        return torch.cat([rows.reshape(1, steps * count, -1), embedded[:, steps * count :]], dim=1)
    inner = torch.cat([rows, embedded[:steps, count:]], dim=1)
    return torch.cat([inner, embedded[steps:]])


@contextlib.contextmanager
def _hook(module: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Change the output of a module in this thread; others may compute with the same model."""
    owner = threading.get_ident()

    def hook(_: nn.Module, __: Any, output: torch.Tensor) -> torch.Tensor | None:
        return change(output) if threading.get_ident() == owner else None

    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
