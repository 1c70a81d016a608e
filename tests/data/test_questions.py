"""What a table leaves open is asked: the error's class, flags and candidates; the sentences are in one file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from classify.config.schema import DataConfig
from classify.data.reading import read_tables
from classify.tables.decide import Answer, Candidate, Doubt, DoubtError, choose
from classify.tables.formats.base import ReadOptions
from classify.tables.formats.registry import read_table
from classify.tasks.registry import recognize

SENTENCES = yaml.safe_load(Path(__file__).with_name("questions.yaml").read_text(encoding="utf-8"))
TEXTS = [f"the customer writes about matter number {row}, and wants an answer" for row in range(60)]


def lines(*columns: str) -> str:
    """Return a table of TEXTS and further columns: a name and the values that are repeated, as `name:a,b`."""
    named = [(name, values.split("/")) for name, _, values in (column.partition(":") for column in columns)]
    rows = [f'"{text}",' + ",".join(values[row % len(values)] for _, values in named) for row, text in enumerate(TEXTS)]
    return "\n".join([",".join(["text", *(name for name, _ in named)]), *rows]) + "\n"


# Content, and of each doubt the flag and how many candidates it has.
QUESTIONS: dict[str, tuple[bytes, list[tuple[str, int]]]] = {
    "two labels": (lines("intent:a/b", "topic:x/y/z").encode(), [('--label-column "intent"', 2)]),
    "label is doubtful": (
        lines("label:" + "/".join(f"intent {n}" for n in range(45)), "category:x/y/z").encode(),
        [('--label-column "label"', 2)],
    ),
    "no text and no label": (b"a,b\n" + b"".join(b"%d,%d\n" % (n, n % 7) for n in range(50)), [
        ('--text-column "a"', 1), ('--label-column "b"', 1),
    ]),
    "separator": (lines("label:ab cd/ab/cd/ef/ab ef").encode(), [("--label-separator 'space'", 2)]),
    "delimiter": (b"text^label\n" + b"words here^a\nmore words^b\n" * 20, [("--delimiter '^'", 1)]),
    "encoding": (b"text,label\n" + b"abc \xe4\xf5 def,a\nother words,b\n" * 20, [("--encoding cp1252", 5)]),
    "first row": (b"good text here,pos\nbad text here,neg\n" * 3 + b"good text here,pos\n", [("--header", 2)]),
    "split": (lines("label:a/b", "split:train/train/later").encode(), [
        ("--split-column split once they are train, validation or test, or --split-column none", 1),
    ]),
    "number or list": (lines("score:3,1/4/2,5".replace("3,1", '"3,1"').replace("2,5", '"2,5"')).encode(), [
        ("--task regression", 2),
    ]),
}  # fmt: skip


def ask(path: Path) -> DoubtError:
    with pytest.raises(DoubtError) as caught:
        recognize(read_tables(DataConfig(data=str(path))))
    return caught.value


@pytest.mark.parametrize("name", QUESTIONS)
def test_what_is_open_is_asked(tmp_path: Path, name: str) -> None:
    content, doubts = QUESTIONS[name]
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    error = ask(path)
    assert [(doubt.flag, len(doubt.candidates)) for doubt in error.doubts] == doubts
    assert str(error).replace(str(path), "table.csv") == SENTENCES[name]


def test_every_question_has_its_sentence() -> None:
    assert SENTENCES.keys() == QUESTIONS.keys()


@pytest.mark.parametrize(
    ("points", "outcome"), [((5.0, 1.0), "taken"), ((5.0, 3.5), "printed"), ((5.0, 4.5), "asked"), ((0.1,), "asked")]
)
def test_the_best_is_taken_if_it_is_ahead(points: tuple[float, ...], outcome: str) -> None:
    candidates = [Candidate(number, value, f"number {number}", "--number") for number, value in enumerate(points)]
    answer = choose("the number", candidates, fewest=1.0)
    if isinstance(answer, Doubt):
        assert outcome == "asked"
        assert answer.candidates[0] == "number 0"
    else:
        assert isinstance(answer, Answer)
        assert (answer.value, answer.clear) == (0, outcome == "taken")


@pytest.mark.parametrize(
    ("name", "options", "columns", "rows"),
    [
        ("delimiter", {"delimiter": "^"}, ["text", "label"], 40),
        ("encoding", {"encoding": "cp1257"}, ["text", "label"], 40),
        ("first row", {"header": False}, ["column_1", "column_2"], 7),
        ("first row", {"header": True}, ["good text here", "pos"], 6),
        ("first row", {"header": False, "skip_lines": 2}, ["column_1", "column_2"], 5),
        ("two labels", {"quote": ""}, ["text", "intent", "topic"], 60),
    ],
)
def test_a_flag_answers(tmp_path: Path, name: str, options: dict[str, object], columns: list[str], rows: int) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(QUESTIONS[name][0].replace(b", and", b" and"))
    table = read_table(str(path), options=ReadOptions(**options))  # type: ignore[arg-type]
    assert (table.columns, len(table)) == (columns, rows)
    assert {key: table.reading[key] for key in options} == options
