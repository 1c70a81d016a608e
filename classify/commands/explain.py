"""Show the prediction for a text, and the words that led to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from classify.commands import flags
from classify.config.parser import Parser
from classify.errors import InputError, escape_controls

# Labels and words that are listed.
_TOP = 10


def make_parser(program: str) -> Parser:
    parser = Parser(
        prog=program,
        usage=f'{program} --model FOLDER "a text" ["its second text"] [flags]',
        description="Show the prediction for a text, and by how much its logit falls without each word.",
    )
    parser.add_argument("text", nargs="*", metavar="TEXT", help="the text, or the two of a pair")
    flags.add_model(parser)
    parser.add_argument("--label", metavar="LABEL", help="explain this label instead of the predicted one")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(arguments: Sequence[str], program: str) -> int:
    options = make_parser(program).parse(arguments, ["model"])
    if not any(map(str.strip, options.text)):
        raise InputError(f"{program}: expected a text in quotes. Got {'an empty one' if options.text else 'none'}.")
    from classify.prediction.predictor import load_classifier

    with load_classifier(
        options.model, use_cpu=options.cpu, precision=options.precision, distributed=True
    ) as predictor:
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
        task = predictor.task
        label = options.label or task.labels[int(probabilities.argmax())]
    if options.json:
        content = {
            "label": label,
            "probabilities" if task.answers.has_labels else "scores": dict(
                zip(task.labels, probabilities.tolist(), strict=True)
            ),
            "words": [{"word": word.word, "score": word.score} for word in words],
        }
        print(json.dumps(content, indent=2, ensure_ascii=False))
        return 0
    if task.answers.has_labels:
        ranked = sorted(zip(probabilities.tolist(), task.labels, strict=True), reverse=True)[:_TOP]
        for probability, name in ranked:
            print(escape_controls(f"{probability:.3f}  {name}"))
    else:
        print(f"{probabilities[0]:.3f}")
    what = f"logit of {label!r}" if task.answers.has_labels else "score"
    print(escape_controls(f"\nwords that raise (+) or lower (-) the {what}:"))
    for word in sorted(words, key=lambda word: -abs(word.score))[:_TOP]:
        print(escape_controls(f"{word.score:+7.3f}  {word.word}"))
    return 0
