"""Data sets of the hub by their names, as `datasets` has them in its cache; and what is said of names without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Fill the cache as load_dataset does for a repository of files, under the name of the repository.
FILL = """
import os, sys, datasets, pathlib
home, folder = map(pathlib.Path, sys.argv[1:3])
features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["neg", "pos"]))
for split, rows, known in (("train", 40, True), ("validation", 10, True), ("test", 6, False)):
    texts = [f"{split} text {i}" for i in range(rows)]
    labels = [i % 2 if known else -1 for i in range(rows)]
    datasets.Dataset.from_dict({"text": texts, "label": labels}, features).to_parquet(str(folder / f"{split}.parquet"))
from datasets.packaged_modules.parquet.parquet import Parquet
files = {name: str(folder / f"{name}.parquet") for name in ("train", "validation", "test")}
builder = Parquet(
    cache_dir=str(home), dataset_name="reviews", config_name="default", hash="abc", data_files=files, features=features
)
builder.download_and_prepare()
made = pathlib.Path(builder.cache_dir)
target = home / "somebody___reviews" / "default" / "0.0.0" / "abc"
target.parent.mkdir(parents=True)
made.rename(target)
os._exit(0)  # a thread of the library may abort while the interpreter ends
"""
READ = """
import sys
from classify.config.schema import DataConfig
from classify.data.split_table import split_table
from classify.data.reading import read_tables
from classify.errors import InputError
from classify.tables.folders import find_splits
from classify.tasks.registry import recognize
config = DataConfig(data=sys.argv[1])
try:
    tables = read_tables(config)
except InputError as error:
    raise SystemExit(f"error: {error}")
splits = split_table(tables, recognize(tables).targets, 0)
parts = [len(part) if part else None for part in (splits.train, splits.validation, splits.test)]
print(splits.labels, parts, list(splits.unlabelled))
print(splits.train.table.form, splits.train.texts("text")[0], sep="; ")
"""


def run(script: str, *words: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {"HF_DATASETS_CACHE": str(home), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), "PATH": "/usr/bin"}
    return subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True, text=True, timeout=120, env=environment, cwd=home, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home, files = tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("files")
    done = run(FILL, str(home), str(files), home=home)
    assert done.returncode == 0, done.stderr
    return home


def test_a_data_set_in_the_cache(home: Path) -> None:
    """Parts by their names, classes by theirs; the test part, whose labels are withheld, is predicted."""
    done = run(READ, "hub:somebody/reviews", home=home)
    assert done.stdout.splitlines() == [
        "['neg', 'pos'] [40, 10, None] ['unlabelled_test.csv']",
        "a data set of the Hugging Face hub; train text 0",
    ], done.stderr


def test_a_split_by_its_name(home: Path) -> None:
    done = run(READ, "hub:somebody/reviews[train]", home=home)
    assert done.stdout.startswith("['neg', 'pos'] [32, 4, 4] []"), done.stderr


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("hub:nobody/nothing", "not available on the Hugging Face hub"),
        ("hub:somebody/reviews[dev]", "no such split; it has: train, validation, test"),
        # A path is not looked up, though the cache has a data set of that name: it is somebody else's.
        ("somebody/reviews", "no such file. The folder somebody does not exist either."),
    ],
)
def test_a_name_that_is_not_there(home: Path, name: str, printed: str) -> None:
    (line,) = run(READ, name, home=home).stderr.splitlines()
    assert line.startswith(f"error: --data {name}: {printed}")
