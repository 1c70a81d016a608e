"""Read the times in a column as sortable numbers."""

from __future__ import annotations

import datetime
import re

import numpy as np
import numpy.typing as npt

from classify.errors import InputError
from classify.tables.profile import parse_number
from classify.tables.table import Table

# Digits that may be a date: of ISO 8601 if the year comes first, else in an order that --time-format has to say.
_DIGITS = re.compile(r"\d{8}|\d{6}|\d{1,2}\.\d{4}", re.ASCII)
_UTC = re.compile(r" ?(UTC|GMT)$")


def read_times(
    table: Table, column: str, rows: npt.NDArray[np.int64], form: str | None = None
) -> npt.NDArray[np.float64]:
    """(rows,) numbers, larger for later rows: the numbers in the column, or seconds since 1970.

    Times are ISO 8601, or of the format `form` of strptime; without a time zone they count as UTC. Raises InputError
    naming rows that hold no time.
    """
    texts = [_UTC.sub("", value.strip()) for value in table.take(column, rows)]
    numbers = [parse_number(text) for text in texts]
    if form is None and None not in numbers and not all(map(_DIGITS.fullmatch, texts)):
        return np.array(numbers, dtype=np.float64)
    times = {text: _parse(text, form) for text in set(texts)}
    wrong = [place for place, text in enumerate(texts) if times[text] is None]
    if wrong:
        expected = (
            "a time such as 2024-12-31 or 2024-12-31 18:30:00; name another format with --time-format, e.g. %d.%m.%Y"
        )
        if form is not None:
            expected = f"a time of the format {form!r} (--time-format)"
        raise InputError(
            f"--split-by-time {column}: {table.describe_rows(rows[wrong].tolist())}: Got {texts[wrong[0]]!r}. Expected "
            f"{expected}."
        )
    return np.array([times[text] for text in texts], dtype=np.float64)


def _parse(text: str, form: str | None) -> float | None:
    try:
        time = datetime.datetime.fromisoformat(text) if form is None else datetime.datetime.strptime(text, form)
        return (time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
