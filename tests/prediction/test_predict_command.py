"""classify predict: forms of output, pipes, what to write of a row, and going on after an interruption."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classify import load_classifier
from classify.cli import main
from classify.errors import InputError
from classify.evaluation.scope import Scope
from classify.evaluation.scored_rows import ScoredRows, find_threshold
from classify.prediction.inputs import find_confidence, find_set_limits
from classify.tables.read import read_table
from classify.tasks import single_label
from classify.tasks.columns import PredictionColumns
from classify.training.run import train
from tests.support import tiny
from tests.support.processes import ROOT, rank_environments
from tests.support.runs import make_config
from tests.support.tasks import CASES

ROWS = tiny.table_rows(50, seed=7)
TEXTS = [text for text, _ in ROWS]
CLASSES = single_label.make(["app", "card", "money"])


@pytest.fixture(scope="module")
def trained(model_folder: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(make_config(model_folder, table, tmp_path_factory.mktemp("runs") / "out"))


@pytest.fixture(scope="module")
def probabilities(trained: Path) -> Any:
    with load_classifier(str(trained), use_cpu=True) as classifier:
        return classifier.probabilities(TEXTS)


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tiny.write_table(tmp_path / "new.csv", ROWS)


def predict(trained: Path, new: Path, out: Path, *more: str) -> int:
    return main(["predict", "--model", str(trained), "--data", str(new), "--out", str(out), "--cpu", *more])


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet", ".xlsx"])
def test_the_ending_selects_the_format(
    trained: Path, new: Path, tmp_path: Path, probabilities: Any, ending: str
) -> None:
    assert predict(trained, new, tmp_path / f"p{ending}") == 0
    table = read_table(str(tmp_path / f"p{ending}"))
    assert table.column("text") == TEXTS
    written = np.array([[float(cell) for cell in table.column(f"prob_{name}")] for name in ("app", "card", "money")])
    np.testing.assert_allclose(written.T, probabilities, atol=1e-6)


@pytest.mark.parametrize("kind", ["deberta", "roberta"])
def test_nothing_is_dropped_out_in_prediction(kind: str, table: Path, new: Path, tmp_path: Path) -> None:
    """Also of models whose texts are padded: the command, `Run` and transformers agree."""
    config = make_config(tiny.make_model(tmp_path / "model", kind), table, tmp_path / "out", max_steps=2, dropout=0.5)
    folder, out = train(config), tmp_path / "p.csv"
    assert predict(folder, new, out, "--exact") == 0
    columns = read_table(str(out))
    written = [[float(cell) for cell in columns.column(f"prob_{label}")] for label in ("app", "card", "money")]
    with load_classifier(str(folder), use_cpu=True) as classifier:
        np.testing.assert_allclose(np.transpose(written), classifier.probabilities(TEXTS), atol=1e-5)


def pipe(trained: Path, content: str, *more: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """`classify predict --model RUN`, with a pipe as standard input."""
    words = [sys.executable, "-m", "classify", "predict", "--model", str(trained), "--cpu", *more]
    return subprocess.run(
        words, input=content.encode(), capture_output=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip


@pytest.mark.slow
def test_pipes(trained: Path, new: Path, probabilities: Any) -> None:
    """Standard output is CSV, and nothing else; for Excel it is UTF-8 whatever the locale, and a formula stays text."""
    done = pipe(trained, new.read_text(), "--out", "-")
    rows = list(csv.DictReader(io.StringIO(done.stdout.decode())))
    assert [row["text"] for row in rows] == TEXTS
    assert [float(row["prob_app"]) for row in rows] == pytest.approx(probabilities[:, 0].tolist(), abs=1e-6)
    assert b"50 rows" in done.stderr
    done = pipe(trained, "text\n=1+2 🚀\n", "--out", "-", "--excel-safe", PYTHONIOENCODING="latin-1")
    lines = done.stdout.decode("utf-8").splitlines()
    assert lines[0].startswith("\ufefftext,")
    assert lines[1].startswith("'=1+2 🚀,")


def test_a_launcher_cannot_share_a_pipe(trained: Path) -> None:
    done = pipe(trained, "a", "--data", "-", **rank_environments(2)[0])
    assert done.returncode == 2
    assert b"only one of several processes can read a stream" in done.stderr


def test_digits_for_excel(trained: Path, new: Path, tmp_path: Path) -> None:
    """Four of them, unless all are requested."""
    for flags, most in (["--excel-safe"], 4), (["--excel-safe", "--exact"], 9):
        assert predict(trained, new, tmp_path / "p.csv", "--overwrite", *flags) == 0
        numbers = read_table(str(tmp_path / "p.csv")).column("prob_app")
        longest = max(len(number.partition(".")[2]) for number in numbers)
        assert 4 < longest <= 9 if most > 4 else longest <= 4


def test_one_text(trained: Path, capsys: Any, probabilities: Any) -> None:
    assert main(["predict", "--model", str(trained), "--text", TEXTS[0], "--cpu"]) == 0
    first, *ranked = capsys.readouterr().out.splitlines()
    names = ["app", "card", "money"]
    assert first == names[probabilities[0].argmax()]
    assert [line.split()[1] for line in ranked] == [names[place] for place in np.argsort(-probabilities[0])]


@pytest.mark.parametrize(("longer", "noted"), [(2, True), (1, False)])
def test_texts_that_are_truncated_are_noted(
    trained: Path, tmp_path: Path, capsys: Any, longer: int, noted: bool
) -> None:
    """The tiny model reads 64 tokens."""
    texts = [(f"the lost card {number} " * (40 if number < longer else 1), "card") for number in range(12)]
    assert predict(trained, tiny.write_table(tmp_path / "long.csv", texts), tmp_path / "p.csv") == 0
    assert ("note: 17 % of the texts are longer than 64 tokens: truncated\n" in capsys.readouterr().out) is noted


def test_top_k_and_what_is_accepted(trained: Path, new: Path, tmp_path: Path, probabilities: Any) -> None:
    out = tmp_path / "p.jsonl"
    assert predict(trained, new, out, "--top-k", "2", "--min-confidence", "0.4") == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    names = np.array(["app", "card", "money"])
    for row, p in zip(rows, probabilities, strict=True):
        order = np.argsort(-p, kind="stable")
        assert [row["predicted_label"], row["label_1"], row["label_2"]] == [names[place] for place in order[[0, 0, 1]]]
        assert [row["prob_1"], row["prob_2"]] == pytest.approx(p[order[:2]].tolist(), abs=1e-6)
        assert row["accepted"] == bool(p.max() >= 0.4)
        assert "prob_app" not in row


def test_a_rejected_row_is_not_accepted_and_has_no_set_of_classes() -> None:
    """No held-out row has shown how often a rejection is right."""
    scope = Scope("oos", 0.6, np.zeros((1, 2), np.float16), np.zeros(2), 0.0)
    task = replace(single_label.make(["a", "b"]), scope=scope)
    columns = PredictionColumns(task, min_confidence=0.85, set_limit=0.3)
    logits = np.log([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4]])
    rows = list(columns.cells(np.column_stack([logits, [0.05, 0.7, 0.7]]).astype(np.float32)))
    assert [[*row[:2], row[-1]] for row in rows] == [["oos", "false", ""], ["a", "true", "a"], ["a", "false", "a"]]
    assert columns.summary(3) == "3 rows, 1 accepted at 0.85 (expected 1 right), 1 in no class"


@pytest.mark.parametrize("out", ["p.csv", "-"])
def test_a_row_without_a_text_is_never_accepted(trained: Path, tmp_path: Path, out: str, capfdbinary: Any) -> None:
    table = tiny.write_table(tmp_path / "some.csv", [*ROWS[:3], ("  ", "card"), ROWS[3]])
    path = Path(out) if out == "-" else tmp_path / out
    assert predict(trained, table, path, "--min-confidence", "0") == 0
    written = capfdbinary.readouterr().out if out == "-" else path.read_bytes()
    rows = list(csv.DictReader(io.StringIO(written.decode())))
    assert [row["accepted"] for row in rows] == ["true"] * 3 + ["false", "true"]


def test_the_precision_of_held_out_rows_sets_the_confidence(
    trained: Path, new: Path, tmp_path: Path, capsys: Any
) -> None:
    assert predict(trained, new, tmp_path / "p.csv", "--min-precision", "0.01") == 0
    assert "12 of the run's 12 held-out rows reach it" in capsys.readouterr().out
    assert set(read_table(str(tmp_path / "p.csv")).column("accepted")) <= {"true", "false"}


def write_rows(run: Path, folder: Path, **values: Any) -> None:
    """Write the rows that scored a run into another folder, with other values."""
    replace(ScoredRows.read(run), **values).write(folder)


def test_a_precision_that_no_row_reaches(trained: Path, tmp_path: Path) -> None:
    best = ScoredRows.read(trained).logits.argmax(axis=1)
    write_rows(trained, tmp_path, targets=(best + 1) % 3)
    none = r"12 held-out rows of .* do not show it for any confidence .* highest is none"
    with pytest.raises(InputError, match=none):
        find_confidence(str(tmp_path), CLASSES, 0.9)
    half = np.where(np.arange(12) % 2, best, (best + 1) % 3)
    write_rows(trained, tmp_path, targets=half, logits=np.eye(3, dtype=np.float32)[best])
    with pytest.raises(InputError, match=r"highest is 0\.28 for 100 % of the rows"):
        find_confidence(str(tmp_path), CLASSES, 0.9)


@pytest.mark.parametrize("count", [1, 13, 99])
def test_the_coverage_that_the_error_names_is_taken(trained: Path, tmp_path: Path, count: int) -> None:
    rows, drawn = ScoredRows.read(trained), np.arange(count) % 12
    values = {"targets": rows.targets[drawn], "logits": rows.logits[drawn], "predicted": None, "baseline": None}
    write_rows(trained, tmp_path, hashes=np.arange(count, dtype=np.uint64), trained=None, **values)
    with pytest.raises(InputError, match=f"{count} held-out rows") as refused:
        find_set_limits(str(tmp_path), CLASSES, 0.9999)
    named = float(str(refused.value).split("at most ")[1].split(";")[0])
    assert find_set_limits(str(tmp_path), CLASSES, named)[""][1] == count


def test_rows_that_were_trained_on_set_no_threshold(trained: Path, tmp_path: Path) -> None:
    """Nor do copies of a text: 90 % of the rows are right, but of the texts that are new, and count once, a third."""
    hashes, seen = np.arange(300, dtype=np.uint64), np.arange(300) < 240
    hashes[255:270] = hashes[254]  # copies that are right
    targets, logits = np.where(np.arange(300) < 270, 0, 1), np.tile(np.float32([3, 0, 0]), (300, 1))
    values = {"targets": targets, "logits": logits, "predicted": None, "baseline": None}
    write_rows(trained, tmp_path, hashes=hashes, trained=seen, **values)
    with pytest.raises(InputError, match=r"45 held-out rows .* highest is 0\.2\d for 100 %"):
        find_confidence(str(tmp_path), CLASSES, 0.8)
    assert find_set_limits(str(tmp_path), CLASSES, 0.9)[""][1] == 45


def test_sets_of_labels(trained: Path, new: Path, tmp_path: Path, probabilities: Any, capsys: Any) -> None:
    out = tmp_path / "p.csv"
    assert predict(trained, new, out, "--coverage", "0.9") == 0
    assert "note: label_set: right for 0.9 of rows like the 12 held-out ones" in capsys.readouterr().out
    table = read_table(str(out))
    for cell, predicted in zip(table.column("label_set"), table.column("predicted_label"), strict=True):
        assert cell.split("|")[0] == predicted
    assert predict(trained, new, out, "--overwrite", "--coverage", "0.99") == 2
    assert "12 held-out rows" in (error := capsys.readouterr().err)
    assert "show at most 0.923;" in error


def test_find_threshold() -> None:
    """The one-sided bound reaches the precision: 8 of 8 rows show 0.74, 52 of 52 show 0.95."""
    confidence, right = np.linspace(1, 0.5, 100), np.ones(100)
    right[80:] = 0
    best, lower = (find_threshold(confidence, right, precision) for precision in (0.9, 0.71))
    assert best is not None
    assert lower is not None
    assert 75 <= best.right <= best.accepted <= 83
    assert (best.rows, best.confidence) == (100, confidence[best.accepted - 1])
    assert (lower.accepted, lower.right) == (100, 80)
    assert find_threshold(confidence[:8], right[:8], 0.75) is None
    assert find_threshold(np.full(100, 0.7), right, 0.75) is None, "rows of equal confidence are accepted together"
    assert find_threshold(confidence, np.zeros(100), 0.5) is None


def test_a_threshold_holds_on_new_rows() -> None:
    """In 95 of 100 tables; the lowest of all thresholds that pass, by chance some of them, held less often."""
    draw, failures = np.random.default_rng(0), 0
    new = np.maximum(draw.beta(3, 0.8, 100_000), 0.2)  # exact confidences: as many are right
    for _ in range(200):
        confidence = np.maximum(draw.beta(3, 0.8, 300), 0.2)
        found = find_threshold(confidence, (draw.random(300) < confidence).astype(float), 0.9)
        failures += found is not None and new[new >= found.confidence].mean() < 0.9
    assert failures <= 10


def test_scores_have_no_labels_to_rank(model_folder: Path, tmp_path: Path, capsys: Any) -> None:
    case = CASES["scores"]
    table = case.write(tmp_path / "my.csv")
    out = train(make_config(model_folder, table, tmp_path / "out", folds=0, **case.options))
    assert predict(out, table, tmp_path / "p.csv", "--top-k", "2") == 2
    assert "--top-k: the model predicts scores" in capsys.readouterr().err
    assert main(["predict", "--model", str(out), "--text", "a", "--cpu"]) == 0
    float(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("--top-k 4", "--top-k must be at most 3"),
        ("--top-k many", "--top-k must be a whole number above 0"),
        ("--min-confidence 2", "--min-confidence must be a number from 0 to 1"),
        ("--min-confidence 0.5 --min-precision 0.9", "give one of them"),
        ("--coverage 2", "--coverage must be a number from 0 to 1"),
        ("--min-precision 1.5", "--min-precision must be a number from 0 to 1"),
        ("--text a", "--data and --text both name what to predict"),
        ("--nproc many", "--nproc must be a whole number"),
        ("--nproc 2 --data -", "--nproc works only with a file"),
    ],
)
def test_bad_flags(trained: Path, new: Path, tmp_path: Path, capsys: Any, words: str, part: str) -> None:
    assert predict(trained, new, tmp_path / "p.csv", *words.split()) == 2
    assert part in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "part"),
    [("--text b", "--text is given twice (a and b)"), ("--nproc 2", "--nproc works only with a file")],
)
def test_flags_that_one_text_has_no_use_for(trained: Path, capsys: Any, words: str, part: str) -> None:
    assert main(["predict", "--model", str(trained), "--text", "a", "--cpu", *words.split()]) == 2
    assert part in capsys.readouterr().err


def test_the_flag_that_a_refusal_proposes_is_known(trained: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "new.csv").write_text("text,n\n" + "lost card,1\n" * 9 + "money,2,3\nbroken app,4\n")
    words = ["predict", "--model", str(trained), "--data", str(tmp_path / "new.csv"), "--out", str(tmp_path / "p.csv")]
    assert main([*words, "--cpu"]) == 2
    assert "--on-bad-rows skip" in capsys.readouterr().err
    assert main([*words, "--cpu", "--on-bad-rows", "skip"]) == 0
    assert "1 rows skipped" in capsys.readouterr().out
    assert len(read_table(str(tmp_path / "p.csv"))) == 10


def test_a_file_that_exists_is_replaced_on_demand(trained: Path, new: Path, tmp_path: Path, capsys: Any) -> None:
    """Somebody may have corrected it by hand."""
    out = tmp_path / "labelled.xlsx"
    out.write_bytes(b"by hand")
    assert predict(trained, new, out) == 2
    line = f"error: --out {out}: the file exists; give another name, or --overwrite to replace it.\n"
    assert (capsys.readouterr().err, out.read_bytes()) == (line, b"by hand")
    assert predict(trained, new, out, "--overwrite") == 0
    assert read_table(str(out)).column("text") == TEXTS
