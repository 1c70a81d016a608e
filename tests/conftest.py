"""Fixtures shared by all tests: no network, a cache of its own, tiny models and tables."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import tiny

ROOT = Path(__file__).resolve().parent.parent

os.environ["HF_HUB_OFFLINE"] = "1"


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


def unlaunched() -> dict[str, str]:
    """The environment of a process that is nobody's child of a launcher, and that has to find the network itself."""
    launched = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME")
    return {key: value for key, value in os.environ.items() if key not in launched}


def run_command(
    folder: Path, *arguments: str, timeout: float = 120, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run python with these arguments in a folder, as nobody's child of a launcher; output and code come back."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**unlaunched(), "HF_HUB_OFFLINE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        check=False,
    )


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command of the program in an empty folder, as a person would."""
    return functools.partial(run_command, tmp_path)
