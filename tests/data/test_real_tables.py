"""Public data sets as their authors publish them, each read to its last row; skipped where they do not lie beside."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from classify.config.schema import DataConfig
from classify.data.reading import read_tables
from classify.data.split_table import split_table
from classify.tables.read import read_table
from classify.tasks.registry import recognize

DATA = Path(os.environ.get("CLASSIFY_DATASETS", Path(__file__).parents[3] / "shared" / "datasets"))
pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason="the data sets are not here; CLASSIFY_DATASETS names their folder"
)

ROWS = {
    "sst2/train.tsv": 67_349, "sst2/dev.tsv": 872, "banking77/train.csv": 10_003, "banking77/test.csv": 3_080,
    "goemotions/train.tsv": 43_410, "goemotions/dev.tsv": 5_426, "goemotions/test.tsv": 5_427,
    "pairs/mrpc_train.txt": 4_076, "pairs/mrpc_test.txt": 1_725, "pairs/stsb_train.tsv": 5_749,
    "pairs/stsb_dev.tsv": 1_500, "chinese/waimai_10k.csv": 11_987, "chinese/gb18030_folders": 240,
    "messy/spam_latin1.csv": 5_572, "messy/SMSSpamCollection.tsv": 5_574,
    "messy/jigsaw_train_sample.csv": 1_000,
    "messy/jigsaw_val_sample.csv": 1_000, "messy/agnews_no_header.csv": 7_600,
    "quality/trec/train.csv": 5_452, "quality/trec/test.csv": 500, "quality/sst5/train.csv": 8_544,
    "quality/sst5/test.csv": 2_210, "quality/emotion/train.csv": 3_257, "quality/emotion/test.csv": 1_421,
    "quality/irony/train.csv": 2_862, "quality/irony/test.csv": 784,
    "quality/agnews/train.csv": 10_001, "quality/agnews/test.csv": 7_600,
    "quality/imdb/train.csv": 2_000, "quality/imdb/test.csv": 1_000,
}  # fmt: skip
# One label a row, with the flags that a table needs besides --data; and the classes there are.
LABELLED: dict[str, tuple[dict[str, Any], int]] = {
    "sst2": ({}, 2), "banking77": ({}, 77), "chinese/waimai_10k.csv": ({}, 2), "chinese/gb18030_folders": ({}, 4),
    "messy/spam_latin1.csv": ({}, 2), "messy/SMSSpamCollection.tsv": ({}, 2),
    "messy/agnews_no_header.csv": ({"text_column": "column_3"}, 4),
    "pairs/mrpc_train.txt": ({"text_column": "#1 String"}, 2),
    "quality/trec": ({}, 6), "quality/sst5": ({}, 5), "quality/emotion": ({}, 4), "quality/irony": ({}, 2),
    "quality/agnews": ({}, 4), "quality/imdb": ({}, 2),
}  # fmt: skip
# Of other tasks: options, the task, and the number of its outputs.
OTHER_TASKS: dict[str, tuple[dict[str, str], str, int]] = {
    "goemotions/train.tsv": ({}, "multi_label", 28),
    "messy/jigsaw_train_sample.csv": ({}, "multi_label", 6),
    "pairs/mrpc_train.txt": ({}, "single_label", 2),
    "pairs/stsb_train.tsv": ({"label_column": "score"}, "regression", 1),
}


@pytest.mark.parametrize("name", ROWS)
def test_every_row_is_read(name: str) -> None:
    assert len(read_table(str(DATA / name))) == ROWS[name]


@pytest.mark.parametrize("name", LABELLED)
def test_what_can_be_trained_on(name: str) -> None:
    options, classes = LABELLED[name]
    config = DataConfig(data=str(DATA / name), **options)
    tables = read_tables(config)
    splits = split_table(tables, recognize(tables).targets, 42)
    assert len(splits.labels) == classes
    assert len(splits.validation) > 0
    assert len(set(splits.train.texts(splits.columns.text)[:50])) > 40, "texts, not classes"


@pytest.mark.parametrize("name", OTHER_TASKS)
def test_other_tasks_are_recognized(name: str) -> None:
    options, task, outputs = OTHER_TASKS[name]
    config = DataConfig(data=str(DATA / name), **options)
    tables = read_tables(config)
    recognized = recognize(tables)
    assert (recognized.name, len(recognized.labels)) == (task, outputs)
    assert len(split_table(tables, recognized.targets, 42).validation) > 0
