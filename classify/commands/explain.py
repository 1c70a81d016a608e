"""Show the prediction for a text, and the words that led to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from classify import prediction
from classify.commands import flags
from classify.config.fields import option
from classify.config.parser import CommandParser
from classify.errors import InputError, escape_controls
from classify.launch.launch import Launch

if TYPE_CHECKING:
    from classify.prediction.explanations import WordAttribution
    from classify.tasks.base import Task

# Labels and words that are listed.
_TOP = 10


@dataclass(frozen=True)
class Options(flags.ModelOptions):
    text: tuple[str, ...] = option((), "the text, or the two of a pair", "TEXT")
    label: str | None = option(None, "explain this label instead of the predicted one", metavar="LABEL")
    json: bool = option(False, "print JSON")


def make_parser(program: str) -> CommandParser[Options]:
    return CommandParser(
        Options,
        program,
        "Show the prediction for a text, and by how much its logit falls without each word.",
        f'{program} --model FOLDER "a text" ["its second text"] [flags]',
    )


def run(arguments: Sequence[str], program: str) -> int:
    options = make_parser(program).read(arguments, ["model"])
    if not any(map(str.strip, options.text)):
        raise InputError(f"{program}: expected a text in quotes. Got {'an empty one' if options.text else 'none'}.")
    with options.load(Launch.read()) as predictor:
        if predictor.texts.pair is None:
            text: Any = " ".join(options.text)
        elif len(options.text) == 2 and all(map(str.strip, options.text)):
            text = tuple(options.text)
        else:
            raise InputError(
                f"{options.model}: the model was trained on text pairs; expected two texts, each in quotes. "
                f"Got {len(options.text)}, {sum(not text.strip() for text in options.text)} of them empty."
            )
        probabilities = predictor.probabilities([text])[0]
        # Of several label columns, each, or the one that --label names, by itself or before a label.
        names, label = [column.name for column in predictor.task.columns], options.label
        asked = [name for name in names if label is None or label == name or label.startswith(f"{name}: ")]
        labels: list[str | None] = [*asked] if label is None and asked else [label]
        words = [predictor.explain(text, one) for one in labels]
        if asked and label is not None:
            label = label.removeprefix(f"{asked[0]}: ") if label != asked[0] else None
        if not predictor.world.is_main:
            return 0
    task = predictor.task
    of_columns = [(task.of_column(name).task, probabilities[task.of_column(name).outputs]) for name in asked]
    parts = [
        _Explanation(*part, found, label)
        for part, found in zip(of_columns or [(task, probabilities)], words, strict=True)
    ]
    if options.json:
        content = dict(zip(asked, (part.as_json() for part in parts), strict=True)) if asked else parts[0].as_json()
        print(json.dumps(content, indent=2, ensure_ascii=False))
        return 0
    lines = [line for name, part in zip(asked or [""], parts, strict=True) for line in part.lines(name)]
    print(escape_controls("\n".join(lines)))
    return 0


@dataclass(frozen=True)
class _Explanation:
    """The probabilities (outputs,) of a text, and the words behind a `label`, by default the predicted one."""

    task: Task
    probabilities: npt.NDArray[np.float64]
    words: list[WordAttribution]
    label: str | None

    @property
    def explained(self) -> str:
        return self.label or self.task.labels[int(self.probabilities.argmax())]

    def as_json(self) -> dict[str, Any]:
        return {
            "label": self.explained,
            self.task.answers.outputs: dict(zip(self.task.labels, self.probabilities.tolist(), strict=True)),
            "words": [{"word": word.word, "score": word.score} for word in self.words],
        }

    def lines(self, column: str) -> list[str]:
        """The lines for a terminal, below the name of one of several label columns."""
        scores = self.probabilities.tolist()
        lines, what = [f"{scores[0]:.3f}"], "score"
        if self.task.answers.has_labels:
            ranked = sorted(zip(scores, self.task.labels, strict=True), reverse=True)[:_TOP]
            lines = [f"{probability:.3f}  {name}" for probability, name in ranked]
            what = f"logit of {self.explained!r}"
        lines.append(f"\nwords that raise (+) or lower (-) the {what}:")
        lines += [f"{word.score:+7.3f}  {word.word}" for word in prediction.explanations.strongest(self.words, _TOP)]
        return [f"{column}:", *lines, ""] if column else lines
