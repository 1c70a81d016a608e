"""Show the prediction for a text, and the words that led to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from classify import prediction
from classify.commands import flags
from classify.config.fields import option
from classify.config.parser import CommandParser
from classify.errors import InputError, escape_controls
from classify.launch.launch import Launch

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
        words = predictor.explain(text, options.label)
        if not predictor.world.is_main:
            return 0
    task, scores = predictor.task, probabilities.tolist()
    if options.json:
        content = {
            "label": options.label or task.labels[int(probabilities.argmax())],
            task.answers.outputs: dict(zip(task.labels, scores, strict=True)),
            "words": [{"word": word.word, "score": word.score} for word in words],
        }
        print(json.dumps(content, indent=2, ensure_ascii=False))
        return 0
    lines, what = [f"{scores[0]:.3f}"], "score"
    if task.answers.has_labels:
        ranked = sorted(zip(scores, task.labels, strict=True), reverse=True)[:_TOP]
        lines = [f"{probability:.3f}  {name}" for probability, name in ranked]
        what = f"logit of {options.label or task.labels[int(probabilities.argmax())]!r}"
    lines.append(f"\nwords that raise (+) or lower (-) the {what}:")
    for word in prediction.explanations.strongest(words, _TOP):
        lines.append(f"{word.score:+7.3f}  {word.word}")
    print(escape_controls("\n".join(lines)))
    return 0
