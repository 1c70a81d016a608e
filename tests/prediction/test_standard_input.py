"""Predictions of standard input come while it is still open."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from classify import train
from tests.support.processes import ROOT
from tests.support.runs import make_config


@pytest.fixture(scope="module")
def trained(model_folder: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(make_config(model_folder, table, tmp_path_factory.mktemp("runs") / "out", max_steps=1))


@pytest.fixture
def predicting(trained: Path) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "classify", "predict", "--model", str(trained), "--cpu", "--data", "-", "--out", "-"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_rows_come_out_as_they_come_in(predicting: subprocess.Popen[str]) -> None:
    assert predicting.stdin is not None
    assert predicting.stdout is not None
    for number, lines in enumerate(("id,text\n1,my card is lost\n", "2,the app is slow\n", '3,"two\nlines"\n')):
        predicting.stdin.write(lines)
        predicting.stdin.flush()
        read = [predicting.stdout.readline() for _ in range(2 if number in (0, 2) else 1)]
        assert read[-1].startswith(("1,my card is lost,", "2,the app is slow,", 'lines",')[number])
    output, errors = predicting.communicate("", timeout=60)
    assert output == ""
    assert errors.startswith("-: 3 rows\n")
    assert predicting.returncode == 0


@pytest.mark.parametrize(
    "content",
    ['{"text": "my card"}\n{"text": "the app"}\n', "my card\nthe app", "\ufefftext\nmy card\nthe app\n"],
    ids=["JSON Lines", "lines", "one column"],
)
def test_other_forms(predicting: subprocess.Popen[str], content: str) -> None:
    output, errors = predicting.communicate(content, timeout=60)
    assert [line.split(",")[0] for line in output.splitlines()] == ["text", "my card", "the app"], errors


def test_a_header_without_the_texts_is_a_text_and_said_to_be(predicting: subprocess.Popen[str]) -> None:
    output, errors = predicting.communicate("id,name\n1,2\n2,3\n", timeout=60)
    assert len(output.splitlines()) == 4
    assert "the first line does not name the column 'text', so each line is a text" in errors


def test_whole_json_is_refused(predicting: subprocess.Popen[str]) -> None:
    content = json.dumps([{"text": "my card"}, {"text": "the app"}], indent=1)
    output, errors = predicting.communicate(content, timeout=60)
    assert (output, predicting.returncode) == ("", 2)
    assert "expected an object of JSON per line" in errors
