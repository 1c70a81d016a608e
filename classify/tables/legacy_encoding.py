"""Rank the encodings older than Unicode by how well a sample reads in each of them.

Most of them decode any bytes. Two things tell them apart: py3langid's evidence that the decoded text is in a language
that is written in that encoding, and letters that do not belong together.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from dataclasses import dataclass
from typing import Any

# Evidence that two readings of a file must differ by to be distinguished.
CLOSE = 8.0
# The encoding of most files that are not UTF-8.
USUAL = "cp1252"
_WESTERN = "en de fr es it pt nl sv da no nn fi is fo ca gl eu oc ga gd cy br af lb sq et id ms sw tl"
_CENTRAL = "en cs pl hu sk hr sl bs sr ro sq de"
_BALTIC = "en lt lv et"
_CYRILLIC = "ru uk bg be sr mk"
# Encodings, the commoner first: where two read a file alike, the first one names it. The points are what rarity costs
# an encoding; the languages (ISO 639-1) are those written in it.
_LATIN = (
    (USUAL, 0, _WESTERN),
    ("cp1250", 8, _CENTRAL),
    ("cp1254", 8, "en tr az"),
    ("cp1257", 8, _BALTIC),
    ("iso8859_2", 12, _CENTRAL),
    ("iso8859_15", 12, _WESTERN),
    ("iso8859_9", 12, "en tr az"),
    ("iso8859_13", 12, _BALTIC),
    ("iso8859_4", 16, _BALTIC),
    ("mac_roman", 20, _WESTERN),
    ("cp850", 20, _WESTERN),
    ("cp437", 24, _WESTERN),
    ("cp852", 24, _CENTRAL),
    ("mac_latin2", 24, _CENTRAL),
    ("cp1258", 8, "en vi"),
    ("latin_1", 16, _WESTERN),
)
_OTHER_SCRIPTS = (
    ("gb18030", 8, "zh"),
    ("big5", 8, "zh"),
    ("cp932", 8, "ja"),
    ("cp949", 8, "ko"),
    ("euc_jp", 12, "ja"),
    ("cp1251", 8, _CYRILLIC),
    ("koi8_r", 12, "ru bg"),
    ("koi8_u", 12, "uk ru"),
    ("iso8859_5", 12, _CYRILLIC),
    ("cp866", 12, _CYRILLIC),
    ("mac_cyrillic", 16, _CYRILLIC),
    ("cp1253", 8, "el"),
    ("iso8859_7", 12, "el"),
    ("cp1255", 8, "he"),
    ("iso8859_8", 12, "he"),
    ("cp1256", 8, "ar fa ur arz ary"),
    ("iso8859_6", 12, "ar"),
    ("cp874", 8, "th"),
)
# Those in which a character may be several bytes; few files of other encodings are valid in them.
MULTI_BYTE = frozenset({"gb18030", "big5", "cp932", "cp949", "euc_jp"})
# Where fewer of the letters than this are not ASCII, a text is not in a language of another script: it is English.
_FEW = 0.4
# With more oddities than this share of its non-ASCII characters, a text reads badly; a few oddities say little.
_BADLY, _FEW_ODDITIES = 0.1, 20
# Points off for each place where characters do not belong together; points for a Mac's encoding of a Mac's lines.
_ODD, _MAC = 10, 20

# Characters by class: ASCII letters are z and Z, other cased letters are lower or upper case of the script's letter.
_SCRIPTS = {"LATIN": "l", "CYRILLIC": "c", "GREEK": "g", "HEBREW": "w", "ARABIC": "r", "THAI": "t", "HANGUL": "h"}
_GROUPS = ("zZlL", "cC", "gG", "w", "r", "t", "h", "k")
_CASED = "zZlLcCgG"
_INSIDE_WORDS = "’·–—…‐"
_BEHIND_WORDS = "®™©°ªº²³µ"
_MIXED = "|".join(f"[{group}](?=[{''.join(_GROUPS).translate(dict.fromkeys(map(ord, group)))}])" for group in _GROUPS)
_ODDITIES = tuple(
    (re.compile(pattern), weight)
    for pattern, weight in (
        ("x", 4),  # no character, or one for control
        ("v|i(?![zZlL])", 1),  # an accent without its letter, a Spanish sign that opens nothing
        ("b", 2),  # boxes, and Japanese letters of half width
        (_MIXED, 2),  # scripts in one word
        ("[zl](?=L)|l(?=Z)|c(?=C)|g(?=G)", 1),  # a capital after a small letter
        (f"(?<=[{_CASED}])[sepi](?=[{_CASED}])|(?<=[{_CASED}])s|s(?=[{_CASED}])", 1),  # a sign in a word
        ("0(?=[lLcCgG])|[lLcCgG](?=0)", 1),  # a digit in a word
        ("(?<![zZlL])L{2,3}(?![zZlL])", 2),  # a word of nothing but accented capitals
        ("(?<![wrthkm])m|(?<![zZlLn])n", 2),  # a mark on nothing
        ("(?<![kh])[kh](?![kh])", 2),  # one sign of Chinese, Japanese or Korean by itself
    )
)
# An Arabic or Hebrew letter by itself: in an English text a sign that was misread.
_LONE = re.compile("(?<![wrm])[wr](?![wrm])")
_LETTER = re.compile(r"[^\W\d_\x00-\x7f]")
_WORD_BEYOND_ASCII = re.compile(r"\S*[^\x00-\x7f]\S*")
_LETTER_IN_WORD = re.compile(r"[^\W\d_][^\W\d_\x00-\x7f]|[^\W\d_\x00-\x7f][^\W\d_]")
# A vowel that is written before its consonant is followed by it, all others follow one.
# py3langid takes all Thai letters for Thai, so these weigh more.
_THAI_WEIGHT = 20
_THAI_ODDITY = re.compile("[เ-ไ](?![ก-ฮ])|(?<![ก-ฮะ-ฺ็-๎])[ะ-ฺ็-๎ๅ]")


@functools.cache
def load_identifier(*, norm_probs: bool) -> Any:
    """Load py3langid's model; it gives probabilities with `norm_probs`, else log-likelihoods."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=norm_probs)


@dataclass(frozen=True)
class Reading:
    """A sample as one encoding decodes it; more points are better.

    `points_of_words` are for the words beyond ASCII alone: where they are few, their neighbours' language hides them.
    `reads_badly`: the text is mostly ASCII, and many of its other letters do not belong where they are.
    """

    encoding: str
    text: str
    points: float
    points_of_words: float
    reads_badly: bool


def rank_readings(sample: bytes, *, is_of_mac: bool = False) -> list[Reading]:
    """Decode a sample in every encoding that can, the best reading first; equal texts are one reading.

    A file `is_of_mac` where its lines end as those of old Macs do.
    """
    readings: dict[str, Reading] = {}
    for encodings, has_latin_letters in ((_LATIN, True), (_OTHER_SCRIPTS, False)):
        for encoding, rarity, languages in encodings:
            try:
                text = sample.decode(encoding)
            except UnicodeDecodeError:
                continue
            if text not in readings:
                is_english = not _has_other_letters(text)
                written = languages if has_latin_letters else "en" if is_english else f"en {languages}"
                oddities = _count_oddities(text, is_english=is_english)
                cost = _ODD * oddities + rarity - (_MAC if is_of_mac and encoding.startswith("mac_") else 0)
                points = _language_evidence(text, written.split()) - cost
                words = " ".join(_WORD_BEYOND_ASCII.findall(text))
                points_of_words = _language_evidence(words, ["en", *languages.split()]) - cost
                beyond_ascii = len(text) - len(text.encode("ascii", "ignore"))
                badly = is_english and oddities > max(_FEW_ODDITIES, _BADLY * beyond_ascii)
                readings[text] = Reading(encoding, text, points, points_of_words, badly)
    return sorted(readings.values(), key=lambda reading: -reading.points)


def _language_evidence(text: str, languages: list[str]) -> float:
    """Return the log-likelihood of the likeliest of these languages, above the mean of all languages.

    0 where no letter beyond ASCII is beside another letter, as a misread currency sign is.
    """
    if _LETTER.search(text) and not _LETTER_IN_WORD.search(text):
        return 0.0
    likelihoods = dict(load_identifier(norm_probs=False).rank(text))
    return max(likelihoods[language] for language in languages) - sum(likelihoods.values()) / len(likelihoods)


def _has_other_letters(text: str) -> bool:
    letters = [character for character in text if character.isalpha()]
    return sum(not letter.isascii() for letter in letters) >= _FEW * len(letters)


def _count_oddities(text: str, *, is_english: bool) -> int:
    """Count places where characters beyond ASCII do not belong together, by weight."""
    classes = text.translate(_CLASSES)
    oddities = sum(weight * len(pattern.findall(classes)) for pattern, weight in _ODDITIES)
    oddities += len(_LONE.findall(classes)) if is_english else 0
    return oddities + _THAI_WEIGHT * len(_THAI_ODDITY.findall(text))


class _Classes(dict[int, str]):
    """The class of each character as one letter, computed on first use."""

    def __missing__(self, code: int) -> str:
        self[code] = _classify_character(chr(code))
        return self[code]


def _classify_character(character: str) -> str:
    category = unicodedata.category(character)
    if character.isascii():
        return {"Ll": "z", "Lu": "Z", "Nd": "0"}.get(category, " ")
    if character in _INSIDE_WORDS or category[0] == "Z":
        return " "
    if character in _BEHIND_WORDS:
        return "e"
    if character in "¡¿":
        return "i"
    if "\u2500" <= character <= "\u259f" or "\uff61" <= character <= "\uff9f":
        return "b"
    script = unicodedata.name(character, "").partition(" ")[0]
    if category[0] == "L":
        letter = _SCRIPTS.get(script, "k")
        return letter.upper() if category == "Lu" else letter
    if category[0] == "M":
        return "n" if script == "COMBINING" else "m"
    if category == "Sk":
        return "v"
    if category in ("Cc", "Cn", "Co") or character == "¤":
        return "x"
    return "p" if category[0] in "PC" else "0" if category == "Nd" else "s"


_CLASSES = _Classes()
