"""The loop of `classify label`: what is asked, what is written, and what the head learns."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from classify.errors import InputError
from classify.prediction.labelling import NONE, REFIT_AFTER, AnsweredError, Labelling, Question
from classify.prediction.labels_file import Answer, LabelsFile
from classify.tasks import multi_label, single_label
from classify.tasks.base import Task

COUNT = 400
CLASSES = ["a", "b", "c"]
WIDTH = 16


def make_texts(seed: int = 0) -> tuple[list[tuple[str, ...]], np.ndarray, np.ndarray]:
    """Texts, features around the middle of each class, and the classes' numbers."""
    draw = np.random.default_rng(seed)
    truth = draw.integers(len(CLASSES), size=COUNT)
    features = 2 * np.eye(len(CLASSES), WIDTH)[truth] + draw.normal(size=(COUNT, WIDTH))
    return [(f"text number {number} is {draw.integers(1 << 60)}",) for number in range(COUNT)], features, truth


def make(tmp_path: Path, task: Task | None = None, *, started: bool = True) -> tuple[Labelling, list[str]]:
    """A labelling with a first head that is right about two of three texts, and the classes of its texts."""
    texts, features, truth = make_texts()
    layer = (np.eye(len(CLASSES), WIDTH, dtype=np.float32), np.zeros(len(CLASSES), dtype=np.float32))
    task = single_label.make(CLASSES) if task is None else task
    file = LabelsFile(tmp_path / "labels.csv", ["text"])
    found = Labelling(task, texts, features.astype(np.float32), file, layer if started else None)
    return found, [CLASSES[number] for number in truth]


def row_of(labelling: Labelling, question: Question) -> int:
    return labelling.rows.index(question.texts)


def label(labelling: Labelling, truth: list[str], count: int, tab: str = "tab") -> None:
    for _ in range(count):
        question = labelling.ask(tab)
        assert question is not None
        labelling.answer(tab, question.key, [truth[row_of(labelling, question)]])
        if labelling.is_due:
            labelling.refit()


def read(tmp_path: Path) -> list[dict[str, str]]:
    with (tmp_path / "labels.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def accuracy(labelling: Labelling, truth: list[str]) -> float:
    predicted = labelling.probabilities(labelling.features).argmax(axis=1).tolist()
    return float(np.mean([labelling.labels[number] == one for number, one in zip(predicted, truth, strict=True)]))


@pytest.mark.parametrize("started", [True, False])
def test_the_head_learns_and_its_score_is_honest(tmp_path: Path, started: bool) -> None:
    labelling, truth = make(tmp_path, started=started)
    label(labelling, truth, 250)
    assert labelling.standing is not None
    assert labelling.standing.rows > 50
    now = accuracy(labelling, truth)
    assert now > 0.85
    low, high = labelling.standing.interval
    assert low <= now <= high + 0.05
    assert labelling.standing.gain is not None
    assert 0 <= labelling.standing.gain < 0.3
    written = read(tmp_path)
    assert len({row["text"] for row in written}) == len(written) == 250
    share = sum(row["chosen"] == "random" for row in written) / 250
    assert 0.15 <= share <= 0.3


def test_uncertain_texts_come_first(tmp_path: Path) -> None:
    labelling, truth = make(tmp_path)
    label(labelling, truth, 50)
    asked = [question for question in read(tmp_path) if question["chosen"] == "uncertain"]
    places = [labelling.rows.index((row["text"],)) for row in asked[:8]]
    task = labelling.task
    start = labelling.features @ np.eye(len(CLASSES), WIDTH, dtype=np.float32).T
    certainty = task.answers.certainty(task.answers.probabilities(start))
    assert certainty[places].max() < np.median(certainty) / 4


def test_each_answer_is_on_the_disk_and_a_restart_goes_on(tmp_path: Path) -> None:
    labelling, truth = make(tmp_path)
    for count in range(1, 4):
        label(labelling, truth, 1)
        assert len(read(tmp_path)) == count
    again, _ = make(tmp_path)
    assert again.labelled == labelling.labelled
    question = again.ask("tab")
    assert question is not None
    assert row_of(again, question) not in again.labelled


def test_two_tabs_do_not_write_a_text_twice(tmp_path: Path) -> None:
    labelling, _ = make(tmp_path)
    first, second = labelling.ask("one"), labelling.ask("two")
    assert first is not None
    assert second is not None
    assert first.key != second.key
    assert labelling.ask("one") == first  # until it is answered
    labelling.answer("one", first.key, ["a"])
    with pytest.raises(AnsweredError, match="has the label"):
        labelling.answer("two", first.key, ["b"])
    assert [row["label"] for row in read(tmp_path)] == ["a"]


def test_undo_asks_again_and_skipped_texts_come_last(tmp_path: Path) -> None:
    labelling, truth = make(tmp_path)
    label(labelling, truth, 2)
    before = read(tmp_path)
    question = labelling.ask("tab")
    assert question is not None
    labelling.answer("tab", question.key, ["a"], note="not sure")
    assert read(tmp_path)[-1]["note"] == "not sure"
    again = labelling.undo("tab")
    assert again is not None
    assert again.key == question.key
    assert read(tmp_path) == before
    labelling.answer("tab", again.key, None)
    assert read(tmp_path) == before
    label(labelling, truth, COUNT - 3)
    last = labelling.ask("tab")
    assert last is not None
    assert last.key == question.key
    labelling.answer("tab", last.key, ["a"])
    assert labelling.ask("tab") is None


def test_edits_of_others_are_kept(tmp_path: Path) -> None:
    labelling, truth = make(tmp_path)
    label(labelling, truth, 3)
    lines = (tmp_path / "labels.csv").read_text(encoding="utf-8").splitlines()
    first = read(tmp_path)[0]["text"]
    # Sorted, the first one's label changed, the second deleted, a foreign one added, no newline at the end.
    lines = [lines[0], lines[3], "", "a text of elsewhere,b,,", f"{first},typed by hand,,uncertain"]
    (tmp_path / "labels.csv").write_text("\n".join(lines), encoding="utf-8")
    label(labelling, truth, 1)
    rows = read(tmp_path)
    assert len(rows) == 4
    assert rows[1]["text"] == "a text of elsewhere"
    assert "typed by hand" in labelling.labels
    assert len(labelling.labelled) == 3
    assert labelling.undo("tab") is not None
    assert [row["text"] for row in read(tmp_path)] == [row["text"] for row in rows[:3]]


def test_classes_that_are_typed_in_another_case_are_the_same(tmp_path: Path) -> None:
    labelling, _ = make(tmp_path)
    question = labelling.ask("tab")
    assert question is not None
    labelling.answer("tab", question.key, ["A"])
    assert read(tmp_path)[0]["label"] == "a"
    with (tmp_path / "labels.csv").open("a", encoding="utf-8") as file:
        file.write(f"{labelling.rows[9][0]},B,,\n{labelling.rows[8][0]},d|e,,\n")
    labelling.ask("tab")
    labelling.refit()
    assert labelling.labels == [*CLASSES, "d|e"]


def test_the_score_is_of_the_same_texts_where_the_table_has_changed(tmp_path: Path) -> None:
    labelling, truth = make(tmp_path)
    label(labelling, truth, 200)
    assert labelling.standing is not None
    texts, features, _ = make_texts()
    keep = [number for number in range(COUNT) if number != labelling.rows.index(labelling.rows[7])]
    file = LabelsFile(tmp_path / "labels.csv", ["text"])
    again = Labelling(labelling.task, [texts[row] for row in keep], features[keep].astype(np.float32), file)
    assert again.standing is not None
    assert abs(again.standing.rows - labelling.standing.rows) <= 1


def test_a_sorted_table_has_a_score(tmp_path: Path) -> None:
    texts, features, truth = make_texts()
    order = np.argsort(truth, kind="stable")
    file = LabelsFile(tmp_path / "labels.csv", ["text"])
    rows = [texts[row] for row in order]
    labelling = Labelling(single_label.make([]), rows, features[order].astype(np.float32), file)
    label(labelling, [CLASSES[number] for number in truth[order]], 12 * REFIT_AFTER)
    assert labelling.standing is not None
    assert labelling.standing.rows > 20


def test_undo_is_of_the_own_answers_and_skips(tmp_path: Path) -> None:
    labelling, truth = make(tmp_path)
    label(labelling, truth, 1, "one")
    assert labelling.undo("two") is None
    assert len(read(tmp_path)) == 1
    question = labelling.ask("one")
    assert question is not None
    labelling.answer("one", question.key, None)
    assert labelling.undo("one") == question
    assert len(read(tmp_path)) == 1
    assert labelling.undo("one") is not None
    assert read(tmp_path) == []


def test_a_text_of_another_table_is_not_labelled(tmp_path: Path) -> None:
    labelling, _ = make(tmp_path)
    with pytest.raises(AnsweredError, match="not in the table"):
        labelling.answer("tab", "12345", ["a"])
    assert not (tmp_path / "labels.csv").exists()


def test_texts_that_wait_in_closed_tabs_are_asked_in_the_end(tmp_path: Path) -> None:
    labelling, truth = make(tmp_path)
    for number in range(5):
        labelling.ask(f"closed {number}")
    label(labelling, truth, COUNT)
    assert labelling.ask("tab") is None
    assert len(read(tmp_path)) == COUNT


def test_a_line_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file = LabelsFile(tmp_path / "labels.csv", ["text"])
    odd = ["a\rb", 'with "quotes", commas', "two\nlines", "x" * 200_000]
    for text in odd:
        file.append([text], Answer("a"))
    assert len(LabelsFile(tmp_path / "labels.csv", ["text"]).answers) == len(odd)
    before = (tmp_path / "labels.csv").read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="full"):
            file.append(["another"], Answer("a"))
    assert (tmp_path / "labels.csv").read_bytes() == before


def fail(number: int) -> None:
    raise OSError("the disk is full")


def test_further_columns_stay_and_missing_ones_are_named(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("id,label,text,note,chosen\n7,a,one,,\n")
    file = LabelsFile(path, ["text"])
    file.append(["two"], Answer("b"))
    assert [(row["id"], row["text"], row["label"]) for row in read(tmp_path)] == [("7", "one", "a"), ("", "two", "b")]
    path.write_text("text,label\none,a\n")
    with pytest.raises(InputError, match="has no column 'note'"):
        LabelsFile(path, ["text"])
    with pytest.raises(InputError, match="column 'note' holds texts"):
        LabelsFile(tmp_path / "new.csv", ["note"])
    path.write_bytes("text,label,note,chosen\nä,a,,\n".encode("cp1252"))
    with pytest.raises(InputError, match="UTF-8"):
        LabelsFile(path, ["text"])


def test_an_empty_file_is_begun_and_another_table_refused(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").touch()
    labelling, truth = make(tmp_path)
    label(labelling, truth, 1)
    assert len(read(tmp_path)) == 1
    (tmp_path / "labels.csv").write_text("id;name\n1;2\n")
    with pytest.raises(InputError, match="has no column 'text'"):
        make(tmp_path)


def test_classes_are_typed(tmp_path: Path) -> None:
    labelling, truth = make(tmp_path, single_label.make([]), started=False)
    question = labelling.ask("tab")
    assert question is not None
    assert question.likely == ()
    label(labelling, truth, 5 * REFIT_AFTER)
    assert sorted(labelling.labels) == CLASSES
    assert accuracy(labelling, truth) > 0.7
    last = labelling.ask("tab")
    assert last is not None
    for wrong in ([" "], ["a", "b"]):
        with pytest.raises(InputError, match="expected one label"):
            labelling.answer("tab", last.key, wrong)


def test_texts_of_none_of_the_classes(tmp_path: Path) -> None:
    labelling, truth = make(tmp_path)
    question = labelling.ask("tab")
    assert question is not None
    labelling.answer("tab", question.key, [])
    assert read(tmp_path)[0]["label"] == NONE
    label(labelling, truth, 2 * REFIT_AFTER)
    assert labelling.labels == CLASSES


def test_sets_of_labels(tmp_path: Path) -> None:
    labelling, truth = make(tmp_path, multi_label.make(CLASSES))
    for number in range(6 * REFIT_AFTER):
        question = labelling.ask("tab")
        assert question is not None
        labels = [] if number % 9 == 0 else [truth[row_of(labelling, question)]]
        labelling.answer("tab", question.key, ["a", "b"] if number == 1 else labels)
        if labelling.is_due:
            labelling.refit()
    written = [row["label"] for row in read(tmp_path)]
    assert written[0] == "[]"
    assert written[1] == "a|b"
    assert accuracy(labelling, truth) > 0.7
    question = labelling.ask("tab")
    assert question is not None
    with pytest.raises(InputError, match="labels of the model"):
        labelling.answer("tab", question.key, ["d"])
