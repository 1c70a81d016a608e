"""Fixtures shared by all tests: no network, a cache of its own, tiny models and tables."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

# Before torch is imported: workers side by side would fight for the cores with threads that spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

from tests.support import tiny
from tests.support.person import Person
from tests.support.processes import run, run_python

# Packages whose tests take no torch, or hardly any time.
_SHORT = {"benchmarks", "cli", "config", "data", "evaluation", "launch"}


def pytest_configure() -> None:
    """A job in the background may ignore Ctrl-C, and so would the processes that tests send it to."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start processes or train come first: the short ones fill the gaps at the end."""
    items.sort(key=lambda item: item.path.parent.name in _SHORT)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tokenised tables of tests stay out of the person's cache."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random BERT with a local vocabulary."""
    return tiny.make_model(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 120 rows in three classes."""
    return tiny.write_table(tmp_path_factory.mktemp("tables") / "my.csv", tiny.table_rows(120))


@pytest.fixture
def person(tmp_path: Path) -> Person:
    folder = tmp_path / "home"
    folder.mkdir()
    user = Person(folder)
    tiny.write_table(folder / "my.csv", tiny.table_rows(30))
    return user


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the program in an empty folder, as a person would: `command("classify", "predict", ...)`."""
    return functools.partial(run, tmp_path)


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a real interpreter there: a launcher, or a script."""
    return functools.partial(run_python, tmp_path)
