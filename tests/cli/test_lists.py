"""Lists in messages."""

from __future__ import annotations

import pytest

from classify.errors import list_some


@pytest.mark.parametrize(
    ("items", "total", "most", "expected"),
    [
        ("ab", None, 5, "a, b"),
        ("abcdef", None, 2, "a, b and 4 more"),
        ("ab", 9, 5, "a, b and 7 more"),
        ("", None, 5, ""),
    ],
)
def test_a_list_counts_what_it_leaves_out(items: str, total: int | None, most: int, expected: str) -> None:
    assert list_some(items, total, most=most) == expected
