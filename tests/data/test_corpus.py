"""Tables as people have them are understood, or asked about; none is read wrong in silence."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests.support import corpus

# What holds now: no more may be wrong, and no fewer right.
COUNTS = yaml.safe_load((corpus.CORPUS / "counts.yaml").read_text())


@pytest.fixture(scope="module")
def outcomes() -> dict[str, tuple[str, str]]:
    return {table.name: corpus.check(table) for table in corpus.find_tables(corpus.CORPUS)}


def test_no_table_more_is_wrong_and_no_fewer_are_right(outcomes: dict[str, tuple[str, str]]) -> None:
    counts = Counter(kind for kind, _ in outcomes.values())
    listed = {name: outcome for name, outcome in outcomes.items() if outcome[0] != "right"}
    assert counts["wrong"] <= COUNTS["wrong"], listed
    assert counts["right"] >= COUNTS["right"], listed


def test_what_counts_as_right_asked_and_wrong(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    rows = "".join(f"text number {number} of a table,{'ab'[number % 2]}\n" for number in range(20))
    (folder / "table.csv").write_text(f"text,label\n{rows}")
    for accept, kind in (
        ("[{text: text, label: label, classes: 2, split: [16, 2, 2]}]", "right"),
        ("[{text: text, label: other}, ask]", "wrong"),
        ("[{classes: 3}, {first: text number 0 of a table}]", "right"),
        ("[{pair: true}]", "wrong"),
    ):
        (folder / "expected.yaml").write_text(f"rows: 20\naccept: {accept}\n")
        assert corpus.check(folder)[0] == kind
    (folder / "expected.yaml").write_text("rows: 21\naccept: [{text: text}]\n")
    assert corpus.check(folder)[0] == "wrong"
    (folder / "expected.yaml").write_text("flags: --label-column none\naccept: [{text: text}]\n")
    assert corpus.check(folder)[0] == "asked"
    (folder / "expected.yaml").write_text("flags: --label-column none\naccept: [ask]\n")
    assert corpus.check(folder)[0] == "right"
