"""`classify start`: a first model from the names of the classes, and the rows to label first."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from classify.cli import main
from classify.commands.start import read_names
from classify.errors import InputError
from classify.files import read_json
from classify.prediction.zero_shot import self_train
from classify.tasks import single_label
from tests.support import tiny
from tests.support.person import Person


def test_self_training_learns_what_the_names_only_hint_at() -> None:
    """Classes whose texts lie beside their names: the layer finds the texts, and keeps to the names."""
    draw = np.random.default_rng(0)
    middles = 4 * np.eye(3, 24)
    truth = np.repeat(np.arange(3), 100)
    texts = (middles[truth] + 2 + 0.5 * draw.normal(size=(300, 24))).astype(np.float32)
    hinted = middles + 3 * draw.normal(size=(3, 24)) * (np.arange(24) > 2)
    weight, bias, renamed = self_train(
        single_label.make(["a", "b", "c"]), texts, hinted.astype(np.float32), np.arange(3)
    )
    assert ((texts @ weight.T + bias).argmax(axis=1) == truth).mean() > 0.97
    assert renamed > 0.1  # of those, most were named wrong at first


def test_names_sentences_and_examples(tmp_path: Path) -> None:
    file = tmp_path / "labels.yaml"
    file.write_text("billing: about money\nrefund: {description: money back, examples: [i want it back]}\nother:\n")
    assert read_names(str(file)) == {
        "billing": ["about money"],
        "refund": ["money back", "i want it back"],
        "other": [],
    }
    file.write_text("- billing\n- refund\n")
    assert read_names(str(file)) == {"billing": [], "refund": []}
    file.write_text("- 007\n- no\n- 1.10\n")  # as they are written
    assert read_names(str(file)) == {"007": [], "no": [], "1.10": []}
    for content in ("- Card\n- card\n", "- one\n", "just words\n", "- {a: b}\n- c\n", "a: [\n", ""):
        file.write_text(content)
        with pytest.raises(InputError, match=r"--labels .*(Expected|Give each class once)"):
            read_names(str(file))


def test_random_rows_are_drawn_from_all(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 50 texts, which are all written, the 20 at random are as uncertain as the others, on average."""
    monkeypatch.chdir(tmp_path)
    texts = [(text, "") for text, _ in tiny.table_rows(50)]
    tiny.write_table(tmp_path / "texts.csv", texts, ("text", "note"))
    (tmp_path / "labels.yaml").write_text("- app\n- card\n- money\n")
    words = ["--labels", "labels.yaml", "--data", "texts.csv", "--output-dir", "run", "--model", str(model_folder)]
    assert main(["start", *words]) == 0
    with (tmp_path / "run" / "label-me.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    random = [float(row["confidence"]) for row in rows if row["chosen"] == "random"]
    others = [float(row["confidence"]) for row in rows if row["chosen"] == "uncertain"]
    assert len(random) == 20
    assert min(random) < sorted(others)[10]


def test_from_names_to_a_score(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model says that it has seen no label; the rows drawn at random score it once they are labelled."""
    monkeypatch.chdir(tmp_path)
    truth = dict(tiny.table_rows(200))
    tiny.write_table(tmp_path / "texts.csv", [(text, "") for text in truth], ("text", "note"))
    (tmp_path / "labels.yaml").write_text("- app\n- card\n- money\n")
    words = ["--labels", "labels.yaml", "--data", "texts.csv", "--output-dir", "run", "--model", str(model_folder)]
    assert main(["start", *words]) == 0
    printed = capsys.readouterr().out
    assert "3 classes from their names; no label has been seen, so the accuracy is unknown" in printed
    assert read_json(tmp_path / "run" / "classify.json")["labels_seen"] == 0
    path = tmp_path / "run" / "label-me.csv"
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["chosen"] for row in rows] == ["uncertain"] * 30 + ["random"] * 20
    assert len({row["text"] for row in rows}) == 50
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, "label": truth[row["text"]]} for row in rows)
    assert main(["evaluate", "--model", "run", "--data", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "note: the names alone are" in printed
    assert "30 rows that were not chosen at random are not scored" in printed
    (result,) = (tmp_path / "evaluations").iterdir()
    assert read_json(result / "metrics.json")["test"]["rows"] == 20
    assert "It was made from the names of the classes; no label was seen." in (result / "report.html").read_text()


def test_what_cannot_start(person: Person) -> None:
    person.write("labels.yaml", "- card\n- money\n")
    person.write("few.csv", "text\none\ntwo\n")
    words = ["start", "--labels", "labels.yaml", "--data", "few.csv", "--output-dir", "run"]
    assert "2 different texts without a label for 2 classes. Expected 50 or more" in person.fails(
        *words, program="classify"
    )
    person.write("chosen.csv", "text,chosen\n" + "".join(f"text {number},x\n" for number in range(60)))
    words[4] = "chosen.csv"
    assert "has a column 'chosen' of its own" in person.fails(*words, program="classify")
    assert "--labels nothing.yaml: cannot be read" in person.fails(
        "start", "--labels", "nothing.yaml", "--data", "few.csv", "--output-dir", "run", program="classify"
    )
