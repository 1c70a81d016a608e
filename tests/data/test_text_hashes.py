"""Duplicates: texts that differ in case, spaces or Unicode form alone."""

from __future__ import annotations

import unicodedata

import pytest

from classify.tables.table import text_hashes


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Hello  World", 13352372148217134600),
        ("Grüße, ñandú!", 16083550808331614408),
        ("这个产品很好，我喜欢……", 18348361831304439150),
        ("ＡＢＣ　１２３", 10152694332325364692),
        ("m² und ½ …", 18194911172338959595),
        ("हिन्दी में", 50563100175389173),
    ],
)
def test_hashes_are_the_same_in_every_version(text: str, number: int) -> None:
    """They are kept in split.parquet."""
    assert text_hashes([text]).tolist() == [number]


@pytest.mark.parametrize("text", ["Où est ma carte de crédit ?", "ΐ", "각하", "Đường"])
def test_unicode_forms_of_a_text_are_duplicates(text: str) -> None:
    assert len(set(text_hashes([unicodedata.normalize(form, text) for form in ("NFC", "NFD")]).tolist())) == 1
