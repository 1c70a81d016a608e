"""Languages of texts, as the default model is chosen by them."""

from __future__ import annotations

import pytest

from classify.data.languages import UNKNOWN, detect_languages, note_new_languages

ENGLISH = [
    "Where is my package? The tracking has not moved for a week",
    "I forgot my password and cannot log in to my account",
    "Please cancel my subscription at the end of the month",
    "The heating turns itself off in the middle of the night",
]
GERMAN = [
    "Ich kann mich seit gestern nicht mehr in meinem Konto anmelden",
    "Wann kommt endlich mein Paket an, ich warte seit einer Woche darauf",
    "Bitte kündigen Sie mein Abonnement zum Ende des Monats",
    "Die Heizung schaltet sich mitten in der Nacht von selbst aus",
]
CHINESE = ["我的包裹在哪里", "忘记密码了，登录不上", "请在月底取消我的订阅", "半夜暖气自己关了"]
THAI = ["พัสดุของฉันอยู่ที่ไหน", "ฉันลืมรหัสผ่าน"]
ARABIC = ["أين طردي؟ لم يتحرك منذ أسبوع", "نسيت كلمة المرور ولا أستطيع الدخول"]


@pytest.mark.parametrize("texts", [ENGLISH, GERMAN, CHINESE, THAI, ARABIC])
def test_whether_texts_are_english(texts: list[str]) -> None:
    languages = detect_languages(texts)
    assert languages.is_clear
    assert languages.is_english == (texts is ENGLISH)
    assert languages.texts == len(texts)


def test_short_texts_are_judged_together() -> None:
    """A word or two say nothing alone."""
    words = ["on hold", "too late", "the lamp", "where is it", "not working", "my bill", "cheaper please", "it broke"]
    assert detect_languages(words * 4).is_clear
    assert detect_languages(words * 4).is_english


@pytest.mark.parametrize(("german", "english"), [(2, True), (8, False)])
def test_a_tenth_of_another_language_is_allowed(german: int, english: bool) -> None:
    texts = [text for text in ENGLISH for _ in range(10)][: 40 - german] + [GERMAN[n % 4] for n in range(german)]
    assert detect_languages(texts).is_english == english


def test_what_is_no_language_is_not_guessed() -> None:
    """Numbers, links and names of users have none."""
    codes = detect_languages(["A12", "B-77", "x1 42", "https://example.com/der/die/das"])
    assert not codes.is_clear
    assert codes.is_english, "the default stays"
    unpronounced = detect_languages(["zq xk", "bb gg vv", "qwrt plk"] * 6 + GERMAN[:1])
    assert not unpronounced.is_clear
    assert detect_languages(["123", "!?"]).texts == 0
    assert detect_languages([]).shares == {}


def test_texts_in_a_new_language_are_noted() -> None:
    note = note_new_languages([*ENGLISH, *GERMAN], {"en": 0.99, UNKNOWN: 0.01})
    assert note is not None
    assert note.startswith("texts in languages that the model was not trained on: de 50 %")
    assert note.endswith("it was trained on en")
    assert note_new_languages(ENGLISH, {"en": 0.9, "de": 0.1}) is None
    assert note_new_languages(GERMAN, {"en": 0.9, "de": 0.1}) is None
    assert note_new_languages(GERMAN, None) is None
    assert note_new_languages(GERMAN, {UNKNOWN: 0.8, "en": 0.2}) is None
