"""What speaks for a column to hold texts or labels, each with its weight in log odds: the only place of such weights.

A rule names the table of tests/corpus that needs it. An odd table that is read wrong changes a weight, or adds a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from classify.tables import names
from classify.tables.profile import MISSING, ColumnProfile, parse_number

# Share of values that must look alike.
MOST = 0.95
# A class has a short name and several rows, in small tables at least two; a sentence may be one with many rows.
_LONGEST_CLASS, _ROWS_A_CLASS, _FEW_CLASSES, _ROWS_A_SENTENCE = 60, 4, 10, 20
# Numbers of more kinds are counts or ages, or scores if they have fractions.
_MOST_NUMBERS, _FEWEST_SCORES = 20, 10
# Words that a text has, and characters of one that may repeat.
_WORDS, _WORDS_A_SENTENCE, _LONG_TEXT = 3.0, 6.0, 30


@dataclass(frozen=True)
class Rule:
    """A reason, its weight, whether it holds for a column, and a table of the corpus that needs it."""

    reason: str
    weight: float
    holds: Callable[[ColumnProfile], bool]
    corpus: str


# Words of a name; one of more is a question.
_LONGEST_NAME = 4


def is_numeric(column: ColumnProfile) -> bool:
    return column.numeric >= MOST


def _are_counts(column: ColumnProfile) -> bool:
    """Return whether a column has many numbers, and no word of a label's name."""
    many = is_numeric(column) and column.kinds > _MOST_NUMBERS
    return many and not names.has_word(column.name, names.LABEL_WORDS)


def is_nothing_to_read(column: ColumnProfile) -> bool:
    """Return whether the values are neither texts nor names of classes: dates, links, objects."""
    return max(column.dates, column.links, column.objects) >= MOST


def could_be_text(column: ColumnProfile) -> bool:
    """Return whether the values may be texts, however short."""
    return bool(column.values) and not (is_numeric(column) or is_nothing_to_read(column) or column.codes >= MOST)


def reads_like_text(column: ColumnProfile) -> bool:
    """Return whether the values have several words each, and mostly differ."""
    return could_be_text(column) and column.words >= _WORDS and column.distinct >= 0.5 and column.lists < MOST


def is_repeated_text(column: ColumnProfile) -> bool:
    """Return whether the values may be texts that several annotators labelled: they repeat, and are long."""
    return column.words >= _WORDS and column.characters > _LONG_TEXT and column.kinds > _FEW_CLASSES


def is_score(column: ColumnProfile) -> bool:
    """Return whether the values are numbers on a scale: with fractions, and of many kinds.

    Numbers such as 038.9 are codes if they repeat.
    """
    begins_with_zero = any(len(value) > 1 and value[0] == "0" and value[1].isdigit() for value in column.values)
    is_code = begins_with_zero and column.rows_per_value >= 2
    return is_numeric(column) and column.kinds > _FEWEST_SCORES and not is_code and column.fractional > 0.1


def are_classes(column: ColumnProfile) -> bool:
    """Return whether the values recur as classes do: few short names, or sentences of many rows each."""
    rows = len(column.values)
    most = max(rows / _ROWS_A_CLASS, min(rows / 2, _FEW_CLASSES)) if rows >= 10 else rows
    short = column.longest <= _LONGEST_CLASS or column.rows_per_value >= _ROWS_A_SENTENCE
    return 2 <= column.kinds <= most and short and not is_score(column)


def recur_twice(column: ColumnProfile) -> bool:
    """Return whether values are short and come twice on average."""
    return column.kinds >= 2 <= column.rows_per_value and column.longest <= _LONGEST_CLASS and not is_score(column)


def _named(*keys: Collection[str]) -> Callable[[ColumnProfile], bool]:
    return lambda column: any(column.key in some for some in keys)


def _has_word(words: Collection[str], besides: Collection[str] = ()) -> Callable[[ColumnProfile], bool]:
    """Return whether a column has a word in its name, which is not the question of a survey, and is none `besides`."""
    return lambda column: (
        column.key not in besides
        and len(names.split_name(column.name)) <= _LONGEST_NAME
        and names.has_word(column.name, words)
    )


LABEL_NAMES = names.LABEL_NAMES | names.CATEGORY_NAMES | names.RATING_NAMES | names.GROUP_NAMES

TEXT = (
    Rule("named text", 1.5, _named({names.TEXT}), "text_and_clean_text"),
    Rule("usual name", 3.0, _named(names.TEXT_NAMES), "csv_plain"),
    Rule("name of titles", 1.0, _named(names.TITLE_NAMES), "title_and_body"),
    Rule(
        "word of a usual name",
        2.0,
        _has_word(names.TEXT_WORDS, names.TEXT_NAMES | names.TITLE_NAMES),
        "csv_header_camel",
    ),
    Rule("reads like a text", 4.0, reads_like_text, "csv_two_columns_odd_names"),
    Rule("most values differ", 0.5, lambda p: p.distinct >= 0.5, "csv_short_texts"),
    Rule("mostly empty", -5.0, lambda p: p.filled < 0.5, "body_mostly_empty"),
    Rule("values repeat", -4.0, lambda p: p.distinct < 0.25 and not is_repeated_text(p), "label_beside_category"),
    Rule("numbers, dates, links, objects or codes", -8.0, lambda p: not could_be_text(p), "many_columns"),
    Rule("lists", -2.0, lambda p: p.lists >= MOST, "conll_tokens"),
    Rule("one value", -8.0, lambda p: p.kinds < 2 and len(p.values) > 1, "constant_language"),
    Rule("name of something else", -2.0, _has_word(names.METADATA_WORDS, names.TEXT_NAMES), "chat_log"),
)

LABEL = (
    Rule("named label", 1.5, _named(names.LABELS), "label_beside_category"),
    Rule("usual name", 4.0, _named(names.LABEL_NAMES), "csv_plain"),
    Rule("name of a rating or decision", 3.5, _named(names.RATING_NAMES), "label_stars"),
    Rule("name of classes", 3.5, _named(names.CATEGORY_NAMES), "class_beside_satisfaction"),
    Rule("name of a group", 2.0, _named(names.GROUP_NAMES), "zendesk"),
    Rule("word of a usual name", 2.5, _has_word(names.LABEL_WORDS, LABEL_NAMES), "label_id_and_name"),
    Rule("word of a name of kinds", 1.0, _has_word(names.KIND_WORDS, LABEL_NAMES), "flags_beside_kind"),
    Rule("name of texts or titles", -4.0, _named(names.TEXT_NAMES - LABEL_NAMES, names.TITLE_NAMES), "squad_like"),
    Rule("values recur", 3.0, are_classes, "csv_two_columns_odd_names"),
    Rule("values recur twice", 1.5, lambda p: recur_twice(p) and not are_classes(p), "label_twenty_intents"),
    Rule("numbers with fractions", 2.0, is_score, "korsts"),
    Rule("most values differ", -4.0, lambda p: p.distinct > 0.5 and not is_score(p), "label_twenty_intents"),
    Rule("reads like a text", -5.0, reads_like_text, "goemotions"),
    Rule("dates or objects", -8.0, lambda p: max(p.dates, p.objects) >= MOST, "many_columns"),
    Rule("numbers", -1.0, lambda p: is_numeric(p) and p.key not in LABEL_NAMES and not is_score(p), "many_columns"),
    Rule("many numbers", -2.0, _are_counts, "label_numbers_many"),
    Rule("mostly empty", -2.0, lambda p: p.filled < 0.5, "kaggle_disaster"),
    Rule("one value", -6.0, lambda p: p.kinds < 2, "constant_language"),
    Rule("name of something else", -3.0, _has_word(names.METADATA_WORDS, LABEL_NAMES), "annotator_column"),
    Rule("a model's prediction", -6.5, lambda p: names.PREDICTION.match(p.key) is not None, "own_predictions"),
    Rule("names of splits", -8.0, lambda p: p.splits == 1.0, "split_column"),
    Rule("yes or no", -0.5, lambda p: p.marks == 1.0, "flags_beside_label"),
)


# What speaks for a column beyond its own name and values, by the reason.
ROLES = {
    "names of a pair": 5.0,  # mrpc
    "numbers with fractions beside a pair of texts": 2.0,  # korsts
    "the longest texts": 1.5,  # text_and_clean_text
    "the only column that is left": 1.5,  # csv_two_columns_odd_names
    "several columns of yes and no": 7.0,  # kaggle_toxic
    "the words of the texts predict it": 2.5,  # rating_and_category
    "parts of its cells recur": 5.0,  # lists_comma
}

# What speaks for a delimiter, by the reason.
DELIMITER = {
    "rows of one width": 8.0,  # csv_plain
    "in the first line": 4.0,  # csv_semicolon_decimal_comma
    "no space behind it": 1.5,  # tsv
    "the file's name": 1.0,  # tsv_named_csv
    "usual": 0.5,  # csv_two_columns_odd_names
}
DELIMITED = 10.0  # fewest points of a table: csv_caret_delimited

# What speaks for cells that hold several labels with a separator, by the reason.
LISTS = {
    "parts recur": 3.0,  # lists_comma
    "parts do not recur": -6.0,  # names_with_comma
    "parts stand alone": 2.0,  # lists_bar
    "fewer parts than cells": 1.0,  # lists_hash
    "in many rows": 1.0,  # label_sentences
    "parts always come together": -5.5,  # typeform_checkboxes
    "parts are long": -6.0,  # label_sentences
}

# What speaks for a first row that names the columns: of the row, and of a name over its column.
_HEADER_ROW = 1.0  # csv_two_columns_odd_names
NAMED_AGAIN = 4.0  # surveymonkey_qualtrics: a cell is the name above it
HEADER = (
    Rule("usual name", 4.0, lambda p: is_usual_header(p.name) and p.name.strip() not in p.values, "csv_plain"),
    Rule("a word over numbers", 4.0, lambda p: max(p.numeric, p.dates) >= MOST and not _is_value(p), "many_columns"),
    Rule("a number over numbers", -4.0, lambda p: p.numeric > 0.5 and _is_value(p), "bare_number_label"),
    Rule("the name comes again below", -3.0, lambda p: _comes_again(p.name.strip(), p), "bare_text_label"),
    Rule("a sentence over texts", -3.0, lambda p: reads_like_text(p) and _is_sentence(p.name), "bare_first_class_once"),
)  # fmt: skip


def is_usual_header(name: str, related: Collection[str] = ()) -> bool:
    """Return whether a header may have this name: a usual one, or a column of a `related` table."""
    return name in related or names.normalize_name(name) in names.USUAL_NAMES


def weigh_header(columns: Sequence[ColumnProfile], related: Collection[str]) -> tuple[float, tuple[str, ...]]:
    """Return the points of a first row that names columns, each given with the values below it, and the reasons."""
    if [column.name for column in columns] == [str(number) for number in range(len(columns))] and len(columns) > 1:
        return 8.0, ("numbers of pandas",)  # header_pandas_numbers
    holding = {rule for column in columns for rule in HEADER if rule.holds(column)}
    points = _HEADER_ROW + sum(rule.weight for rule in holding)
    if related:
        known = any(column.name in related for column in columns)
        points += 8.0 if known else -3.0 if len(columns) == len(related) else 0.0  # given_splits
    return points, tuple(rule.reason for rule in holding if rule.weight > 0)


def _comes_again(name: str, column: ColumnProfile) -> bool:
    return bool(name) and name in column.values


def _is_value(column: ColumnProfile) -> bool:
    name = column.name.strip()
    return name.lower() in MISSING or parse_number(name) is not None or ColumnProfile("", 1, [name]).dates == 1


def _is_sentence(name: str) -> bool:
    """Return whether a name reads like a text, and not like the question of a survey."""
    return ColumnProfile("", 1, [name.strip()]).words >= _WORDS_A_SENTENCE and "?" not in name and "？" not in name


def weigh(column: ColumnProfile, rules: Sequence[Rule]) -> tuple[float, tuple[str, ...]]:
    """Return the sum of the weights of the rules that hold for a column, and the reasons for it."""
    holding = [rule for rule in rules if rule.holds(column)]
    return sum(rule.weight for rule in holding), tuple(rule.reason for rule in holding if rule.weight > 0)
