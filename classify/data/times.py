"""Parse the times in a table into sortable numbers."""

from __future__ import annotations

import re
import warnings

import numpy as np
import numpy.typing as npt

from classify.data.dialect import is_number
from classify.data.splits import Rows
from classify.data.table import Table
from classify.errors import InputError

# Formats besides ISO 8601 and numbers; the day may come first, or the month.
_DATES = (
    "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%d %B %Y", "%d %b %Y", "%B %d, %Y",
    "%b %d, %Y", "%d/%m/%y", "%m/%d/%y", "%d.%m.%y", "%d%m%Y", "%m%d%Y",
)  # fmt: skip
_CLOCKS = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
# A month as a number: 12.2023, 2024.10, 122023.
_YEAR, _MONTH = r"(?P<year>(19|20)\d\d)", r"(?P<month>0?[1-9]|1[0-2])"
_MONTHS = tuple(re.compile(form, re.ASCII) for form in (rf"{_MONTH}\.?{_YEAR}", rf"{_YEAR}\.{_MONTH}"))
_COMPACT = re.compile(r"\d{8}", re.ASCII)
_FORMATS = (
    *(f"{date}{clock}" for date in _DATES for clock in _CLOCKS),
    "%a, %d %b %Y %H:%M:%S %z",
    "%a %b %d %H:%M:%S %z %Y",
)
# A year of two digits may come first, too. That is likely where days that are read as years span many: up to 30, while
# the years of a table with the day first seldom span 20.
_YEAR_FIRST = tuple(f"%y{mark}%m{mark}%d{clock}" for mark in "/." for clock in _CLOCKS)
_MANY_DAYS = 7305


def read_times(table: Table, column: str, rows: Rows) -> npt.NDArray[np.float64]:
    """Return (rows,) numbers, larger for later rows: those in the table, or the time since 1970.

    Raises InputError naming rows that hold no time, and where day and month may be swapped.
    """
    import pandas

    texts = [value.strip() for value in table.take(column, rows)]

    def parse(form: str) -> pandas.Series[pandas.Timestamp]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return pandas.to_datetime(pandas.Series(texts), format=form, utc=True, errors="coerce")

    def fits(form: str) -> bool:
        return not parse(form).isna().any()

    # Eight digits may be a date; only one that begins with the year is in order as a number.
    is_compact = all(map(_COMPACT.fullmatch, texts)) and not fits("%Y%m%d") and (fits("%d%m%Y") or fits("%m%d%Y"))
    if all(map(is_number, texts)) and not is_compact:
        numbers = np.array(texts, dtype=np.float64)
        _refuse(table, column, rows[~np.isfinite(numbers)])
        months = next((months for form in _MONTHS if (months := _count_months(texts, form)) is not None), numbers)
        if not np.array_equal(np.argsort(numbers, kind="stable"), np.argsort(months, kind="stable")):
            raise InputError(
                f"--split-by-time {column}: {texts[0]!r} may be a number or a month of a year; write dates as "
                "2024-12-31."
            )
        return numbers
    best = parse("ISO8601")
    readings = {}
    if best.isna().any():
        for form in _FORMATS:
            parsed = parse(form)
            if not parsed.isna().any():
                readings[form] = parsed
            elif parsed.isna().sum() < best.isna().sum():
                best = parsed
        shortest = min((parsed.max() - parsed.min() for parsed in readings.values()), default=pandas.Timedelta(0))
        for form in _YEAR_FIRST if shortest.days > _MANY_DAYS else ():
            parsed = parse(form)
            if not parsed.isna().any() and parsed.max() - parsed.min() < shortest:
                readings[form] = parsed
        orders = {tuple(np.argsort(parsed.to_numpy(), kind="stable")) for parsed in readings.values()}
        if len(orders) > 1:
            parts = (
                "the day, or with the year" if any(form in readings for form in _YEAR_FIRST) else "the day or the month"
            )
            raise InputError(
                f"--split-by-time {column}: {texts[0]!r} may begin with {parts}; write dates as 2024-12-31."
            )
        best = next(iter(readings.values()), best)
    _refuse(table, column, rows[best.isna().to_numpy()])
    return best.astype("int64").to_numpy(dtype=np.float64)


def _count_months(texts: list[str], form: re.Pattern[str]) -> npt.NDArray[np.float64] | None:
    """Return the number of each month, where all texts are months of this form."""
    matches = [match for match in map(form.fullmatch, texts) if match is not None]
    if len(matches) < len(texts):
        return None
    return np.array([12 * int(match["year"]) + int(match["month"]) for match in matches], dtype=np.float64)


def _refuse(table: Table, column: str, rows: Rows) -> None:
    """Raise InputError where there are rows that hold no time."""
    if len(rows):
        where = table.describe_rows(rows.tolist())
        raise InputError(
            f"--split-by-time {column}: {where}: expected a time such as 2024-12-31 or 2024-12-31 18:30:00. "
            f"Got {table.take(column, rows[:1])[0]!r} instead."
        )
