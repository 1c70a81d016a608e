"""The wheel works outside the checkout, in an environment that has nothing of it."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import numpy
import pytest

from tests.support import tiny
from tests.support.processes import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(words, check=True, timeout=200)
    (path,) = folder.glob("*.whl")
    return path


def test_it_holds_the_package_and_its_templates_alone(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert wheel.name.startswith("classify_text-")
    assert "classify/report/templates/page.html" in names
    assert "classify/py.typed" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"classify", "classify_text"}


def test_it_trains_and_predicts_elsewhere(wheel: Path, tmp_path: Path) -> None:
    """The libraries are those of this environment, by a .pth file; the checkout is not on the path."""
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], check=True, timeout=120)
    libraries = Path(numpy.__file__).parent.parent
    (site / "libraries.pth").write_text(f"{libraries}\n")
    tiny.write_table(tmp_path / "my.csv", tiny.table_rows(40))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*words: str) -> Any:
        command = [python.with_name("classify"), *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180)

    where = subprocess.run(
        [python, "-c", "import classify; print(classify.__file__)"], cwd=tmp_path, env=environment, check=True,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert where.stdout.strip() == str(site / "classify" / "__init__.py")
    done = run("train", "--data", "my.csv", "--preset", "fast", "--folds", "0", "--cpu")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "my-1" / "report.html").exists()
    done = run("predict", "--model", "runs/my-1", "--data", "my.csv", "--cpu")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "predictions.csv").exists()
