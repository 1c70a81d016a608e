"""A classifier answers several threads at once, as in a web service; trainings are one at a time in a process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from classify import load_classifier, train
from classify.errors import InputError
from tests.support import tiny
from tests.support.runs import at_step, make_config

THREADS = 4


@pytest.mark.slow
def test_threads_get_the_probabilities_of_their_own_texts(model_folder: Path, table: Path, tmp_path: Path) -> None:
    out = train(make_config(model_folder, table, tmp_path / "out", max_steps=1))
    texts = [text for text, _ in tiny.table_rows(40, seed=7)]
    requests = [texts[start : start + 1 + start % 5] for start in range(len(texts) - 5)] * 4
    with load_classifier(str(out), use_cpu=True) as classifier, ThreadPoolExecutor(THREADS) as threads:
        answers = list(threads.map(classifier.probabilities, requests))
        expected = [classifier.probabilities(request) for request in requests]
    for answer, alone in zip(answers, expected, strict=True):
        np.testing.assert_allclose(answer, alone, atol=1e-6)


def test_a_second_training_in_the_process_is_refused(
    model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = []

    def train_another() -> None:
        with pytest.raises(InputError) as caught:
            train(make_config(model_folder, table, tmp_path / "second"))
        faults.append(str(caught.value))

    at_step(5, monkeypatch, train_another)
    train(make_config(model_folder, table, tmp_path / "first"))
    assert [fault.partition(";")[0] for fault in faults] == ["train: another training runs in this process"]
    assert not (tmp_path / "second").exists()
    train(make_config(model_folder, table, tmp_path / "third", max_steps=1))
