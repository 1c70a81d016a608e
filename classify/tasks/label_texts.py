"""Names of labels as texts: with few rows, a row that says "this is about billing" is worth several of that class."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Letters in a row that a name of words has at least, and that an abbreviation in capitals has at most.
_LETTERS, _ABBREVIATION = 3, 4
_ENGLISH = "this is about {}"


def label_texts(labels: Sequence[str], *, is_english: bool) -> tuple[str, ...]:
    """A text for each label, in order; none where some label is a number, a code or an abbreviation."""
    names = [_words(label) for label in labels]
    if not all(map(_is_of_words, names)):
        return ()
    return tuple((_ENGLISH if is_english else "{}").format(name) for name in names)


def _words(label: str) -> str:
    """A label with spaces between its words: of snake_case, kebab-case and CamelCase, too."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", " ", re.sub(r"[_\-]+", " ", label))
    return " ".join(apart.split())


def _is_of_words(name: str) -> bool:
    if any(letter.isalpha() and letter > "\u2e80" for letter in name):  # a script whose words are a letter or two
        return True
    letters = re.findall(r"[^\W\d_]+", name)
    longest = max(map(len, letters), default=0)
    return longest >= _LETTERS and not (name.isupper() and longest <= _ABBREVIATION)
