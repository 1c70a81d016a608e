"""classify export: the exported folder predicts what the run predicts, in a process without torch."""

from __future__ import annotations

import csv
import errno
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from classify.cli import main
from classify.evaluation.scored_rows import ScoredRows
from classify.export.base import Check, Sample
from classify.prediction.predictor import load_classifier
from classify.tasks import single_label
from classify.training.run import train
from tests.support import tiny
from tests.support.documents import commands
from tests.support.processes import ROOT, run
from tests.support.runs import make_config, read_json
from tests.support.tasks import CASES

onnx = pytest.importorskip("onnx", reason="the extra export is not installed")
pytest.importorskip("onnxruntime", reason="the extra export is not installed")
TARGETS = importlib.import_module("classify.export.write").TARGETS

# The texts that docs/deploy.md shows.
SHOWN = ["PIN is blocked", "where is my parcel?"]
STEPS = {"num_train_epochs": 1.0, "folds": 0}
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(model_folder: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(make_config(model_folder, table, tmp_path_factory.mktemp("runs") / "run", **STEPS))


@pytest.fixture(scope="module")
def exported(finished: Path) -> Path:
    assert main(["export", "--model", str(finished)]) == 0
    return finished / "onnx"


def sample_of(targets: Any, logits: Any) -> Sample:
    scored = ScoredRows(np.arange(len(targets), dtype=np.uint64), targets, logits, None, None)
    return Sample(cast(Any, None), scored, logits)


def compare(run: Path, exported: Path, texts: list[Any]) -> float:
    """The largest difference of a probability, or score."""
    with load_classifier(str(run), use_cpu=True) as one, load_classifier(str(exported)) as other:
        return float(np.abs(one.probabilities(texts) - other.probabilities(texts)).max())


@pytest.mark.parametrize("case", ["lists", *(pytest.param(case, marks=SLOW) for case in ("pair", "joined", "scores"))])
def test_every_task_predicts_the_same(case: str, model_folder: Path, tmp_path: Path) -> None:
    table = CASES[case].write(tmp_path / "my.csv")
    run = train(make_config(model_folder, table, tmp_path / "run", **STEPS, **CASES[case].options))
    assert main(["export", "--model", str(run), "--out", str(tmp_path / "exported")]) == 0
    for folder in (run, tmp_path / "exported"):
        words = ["--model", str(folder), "--data", str(table), "--out", str(tmp_path / f"{folder.name}.csv"), "--cpu"]
        assert main(["predict", *words]) == 0
    with (tmp_path / "run.csv").open() as one, (tmp_path / "exported.csv").open() as other:
        for first, second in zip(csv.DictReader(one), csv.DictReader(other), strict=True):
            for name in CASES[case].added:
                try:
                    assert float(second[name]) == pytest.approx(float(first[name]), abs=1e-4)
                except ValueError:  # a label
                    assert second[name] == first[name]


@pytest.mark.parametrize("policy", ["chunks", *(pytest.param(name, marks=SLOW) for name in ("truncate", "head-tail"))])
def test_long_texts_are_cut_as_in_training(policy: str, model_folder: Path, table: Path, tmp_path: Path) -> None:
    run = train(make_config(model_folder, table, tmp_path / "run", **STEPS, max_length=8, long_texts=policy))
    assert main(["export", "--model", str(run)]) == 0
    texts = [text for text, _ in tiny.table_rows(30, seed=7)]
    assert compare(run, run / "onnx", texts) < 1e-5


def test_what_was_checked_is_recorded(finished: Path, exported: Path) -> None:
    recorded = read_json(exported / "export.json")
    check = recorded["check"]
    assert check["texts"] > 12
    assert 0 < check["largest_difference"] < 1e-5
    assert check["changed"] == 0
    before, after = check["scores"]["macro_f1"]
    assert before == after
    assert check["change"]["accuracy"] == [0, 0, 0]
    assert recorded["model"] == str(finished)
    model = onnx.load(exported / "model.onnx")
    values = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(values["labels"]) == ["app", "card", "money"]
    assert json.loads(values["classify"])["max_length"] == read_json(finished / "classify.json")["max_length"]
    assert [one.name for one in model.graph.input] == ["input_ids", "attention_mask", "token_type_ids"]
    assert [(one.dim_param, one.dim_value) for one in model.graph.input[0].type.tensor_type.shape.dim] == [
        ("batch", 0), ("length", 0),
    ]  # fmt: skip


def test_the_file_names_nothing_of_this_machine(exported: Path) -> None:
    content = (exported / "model.onnx").read_bytes()
    assert str(Path(__file__).parents[2]).encode() not in content
    assert b"site-packages" not in content


def test_prediction_needs_no_torch(exported: Path) -> None:
    code = (
        "import sys, classify\n"
        f"print(classify.load({str(exported)!r}).predict(['my card was stolen', '']))\n"
        "print([name for name in ('torch', 'transformers', 'sklearn', 'scipy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    labels, imported = done.stdout.splitlines()
    assert imported == "[]"
    with load_classifier(str(exported)) as predictor:
        expected = predictor.task.targets.decode(
            predictor.task.answers.decide(predictor.probabilities(["my card was stolen", ""]))
        )
    assert labels == str(expected)


def snippet(language: str) -> str:
    """What docs/deploy.md shows in a language."""
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    (shown,) = re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return str(shown)


@pytest.fixture
def place(exported: Path, tmp_path: Path) -> Path:
    """A folder where the page's commands can be typed."""
    shutil.copytree(exported.parent, tmp_path / "runs" / "my-1")
    return tmp_path


def expected_labels(exported: Path) -> list[str]:
    with load_classifier(str(exported)) as predictor:
        return predictor.answers(predictor.probabilities(SHOWN), None)


def test_a_script_without_this_program_predicts_the_same(exported: Path, place: Path) -> None:
    assert "classify" not in re.findall(r"import (\w+)", snippet("python"))
    command = [sys.executable, "-c", snippet("python")]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == str(expected_labels(exported))


@pytest.mark.slow
def test_transformers_js_predicts_the_same(exported: Path, place: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    install = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "@huggingface/transformers"]
    if subprocess.run(install, cwd=place, capture_output=True, timeout=200, check=False).returncode:
        pytest.skip("@huggingface/transformers could not be installed")
    script = snippet("javascript").replace("console.log(await classify(", "console.log(JSON.stringify(await classify(")
    (place / "page.mjs").write_text(script.replace("]));", "])));"))
    done = subprocess.run(["node", "page.mjs"], cwd=place, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    assert [answer["label"] for answer in answers] == expected_labels(exported)
    with load_classifier(str(exported)) as predictor:
        confidences = predictor.probabilities(SHOWN).max(axis=1)
    np.testing.assert_allclose([answer["score"] for answer in answers], confidences, atol=1e-4)


@pytest.mark.slow
def test_the_commands_of_the_page(place: Path) -> None:
    tiny.write_table(place / "new.csv", tiny.table_rows(20, seed=5))
    shutil.rmtree(place / "runs" / "my-1" / "onnx")
    typed = commands(ROOT / "docs" / "deploy.md")
    assert len(typed) >= 3
    for line in typed:
        if not line.startswith("curl"):  # of a server, whose interface has tests
            done = run(place, *shlex.split(line))
            assert done.returncode == 0, f"{line}: {done.stderr}"
    assert (place / "predictions.csv").exists()


def test_evaluate_takes_it(exported: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", "--model", str(exported), "--data", str(table)]) == 0


def test_a_model_that_fails_its_check_is_not_written(
    finished: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("classify.export.onnx_fp32._TOLERANCE", 0.0)
    assert main(["export", "--model", str(finished), "--out", str(tmp_path / "out")]) == 1
    assert "fails its check" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_eight_bits(finished: Path, table: Path, tmp_path: Path) -> None:
    assert main(["export", "--model", str(finished), "--to", "onnx-int8"]) == 0
    operators = [node.op_type for node in onnx.load(finished / "onnx-int8" / "model.onnx").graph.node]
    assert operators.count("MatMulInteger") == 2 * 6, "six products in each of two layers"
    texts = [text for text, _ in tiny.table_rows(60)]
    assert 1e-6 < compare(finished, finished / "onnx-int8", texts) < 0.1


@pytest.mark.parametrize(
    ("rows", "worse", "refused"), [(40, 1, False), (40, 12, True), (1_000, 30, True), (1_000, 15, False)]
)
def test_eight_bits_are_refused_for_a_fall_that_is_no_chance(rows: int, worse: int, refused: bool) -> None:
    """One of 40 rows is more than two points of accuracy, but says nothing."""
    targets = np.arange(rows) % 2
    good = np.eye(2, dtype=np.float32)[targets] * 4
    bad = good.copy()
    bad[:worse] = good[:worse, ::-1]
    task = single_label.make(["a", "b"])
    check = Check.compare(task, sample_of(targets, good), bad)
    assert (TARGETS["onnx-int8"].find_fault(check, task) is not None) == refused


def damaged(exported: Path, folder: Path, change: Callable[[Path], object]) -> Path:
    """A copy of an exported folder with something wrong."""
    folder.mkdir()
    for file in exported.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    change(folder)
    return folder


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda folder: (folder / "model.onnx").write_bytes(b"\x08 not a model"), "export it again"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "its tokenizer cannot be read"),
        (lambda folder: (folder / "classify.json").unlink(), "no classify.json"),
        (lambda folder: (folder / "model.onnx").unlink(), "no model.onnx in it; copy the folder again"),
    ],
)
def test_a_damaged_folder_is_one_line(
    change: Callable[[Path], object], expected: str, exported: Path, tmp_path: Path, capsys: Any
) -> None:
    folder = damaged(exported, tmp_path / "damaged", change)
    assert main(["predict", "--model", str(folder), "--text", "my card"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--model", "{onnx}"], "it is an exported model"),
        (["--model", "{run}"], "exists already; add --overwrite"),
        (["--model", "{run}", "--out", "{run}", "--overwrite"], "is no exported model"),
        (["--model", "{run}", "--to", "tflite", "--out", "{run}/x"], "--to must be one of onnx, onnx-int8"),
        (["--model", "nowhere"], "no such folder"),
    ],
)
def test_wrong_words(words: list[str], expected: str, finished: Path, exported: Path, capsys: Any) -> None:
    given = [word.format(run=finished, onnx=exported) for word in words]
    assert main(["export", *given]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


def test_a_full_disk_is_one_line(finished: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("classify.export.write.write_json", refuse)
    assert main(["export", "--model", str(finished), "--out", str(tmp_path / "onnx")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "onnx: No space left on device" in line
    assert not list(tmp_path.iterdir())


def test_the_interval_of_the_change_is_paired() -> None:
    """Two of 100 rows get wrong, one gets right."""
    task, logits = single_label.make(["a", "b"]), np.tile(np.float32([1, 0]), (100, 1))
    targets = (np.arange(100) < 10).astype(np.int64)
    new = logits.copy()
    new[[5, 20, 30]] = [0, 1]
    sample = sample_of(targets, logits)
    check = Check.compare(task, sample, new)
    mean, low, high = check.change["accuracy"]
    assert mean == pytest.approx(-0.01)
    assert (high - low) / 2 == pytest.approx(1.96 * np.sqrt((3 - 0.01) / 100) / 10, rel=1e-3)


def test_a_folder_with_other_files_is_not_replaced(exported: Path, tmp_path: Path, capsys: Any) -> None:
    """As one of models, whose name happens to be that of the export."""
    folder = tmp_path / "models"
    shutil.copytree(exported, folder)
    (folder / "thesis.txt").write_text("three years")
    assert main(["export", "--model", str(exported.parent), "--out", str(folder), "--overwrite"]) == 2
    assert "it holds thesis.txt, which no export wrote" in capsys.readouterr().err
    assert (folder / "thesis.txt").exists()


def test_thresholds_are_of_the_exported_model(finished: Path, exported: Path) -> None:
    """Not of the run's outputs, from which those of 8 bits differ."""
    run, own = ScoredRows.read(finished), ScoredRows.read(exported)
    assert own.hashes.tolist() == run.hashes.tolist()
    assert (own.logits != run.logits).any()
    np.testing.assert_allclose(own.logits, run.logits, atol=1e-4)
    assert own.trained is not None


def test_scores_of_any_size_are_exported(model_folder: Path, tmp_path: Path) -> None:
    """Prices with a mean of 50,000: what they differ by is relative to their spread."""
    rows = [(text, str(50_000 + 900 * number)) for number, (text, _) in enumerate(tiny.table_rows(60))]
    table = tiny.write_table(tmp_path / "my.csv", rows, ("text", "score"))
    settings = {"task": "regression", "label_column": "score", **STEPS}
    config = make_config(model_folder, table, tmp_path / "run", **settings)
    assert main(["export", "--model", str(train(config))]) == 0


def test_an_earlier_export_is_replaced(finished: Path, exported: Path, tmp_path: Path) -> None:
    folder = damaged(exported, tmp_path / "again", lambda folder: (folder / "model.onnx").write_text("x"))
    assert main(["export", "--model", str(finished), "--out", str(folder), "--overwrite"]) == 0
    assert (folder / "model.onnx").stat().st_size > 1


@pytest.mark.parametrize("name", ["predictions.csv", "evaluation.parquet", "tokenizer.json"])
def test_a_folder_that_cannot_be_checked_is_refused(name: str, finished: Path, tmp_path: Path, capsys: Any) -> None:
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    assert main(["export", "--model", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"no {name} in it" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("flag", [["--precision", "bf16"], ["--nproc", "2"]])
def test_flags_of_torch_are_refused(flag: list[str], exported: Path, table: Path, tmp_path: Path, capsys: Any) -> None:
    words = ["--model", str(exported), "--data", str(table), "--out", str(tmp_path / "p.csv"), *flag]
    assert main(["predict", *words]) == 2
    assert not (tmp_path / "p.csv").exists()


def test_an_export_explains_as_its_run_does(finished: Path, exported: Path) -> None:
    with load_classifier(str(finished), use_cpu=True) as one, load_classifier(str(exported)) as other:
        words, same = one.explain("my card was stolen", "card"), other.explain("my card was stolen", "card")
    assert [word.word for word in words] == [word.word for word in same]
    assert [word.score for word in words] == pytest.approx([word.score for word in same], abs=1e-3)
