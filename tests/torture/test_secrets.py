"""A planted token is in no file and in no output."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import run

PLANTED = "hf_plantedplantedplanted"
SECRETS = dict.fromkeys(("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "MLFLOW_TRACKING_PASSWORD"), PLANTED)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("", 0),
        ("--model nobody/nothing", 2),
        pytest.param("--max-length 100000", 2, marks=pytest.mark.slow),
        pytest.param("--learning-rate 1e30", 1, marks=pytest.mark.slow),
    ],
)
def test_tokens_of_the_environment_are_written_nowhere(
    model_folder: Path, table: Path, tmp_path: Path, words: str, code: int
) -> None:
    model = "" if "--model" in words else f"--model {model_folder}"
    command = (
        f"train --data {table} {model} --cpu --epochs 1 --contrastive-steps 0 --folds 0 --verbose --output-dir out"
    )
    done = run(tmp_path, "classify", *command.split(), *words.split(), **SECRETS)
    assert done.returncode == code, done.stderr
    assert PLANTED not in done.stdout + done.stderr
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in written if PLANTED.encode() in path.read_bytes()]
    if code == 0:
        assert len(written) > 10
