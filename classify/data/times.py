"""Read the times in a table as sortable numbers."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from classify.data.splits import Rows
from classify.errors import InputError, list_some
from classify.tables.profile import is_number
from classify.tables.table import Table

if TYPE_CHECKING:
    import pandas

# Formats that a refusal suggests where they fit; none is taken by itself, since the day or the month may come first.
_DATES = ("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%d %b %Y", "%b %d, %Y", "%d/%m/%y",
          "%m/%d/%y", "%y/%m/%d", "%d.%m.%y", "%d%m%Y", "%m%d%Y", "%m%Y", "%m.%Y", "%Y.%m")  # fmt: skip
_CLOCKS = ("", " %H:%M", " %H:%M:%S", " %I:%M %p")
_TRIED = 100
# Numbers that may be dates whose digits are not in order, unless the year comes first; not seconds since 1970.
_DIGITS = re.compile(r"\d{8}|\d{6}|\d{1,4}\.\d{1,4}", re.ASCII)
_YEAR_FIRST = ("%Y%m%d", "%Y%m")
_YEARS = (1900, 2100)
_UTC = re.compile(r" ?(UTC|GMT)$")


def read_times(table: Table, column: str, rows: Rows, form: str | None = None) -> npt.NDArray[np.float64]:
    """Return (rows,) numbers, larger for later rows: those in the table, or the time since 1970.

    Times are ISO 8601, numbers, or of the format `form` of strptime. Raises InputError naming rows that hold no time,
    or the formats that may be meant.
    """
    texts = [_UTC.sub("", value.strip()) for value in table.take(column, rows)]
    if form is not None:
        times = _parse(texts, form)
        _refuse(table, column, rows[times.isna().to_numpy()], f"a time of the format {form!r} (--time-format)")
    elif all(map(is_number, texts)):
        if all(map(_DIGITS.fullmatch, texts)) and not any(_are_years(_parse(texts, form)) for form in _YEAR_FIRST):
            _suggest(column, texts)
        numbers = np.array(texts, dtype=np.float64)
        _refuse(table, column, rows[~np.isfinite(numbers)], "a time")
        return numbers
    else:
        times = _parse(texts, "ISO8601")
        if times.isna().any():
            _suggest(column, texts)
        _refuse(table, column, rows[times.isna().to_numpy()], "a time such as 2024-12-31 or 2024-12-31 18:30:00")
    return times.astype("int64").to_numpy(dtype=np.float64)


def _parse(texts: Sequence[str], form: str) -> pandas.Series[pandas.Timestamp]:
    import pandas

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pandas.to_datetime(pandas.Series(texts), format=form, utc=True, errors="coerce")


def _are_years(times: pandas.Series[pandas.Timestamp]) -> bool:
    return bool(times.dt.year.between(*_YEARS).all())


def _suggest(column: str, texts: Sequence[str]) -> None:
    """Raise InputError where the first texts are of a usual format, with the flag that names it."""
    forms = [date + clock for date, clock in itertools.product(_DATES, _CLOCKS)]
    fitting = [repr(form) for form in forms if _are_years(_parse(texts[:_TRIED], form))]
    if fitting:
        others = f", or {list_some(fitting[1:])}" if fitting[1:] else ""
        raise InputError(
            f"--split-by-time {column}: expected times such as 2024-12-31. Got {texts[0]!r} instead; give "
            f"--time-format {fitting[0]}{others}."
        )


def _refuse(table: Table, column: str, rows: Rows, expected: str) -> None:
    """Raise InputError where there are rows that hold no time."""
    if len(rows):
        where = table.describe_rows(rows.tolist())
        raise InputError(
            f"--split-by-time {column}: {where}: expected {expected}. Got {table.take(column, rows[:1])[0]!r} instead."
        )
