"""Tables with odd columns: a name counts only where the values fit, and what stays unclear is asked for."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from classify.errors import InputError
from classify.tables.columns import Columns, find_columns
from classify.tables.formats.registry import read_table

ROWS = 120
WORDS = "the card is lost and my order was late please help me today with this new phone bill again".split()  # noqa: SIM905
Make = Callable[[int, random.Random], object]


def words(low: int, high: int) -> Make:
    return lambda row, draw: " ".join(draw.choices(WORDS, k=draw.randint(low, high))) + f" {row}"


def choose(*values: object) -> Make:
    return lambda row, draw: draw.choice(values)


TEXT, LONG, SHORT, QUERY = words(5, 15), words(30, 60), words(2, 4), words(1, 2)
CHINESE: Make = lambda row, draw: "".join(draw.choices("我的卡丢了请帮助订单太慢手机坏退款", k=draw.randint(12, 30)))  # noqa: E731
CLASS, NUMBERED, RATING = choose("billing", "login", "other"), choose(0, 1, 2), choose(1, 2, 3, 4, 5)
SWITCH, BOOLEAN, CODE_CLASS = choose(0, 1), choose("True", "False"), choose("A1", "B2", "C3")
ID: Make = lambda row, draw: row  # noqa: E731
TICKET: Make = lambda row, draw: f"T-{10_000 + row}"  # noqa: E731
QUESTION_ID: Make = lambda row, draw: f"Q{row}"  # noqa: E731
EMAIL: Make = lambda row, draw: f"user{row}@example.com"  # noqa: E731
URL: Make = lambda row, draw: f"https://example.com/tickets/{row}"  # noqa: E731
FILE: Make = lambda row, draw: f"data/letters/{row}.txt"  # noqa: E731
DATE: Make = lambda row, draw: f"2024-0{draw.randint(1, 9)}-{draw.randint(10, 28)}"  # noqa: E731
GERMAN_DATE: Make = lambda row, draw: f"{draw.randint(1, 3)}.{draw.randint(1, 2)}.2024"  # noqa: E731
MONTH_DATE: Make = lambda row, draw: f"{draw.randint(1, 3)} Mar 2024"  # noqa: E731
HEADER_DATE: Make = lambda row, draw: f"Mon, {row % 28 + 1} May 2001 16:39:{row % 60:02} -0700 (PDT)"  # noqa: E731
LOG_LINE: Make = lambda row, draw: f"2024-01-01 10:{row % 60:02}:00 ERROR [main] {' '.join(draw.choices(WORDS, k=9))}"  # noqa: E731
TOKENS: Make = lambda row, draw: str([*draw.choices(WORDS, k=20), str(row)])  # noqa: E731
MARKED: Make = lambda row, draw: f"[CLS] {' '.join(draw.choices(WORDS, k=12))} {row} [SEP]"  # noqa: E731
TAGS: Make = lambda row, draw: str(draw.sample(WORDS, k=2))  # noqa: E731
CLOCK: Make = lambda row, draw: f"{draw.randint(8, 12)}:30"  # noqa: E731
PRICE: Make = lambda row, draw: f"{draw.randint(1, 999)}.{draw.randint(10, 99)}"  # noqa: E731
SALUTATION, JOB, LANGUAGE = choose("Mr", "Mrs"), choose("Head of Sales", "Data Engineer"), choose("en", "de")
NAME: Make = lambda row, draw: draw.choice(["Ann", "Bob", "Cleo"]) + f"{draw.randint(1, 30):c}"  # noqa: E731
CONSTANT, EMPTY = choose("web"), choose("")
COUNT: Make = lambda row, draw: draw.randint(1, 1000)  # noqa: E731
TOPIC: Make = lambda row, draw: f"{draw.choice(WORDS)} {row}"  # noqa: E731

# Columns with what they hold, and the text and the label; or a word of the refusal.
TABLES: dict[str, tuple[dict[str, Make], tuple[str, str] | str]] = {
    # What was guessed wrong by names alone.
    "email addresses": ({"email": EMAIL, "request": TEXT, "label": CLASS}, ("request", "label")),
    "a rating": ({"Bewertung": RATING, "Rezension": TEXT}, ("Rezension", "Bewertung")),
    "salutations": ({"Title": SALUTATION, "Complaint": TEXT, "Category": CLASS}, ("Complaint", "Category")),
    "a heading": ({"Title": SHORT, "Review Text": LONG, "Label": CLASS}, "several columns could hold the text"),
    "a heading and a story": ({"Title": SHORT, "Story": LONG, "Label": CLASS}, "another column holds longer texts"),
    "job titles": ({"title": JOB, "job_text": LONG, "label": CLASS}, ("job_text", "label")),
    "question numbers": ({"question": QUESTION_ID, "answer": TEXT, "label": CLASS}, ("answer", "label")),
    "post numbers": ({"post": ID, "body_html": TEXT, "label": CLASS}, ("body_html", "label")),
    "paths": ({"document": FILE, "extract": TEXT, "label": CLASS}, ("extract", "label")),
    "an id": ({"content": TICKET, "said": TEXT, "label": CLASS}, ("said", "label")),
    "row numbers": ({"text": ID, "utterance": TEXT, "label": CLASS}, ("utterance", "label")),
    "row numbers alone": ({"text": ID, "label": CLASS}, "looks like a text; 'text' holds numbers"),
    "counts": ({"text": TEXT, "target": COUNT}, "the values of 'target' rarely repeat"),
    "topics of their own": ({"text": TEXT, "topic": TOPIC}, "the values of 'topic' rarely repeat"),
    "counts and classes": ({"text": TEXT, "target": COUNT, "kind": CLASS}, "kind (3 values"),
    # Names that fit.
    "plain": ({"text": TEXT, "label": CLASS}, ("text", "label")),
    "swapped": ({"label": CLASS, "text": TEXT}, ("text", "label")),
    "upper case": ({"TEXT": TEXT, "LABEL": NUMBERED}, ("TEXT", "LABEL")),
    "queries": ({"query": QUERY, "intent": CLASS}, ("query", "intent")),
    "numbers as classes": ({"sentence": TEXT, "label": NUMBERED}, ("sentence", "label")),
    "a hundred numbers": ({"text": TEXT, "label": choose(*range(25))}, ("text", "label")),
    "switches as classes": ({"comment": TEXT, "label": SWITCH}, ("comment", "label")),
    "booleans": ({"text": TEXT, "is_spam": BOOLEAN}, ("text", "is_spam")),
    "codes as classes": ({"text": TEXT, "grade": CODE_CLASS}, ("text", "grade")),
    "stars": ({"review": TEXT, "stars": RATING}, ("review", "stars")),
    "an index": ({"Unnamed: 0": ID, "text": TEXT, "label": CLASS}, ("text", "label")),
    "id, date, language": ({"id": ID, "date": DATE, "lang": LANGUAGE, "text": TEXT, "label": CLASS}, ("text", "label")),
    "text before title": ({"title": SHORT, "text": TEXT, "label": CLASS}, ("text", "label")),
    "label before topic": ({"text": TEXT, "topic": CLASS, "label": CLASS}, ("text", "label")),
    "queue": ({"Customer": NAME, "Text": TEXT, "Queue": CLASS, "Source": LANGUAGE}, ("Text", "Queue")),
    "Abteilung": ({"Text": TEXT, "Abteilung": CLASS, "Sprache": LANGUAGE}, ("Text", "Abteilung")),
    "department": ({"message": TEXT, "Department": CLASS, "VIP": SWITCH}, ("message", "Department")),
    "words with spaces": ({"Review Text": TEXT, "Label Name": CLASS}, ("Review Text", "Label Name")),
    # Other languages.
    "German": ({"Nachricht": TEXT, "Kategorie": CLASS}, ("Nachricht", "Kategorie")),
    "French": ({"commentaire": TEXT, "catégorie": CLASS}, ("commentaire", "catégorie")),
    "Spanish": ({"mensaje": TEXT, "etiqueta": CLASS}, ("mensaje", "etiqueta")),
    "Russian": ({"текст": TEXT, "метка": CLASS}, ("текст", "метка")),
    "Chinese": ({"评论": CHINESE, "标签": CLASS}, ("评论", "标签")),
    "Japanese": ({"本文": CHINESE, "ラベル": CLASS}, ("本文", "ラベル")),
    "Arabic": ({"النص": TEXT, "تصنيف": CLASS}, ("النص", "تصنيف")),
    # By content alone.
    "foo and bar": ({"foo": TEXT, "bar": CLASS}, ("foo", "bar")),
    "short texts by content": ({"foo": SHORT, "bar": CLASS}, ("foo", "bar")),
    "Chinese by content": ({"甲": CHINESE, "乙": CLASS}, ("甲", "乙")),
    "text and id": ({"number": TICKET, "what": TEXT, "kind": CLASS}, ("what", "kind")),
    "url and date": ({"url": URL, "when": DATE, "what": TEXT, "kind": CLASS}, ("what", "kind")),
    "constant": ({"channel": CONSTANT, "what": TEXT, "kind": CLASS}, ("what", "kind")),
    "empty": ({"notes": EMPTY, "what": TEXT, "kind": CLASS}, ("what", "kind")),
    "price": ({"price": PRICE, "what": TEXT, "kind": CLASS}, "price holds numbers on a scale"),
    # Dates are not labels.
    "text and date": ({"text": TEXT, "date": GERMAN_DATE}, "looks like a label"),
    "months": ({"what": TEXT, "when": MONTH_DATE}, "looks like a label"),
    "clock": ({"text": TEXT, "time": CLOCK, "kind": CLASS}, ("text", "kind")),
    "objects": ({"what": TEXT, "tags": choose('{"a": 1}', '{"a": 0}')}, "looks like a label"),
    "a date called target": ({"text": TEXT, "target": GERMAN_DATE}, "'target' are dates or times"),
    "dates of mails": ({"sent": HEADER_DATE, "what": TEXT, "kind": CLASS}, ("what", "kind")),
    "lines that begin with a date": ({"message": LOG_LINE, "label": CLASS}, ("message", "label")),
    "tokens beside the text": ({"tweet": TEXT, "tokens": TOKENS, "label": CLASS}, ("tweet", "label")),
    "marked texts": ({"input": MARKED, "note": TEXT, "kind": CLASS}, "texts"),
    "tags beside a name": ({"product": TOPIC, "tags": TAGS, "kind": CLASS}, "no column looks like a text"),
    "lists alone": ({"id": ID, "cuisine": CLASS, "ingredients": TOKENS}, ("ingredients", "cuisine")),
    # Pairs and several labels.
    "names of transformers' pairs": ({"text": TEXT, "text_pair": TEXT, "label": CLASS}, ("text + text_pair", "label")),
    "sentence pairs": ({"sentence1": TEXT, "sentence2": TEXT, "label": CLASS}, ("sentence1 + sentence2", "label")),
    "questions": ({"question": TEXT, "sentence": SHORT, "label": CLASS}, ("question + sentence", "label")),
    "paraphrases": ({"Same": SWITCH, "#1 String": TEXT, "#2 String": TEXT}, ("#1 String + #2 String", "Same")),
    "a number and a sentence": ({"question": QUESTION_ID, "sentence": TEXT, "label": CLASS}, ("sentence", "label")),
    "several labels": (
        {"comment": TEXT, "toxic": SWITCH, "insult": SWITCH, "threat": SWITCH}, ("comment", "toxic,insult,threat"),
    ),
    "several labels, one in no row": (
        {"comment": TEXT, "toxic": SWITCH, "insult": SWITCH, "rare": choose("0", "0"), "threat": SWITCH},
        ("comment", "toxic,insult,rare,threat"),
    ),
    "switches beside a label": (
        {"comment": TEXT, "vip": SWITCH, "read": SWITCH, "new": SWITCH, "label": CLASS}, ("comment", "label"),
    ),
    "switches beside classes": (
        {"comment": TEXT, "vip": SWITCH, "read": SWITCH, "new": SWITCH, "kind": CLASS}, "vip (2 values",
    ),
    # What is asked for.
    "two kinds": ({"text": TEXT, "customer": CLASS, "priority": RATING}, "customer (3 values, e.g. "),
    "two labels": ({"text": TEXT, "intent": CLASS, "category": CLASS}, "intent (3 values, e.g. "),
    "two texts": ({"review": TEXT, "comment": TEXT, "label": CLASS}, "several columns could hold the text"),
    "a pair": ({"first": TEXT, "second": TEXT, "label": CLASS}, "for pairs of texts give --text-pair-column"),
    "raters": ({"text": TEXT, "rater_1": CLASS, "rater_2": CLASS}, "rater_1 (3 values, e.g. "),
    "no text": ({"a": ID, "b": CLASS, "c": RATING}, "looks like a text"),
    "ages": ({"text": TEXT, "age": choose(*range(18, 58))}, "looks like a label"),
    "classes and a score": ({"text": TEXT, "kind": CLASS, "score": PRICE}, "score holds numbers on a scale"),
    "wide": (
        {f"field_{number}": ID for number in range(30)} | {"text": TEXT, "label": CLASS}, ("text", "label"),
    ),
    "wide without names": (
        {f"field_{number}": ID for number in range(30)} | {"what": TEXT, "kind": CLASS}, ("what", "kind"),
    ),
}  # fmt: skip


def find(folder: Path, columns: dict[str, Make], rows: int = ROWS) -> Columns:
    draw = random.Random(0)
    with (folder / "a.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows([make(row, draw) for make in columns.values()] for row in range(rows))
    return find_columns(read_table(str(folder / "a.csv")), None, None)


@pytest.mark.parametrize("name", TABLES)
def test_columns_are_right_or_asked_for(tmp_path: Path, name: str) -> None:
    columns, expected = TABLES[name]
    if isinstance(expected, tuple):
        result = find(tmp_path, columns)
        assert (result.text, result.label) == expected
        return
    with pytest.raises(InputError) as caught:
        find(tmp_path, columns)
    line = str(caught.value)
    assert expected in line
    assert "e.g. '" in line
    assert '-column "' in line, "the line to type"


@pytest.mark.parametrize("rows", [10, 20, 40])
def test_few_rows(tmp_path: Path, rows: int) -> None:
    result = find(tmp_path, {"text": TEXT, "label": choose("a", "b", "c", "d")}, rows)
    assert (result.text, result.label) == ("text", "label")


def test_a_name_that_is_passed_over_is_explained(tmp_path: Path) -> None:
    result = find(tmp_path, {"text": ID, "what": TEXT, "label": CLASS})
    assert result.decisions[0].why == "the only column of texts; 'text' holds numbers, e.g. '0'"


def test_long_examples_are_shortened(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        find(tmp_path, {"first": LONG, "second": LONG, "label": CLASS})
    assert all(len(part) < 60 for part in str(caught.value).split("'")[1::2])
