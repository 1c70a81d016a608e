"""The commands a document shows, and a folder where they can be typed as they stand."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support import tiny
from tests.support.processes import ROOT, unlaunched

DISTRIBUTED = ROOT / "docs" / "distributed.md"

# Stands in the folder under the name of the real one, and adds flags that make a run short.
_QUICK = """
import sys
sys.path.insert(0, {root!r})
from classify.cli import main
if __name__ == "__main__":
    raise SystemExit(main([*sys.argv[1:], *{more!r}], program="run_classify.py"))
"""


# Stands there instead where only how the launcher's variables are read is asked: a line of JSON a process.
_READ = """
import json, os, sys
sys.path.insert(0, {root!r})
from classify.config.parser import parse_training
from classify.launch.launch import Launch

config = parse_training(sys.argv[1:], "run_classify.py")
launch = Launch.read(os.environ, config.training.local_rank)
sys.stdout.write(json.dumps(vars(launch)) + chr(10))
"""


def commands(document: Path) -> list[str]:
    """Every line of the document's sh blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", document.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def run_snippets(snippets: list[str], model: str) -> None:
    """All snippets in one namespace; the trainings are short, and on a tiny model."""
    quick = f'model="{model}", cpu=True, contrastive_steps=0, folds=0, '
    options = f'model="{model}", cpu=True, options={{"contrastive_steps": 0, "folds": 0}}, '
    config = f'DataConfig(data="my.csv", folds=0), ModelConfig(model="{model}"), training=TrainingConfig(use_cpu=True, '
    names: dict[str, Any] = {}
    for snippet in snippets:
        code = re.sub(r"classify\.train\(((?!RunConfig)[^\n]*)(epochs=)", rf"classify.train(\1{quick}\2", snippet)
        code = code.replace("TextClassifier(epochs", f"TextClassifier({options}epochs")
        code = code.replace('DataConfig(data="my.csv"), training=TrainingConfig(', config)
        code = code.replace("import DataConfig,", "import DataConfig, ModelConfig,")
        exec(code, names)


def type_in(
    folder: Path, command_line: str, environment: dict[str, str], timeout: float = 90
) -> subprocess.CompletedProcess[str]:
    """Run a command line as it stands."""
    return subprocess.run(
        shlex.split(command_line),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def make_place(folder: Path, model: Path | None, interpreter: str = sys.executable) -> dict[str, str]:
    """Lay out what the commands expect (run_classify.py, my.csv, configs/); returns the environment to run them in.

    With a model they train two steps; without one each process prints how it reads its launch, and stops.
    `interpreter` is what the commands, and launchers, start as python.
    """
    more = ["--cpu", "--model", str(model), "--contrastive-steps", "0", "--max-steps", "2", "--report-to", "none"]
    script = _READ.format(root=str(ROOT)) if model is None else _QUICK.format(root=str(ROOT), more=more)
    (folder / "run_classify.py").write_text(script)
    tiny.write_table(folder / "my.csv", tiny.table_rows(120))
    cluster = folder / "configs" / "cluster"
    cluster.mkdir(parents=True)
    for script in (ROOT / "configs" / "cluster").iterdir():
        (cluster / script.name).write_text(script.read_text(encoding="utf-8"))
    environment = unlaunched()
    folders = dict.fromkeys([str(Path(interpreter).parent), str(Path(sys.executable).parent)])
    environment["PATH"] = os.pathsep.join([*folders, environment["PATH"]])
    activate = folder / "venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.write_text(f"PATH={shlex.quote(environment['PATH'])}\n")
    own = {"VENV": str(folder / "venv"), "PYTHON_EXEC": interpreter, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return {**environment, **own}
