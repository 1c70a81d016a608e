"""Names of labels as training texts: words, not codes."""

from __future__ import annotations

import pytest

from classify.tasks.label_columns import label_texts


@pytest.mark.parametrize(
    ("labels", "texts"),
    [
        (["account_access", "how-to"], ["this is about account access", "this is about how to"]),
        (["FeatureRequest", "Sci/Tech"], ["this is about Feature Request", "this is about Sci/Tech"]),
        (["pos", "neg"], ["this is about pos", "this is about neg"]),
        (["SPORTS", "WORLD"], ["this is about SPORTS", "this is about WORLD"]),
        (["ABBR", "NUM"], []),
        (["0", "1"], []),
        (["A1", "B2"], []),
        (["billing", "7"], []),
        (["3 stars", "4 stars"], ["this is about 3 stars", "this is about 4 stars"]),
    ],
)
def test_names_of_words_are_texts(labels: list[str], texts: list[str]) -> None:
    assert list(label_texts(labels, is_english=True)) == texts


def test_in_another_language_a_name_stands_alone() -> None:
    assert label_texts(["Lieferung", "Konto_gesperrt"], is_english=False) == ("Lieferung", "Konto gesperrt")
    assert label_texts(["退款", "差"], is_english=False) == ("退款", "差")
