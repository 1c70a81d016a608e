"""The TF-IDF baseline."""

from __future__ import annotations

import numpy as np
import pytest

from classify.tables.read import read_table
from classify.tasks import baseline, single_label
from tests.support.processes import ROOT

TASK = single_label.make("abc")


@pytest.mark.parametrize(("name", "lacking"), [("tickets.zh.csv", True), ("tickets.csv", False)])
def test_where_texts_have_no_spaces_it_reads_characters(name: str, lacking: bool) -> None:
    """Words cannot be found there, and what looks like them is whole sentences."""
    table = read_table(str(ROOT / "data" / name))
    texts, labels = table.column("text"), np.unique(table.column("label"), return_inverse=True)[1]
    assert baseline.lack_spaces(texts) == lacking
    order = np.random.default_rng(0).permutation(len(texts))
    train, test = order[len(texts) // 4 :], order[: len(texts) // 4]
    fit = [texts[row] for row in train], labels[train], [texts[row] for row in test], labels[test], 0
    task = single_label.make([str(number) for number in range(8)])
    accuracy = baseline.fit(task, *fit).metrics["accuracy"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(baseline, "lack_spaces", lambda _: not lacking)
        assert accuracy >= baseline.fit(task, *fit).metrics["accuracy"] + 0.05
