"""Whether the first row names the columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from classify.errors import EXCERPT, SHOWN
from classify.tables.decide import Question
from classify.tables.profile import MOST, Profile, count_words
from classify.tables.rules import is_header_name

# Words that a sentence has, and a name has not.
_SENTENCE = 6
# Rows per value from which a column's values are all of them, so that another one above them is a name.
_ROWS_A_VALUE = 4


def is_header(columns: Sequence[Profile], related: Collection[str] = (), *, repeated: bool = False) -> bool | Question:
    """Whether the first row is a header, given each column with the values below it and the first cell as its name.

    It is one by known names, or where a cell is of another kind than those below it; it is none where a cell comes
    again below, or is of their kind. Where both hold, or neither, the answer is a question. `related` are the columns
    of another table of the same kind, such as the one that a model was trained on; `repeated`: it comes again.
    """
    if any(column.name in related or (repeated and is_header_name(column.name)) for column in columns):
        return True
    known = (is_header_name(column.name) and column.name.strip() not in column.values for column in columns)
    speaks_for = any(known) or any(map(_is_other_kind, columns))
    speaks_against = any(map(_is_same_kind, columns))
    if speaks_for != speaks_against:
        return speaks_for
    if len(columns) == len(related) or len(columns) == 1:
        return False
    shown = ", ".join(repr(column.name.strip()[:EXCERPT]) for column in columns[:SHOWN])
    return Question(f"is the first row ({shown}) a header", (), ("--header", "--no-header"))


def _is_other_kind(column: Profile) -> bool:
    """Whether a cell is no value of the column below it: a word over numbers, or a new value over few that recur."""
    name = column.name.strip()
    if not name or name in column.values or not column.values:
        return False
    if column.is_numeric or max(column.unreadable, column.codes) >= MOST:
        return not _looks_alike(column)
    few = len(column.values) >= _ROWS_A_VALUE * column.kinds
    return (few and len(column.values) >= 10) or (column.words >= _SENTENCE and count_words(name) <= 2)


def _is_same_kind(column: Profile) -> bool:
    """Whether a cell is one of the values below it, a number over numbers, or a sentence over sentences."""
    name = column.name.strip()
    if not name:
        return False
    again = name in column.values and column.kinds > 1
    sentence = column.reads_like_text and count_words(name) >= _SENTENCE
    return again or sentence or _looks_alike(column)


def _looks_alike(column: Profile) -> bool:
    """Whether the name is a number over numbers, or a date, link or code over such."""
    name = Profile("", 1, [column.name.strip()])
    if column.is_numeric:  # over numbers q1 is a name
        return name.is_numeric
    return (column.unreadable >= MOST and name.unreadable == 1) or (column.codes >= MOST and name.codes == 1)
