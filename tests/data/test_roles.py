"""Columns of texts and labels: by flags, known names, or what they measure; else a question whose flags answer it."""

from __future__ import annotations

import contextlib
import random
import re
import shlex
from pathlib import Path

import pytest
import yaml

from classify.errors import InputError
from classify.tables.profile import SURE, measure_told
from classify.tables.read import read_table
from classify.tables.roles import TextColumns, find_columns, find_text_columns
from classify.tables.source import QuestionError
from tests.support import corpus
from tests.support.tiny import table_rows

ROWS = table_rows(400)
DRAW = random.Random(3)


def write(folder: Path, columns: dict[str, list[str]]) -> str:
    rows = [list(columns), *map(list, zip(*columns.values(), strict=True))]
    (folder / "my.csv").write_text("".join("\t".join(row) + "\n" for row in rows))
    return str(folder / "my.csv")


TEXTS = [text for text, _ in ROWS]
LABELS = [label for _, label in ROWS]


def test_what_texts_tell_is_measured() -> None:
    """Of random columns, common or rare, one in forty at most seems to be told."""
    assert measure_told(TEXTS, LABELS) > 2 * SURE
    assert measure_told(TEXTS * 5, ["ab"[DRAW.random() < 0.1] for _ in range(2000)]) < SURE, "copies count once"
    told = [measure_told(TEXTS, ["ab"[DRAW.random() < share] for _ in TEXTS]) > SURE for share in (0.5, 0.1) * 60]
    assert sum(told) <= 7


@pytest.mark.parametrize(
    ("columns", "text", "label"),
    [
        ({"id": [str(n) for n in range(400)], "a": TEXTS, "b": LABELS}, "a", "b"),
        ({"status": DRAW.choices(["open", "shut"], k=400), "body": TEXTS, "queue": LABELS}, "body", "queue"),
        ({"text": TEXTS, "predicted_label": LABELS, "label": LABELS}, "text", "label"),
        ({"text": TEXTS, "author": DRAW.choices(["Ann", "Bob"], k=400)}, "text", "author"),
        ({"title": [f"about {n}" for n in range(400)], "body": TEXTS, "kind": LABELS}, "body", "kind"),
    ],
)  # fmt: skip
def test_columns_that_leave_no_doubt(tmp_path: Path, columns: dict[str, list[str]], text: str, label: str) -> None:
    found = find_columns(read_table(write(tmp_path, columns)))
    assert (found.texts.named, found.labels) == ((text,), (label,))


def test_texts_that_are_not_read_are_named_with_the_flags(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, {"text": TEXTS, "reply": TEXTS[::-1], "label": LABELS}))
    (finding,) = [one for one in find_columns(table).findings if one.level == "note"]
    assert "column 'reply' not read; --text-column \"text,reply\" joins them, --text-pair-column" in finding.text


@pytest.mark.parametrize(
    ("columns", "question"),
    [
        ({"prompt": TEXTS, "reply": TEXTS[::-1], "label": LABELS}, "--text-pair-column .* for a pair"),
        ({"text": TEXTS, "topic": LABELS, "team": LABELS[3:] + LABELS[:3]}, 'labels: "topic" .*, "team" '),
        ({"text": TEXTS, "predicted_label": LABELS}, 'labels: "predicted_label"'),
        ({"text": TEXTS, "predicted": LABELS, "topic": LABELS}, 'labels: "predicted" .*, "topic" '),
        ({"parts": [f'["{text}"]' for text in TEXTS], "label": LABELS}, 'texts: "parts" .* --text-column "parts"'),
    ],
)
def test_two_that_fit_are_asked(tmp_path: Path, columns: dict[str, list[str]], question: str) -> None:
    with pytest.raises(QuestionError, match=question):
        find_columns(read_table(write(tmp_path, columns)))


def test_columns_of_0_and_1_are_labels_where_each_is_told(tmp_path: Path) -> None:
    marks = {name: [str(int(label == name)) for label in LABELS] for name in ("card", "money", "app")}
    assert find_columns(read_table(write(tmp_path, {"text": TEXTS, **marks}))).labels == ("card", "money", "app")
    marks["money"] = DRAW.choices("01", k=400)
    with pytest.raises(QuestionError, match=r"--label-column \"card,money,app\" for a label each"):
        find_columns(read_table(write(tmp_path, {"text": TEXTS, **marks})))


def test_faults_of_flags_come_together(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, {"text": TEXTS, "label": LABELS}))
    with pytest.raises(InputError) as caught:
        find_columns(table, "body", "topic")
    assert [fault.split(":")[0] for fault in caught.value.faults] == ["--text-column body", "--label-column topic"]
    with pytest.raises(InputError, match=r"flags name the column 'label' .* twice"):
        find_columns(table, "text", "Label", "label")


def test_the_text_column_of_a_table_to_predict(tmp_path: Path) -> None:
    trained = TextColumns(("text",))
    table = read_table(write(tmp_path, {"TEXT": TEXTS, "n": LABELS}))
    assert find_text_columns(table, trained, None, None).fields == ("TEXT",)
    alone = read_table(write(tmp_path, {"message": TEXTS}))
    assert find_text_columns(alone, trained, None, None).fields == ("message",)
    other = read_table(write(tmp_path, {"message": TEXTS, "n": LABELS}))
    with pytest.raises(InputError, match=r"no column 'text', which the model was trained on; it has: 'message', 'n'"):
        find_text_columns(other, trained, None, None)


def proposals(error: QuestionError) -> list[list[str]]:
    """The words of each flag that the questions propose, beside the first flag of the other questions."""
    flags = [[re.split(r" (?:for|to) (?:a|use|leave|keep)", flag)[0] for flag in one.flags] for one in error.questions]
    words = [[shlex.split(flag) for flag in those if flag.startswith("--")] for those in flags]
    return [
        [*proposed, *(word for other in words if other is not those for word in other[0])]
        for those in words
        for proposed in those
    ]


def outcome(arguments: list[str]) -> InputError | None:
    try:
        corpus.read(arguments)
    except InputError as error:
        return error
    return None


@pytest.mark.parametrize("folder", corpus.find_tables(corpus.CORPUS), ids=lambda folder: folder.name)
def test_a_proposal_works(folder: Path) -> None:
    """What a question proposes does not end in the same question, or in an error that it could have foreseen."""
    flags = yaml.safe_load((folder / "expected.yaml").read_text()).get("flags")
    with contextlib.chdir(folder):
        arguments = corpus.arguments(folder, flags)
        asked = outcome(arguments)
        for words in proposals(asked) if isinstance(asked, QuestionError) else ():
            then = str(outcome([*arguments, *words]) or "")
            assert then != str(asked), words
            foreseen = re.search("no such|column .* twice|unknown|unexpected|contradict|expected .* fields", then)
            assert foreseen is None or folder.name == "openai_messages", f"{words}: {then}"
