"""classify evaluate, compare and runs: scores of a further table, on the rows that all have scored."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from classify.cli import main
from classify.data.split_record import SplitRecord
from classify.evaluation.scored_rows import ScoredRows
from classify.report.result import Result
from classify.tables.labels import ClassNames
from classify.tables.read import read_table
from classify.training.run import train
from tests.support import tiny
from tests.support.runs import make_config, read_json


@pytest.fixture(scope="module")
def trained(model_folder: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(make_config(model_folder, table, tmp_path_factory.mktemp("runs") / "one"))


@pytest.fixture(scope="module")
def again(model_folder: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run of one step."""
    out = tmp_path_factory.mktemp("runs") / "two"
    return train(make_config(model_folder, table, out, max_steps=1, head="random"))


def evaluate(model: Path, data: Path, out: Path, *more: str) -> int:
    return main(["evaluate", "--model", str(model), "--data", str(data), "--output-dir", str(out), "--cpu", *more])


def test_labels_are_read_as_people_write_them(trained: Path, table: Path, tmp_path: Path, capsys: Any) -> None:
    """In another case, in a column of another name, and some missing; texts of the training are noted."""
    rows = [(text, label.upper()) for text, label in tiny.table_rows(120)]
    rows[3] = (rows[3][0], "")
    path = tiny.write_table(tmp_path / "new.csv", rows, ("text", "queue"))
    assert evaluate(trained, path, tmp_path / "a") == 2
    error = capsys.readouterr().err
    assert "no column 'label', which the model was trained on; it has: 'text', 'queue'. Name it with --label" in error
    assert evaluate(trained, path, tmp_path / "a", "--label-column", "Queue") == 0
    output = capsys.readouterr().out
    assert "rows without a label, which are left out: 1 of 120" in output
    assert "whose text was not trained on" in output
    assert read_json(tmp_path / "a" / "metrics.json")["test"]["rows"] == 119
    assert evaluate(trained, path, tmp_path / "a", "--label-column", "queue") == 2, "nothing is overwritten"
    assert "--overwrite-output-dir" in capsys.readouterr().err
    assert evaluate(trained, path, tmp_path / "a", "--label-column", "queue", "--overwrite-output-dir") == 0


def test_an_evaluation_that_cannot_be_written_leaves_the_earlier_one(
    trained: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert evaluate(trained, table, tmp_path / "a") == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    few = tiny.write_table(tmp_path / "few.csv", tiny.table_rows(30))

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ScoredRows, "write", fail)
    assert evaluate(trained, few, tmp_path / "a", "--overwrite-output-dir") == 2
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == before
    assert evaluate(trained, few, tmp_path / "b") == 2
    assert not list((tmp_path / "b").iterdir())
    assert "No space left on device" in capsys.readouterr().err


def test_some_of_several_label_columns_are_refused(model_folder: Path, tmp_path: Path, capsys: Any) -> None:
    """The rows would count as without the other labels."""
    rows = [(text, *(str(int(n % step == 0)) for step in (2, 3, 4))) for n, (text, _) in enumerate(tiny.table_rows(60))]
    table = tiny.write_table(tmp_path / "my.csv", rows, ("text", "late", "lost", "broken"))
    settings = {"label_column": "late,lost,broken", "preset": "fast", "folds": 0}
    out = train(make_config(model_folder, table, tmp_path / "out", **settings))
    assert evaluate(out, table, tmp_path / "a", "--label-column", "late,lost") == 2
    assert "expected a column for each label of the model. Got none for 'broken'" in capsys.readouterr().err
    assert evaluate(out, table, tmp_path / "a", "--label-column", "lost,late,broken") == 0


def test_classes_that_differ_in_case_alone_stay_apart(model_folder: Path, tmp_path: Path) -> None:
    """Where the run kept them apart: its own classes are never merged."""
    rows = [(text, label.title() if n % 2 else label) for n, (text, label) in enumerate(tiny.table_rows(120))]
    table = tiny.write_table(tmp_path / "my.csv", rows)
    out = train(make_config(model_folder, table, tmp_path / "out", normalize_labels="none"))
    assert evaluate(out, table, tmp_path / "scores") == 0
    support = read_json(tmp_path / "scores" / "metrics.json")["test"]["per_class"]
    assert {name: one["support"] for name, one in support.items()} == dict.fromkeys(
        ["App", "Card", "Money", "app", "card", "money"], 20
    )


def test_labels_are_renamed_as_in_the_run(model_folder: Path, tmp_path: Path) -> None:
    rows = [(text, str(n % 3)) for n, (text, _) in enumerate(tiny.table_rows(60))]
    rows[4] = (rows[4][0], "?")
    table = tiny.write_table(tmp_path / "my.csv", rows)
    names = {"label_names": "0=card,1=money,2=app", "unlabelled_value": "?"}
    out = train(make_config(model_folder, table, tmp_path / "out", folds=0, **names))
    assert evaluate(out, table, tmp_path / "scores") == 0
    assert read_json(tmp_path / "scores" / "metrics.json")["test"]["rows"] == 59


@pytest.mark.parametrize(
    ("written", "classes", "result"),
    [
        (["Card"], ["card", "app"], {"Card": "card"}),
        (["1", "2"], ["1.0", "2.0"], {"1": "1.0", "2": "2.0"}),
        (["bug", "BUG"], ["Bug", "bug"], {}),
        (["new"], ["card"], {}),
    ],
)
def test_spelling(written: list[str], classes: list[str], result: dict[str, str]) -> None:
    names = ClassNames(dict(zip(classes, classes, strict=True)))
    assert {label: names.of(label) for label in written} == {label: result.get(label, label) for label in written}


def test_texts_of_a_column_of_another_name(trained: Path, tmp_path: Path) -> None:
    """The report, and a comparison, are made from that column."""
    path = tiny.write_table(tmp_path / "new.csv", tiny.table_rows(12), ("body", "label"))
    assert evaluate(trained, path, tmp_path / "scores", "--text-column", "body") == 0
    assert (tmp_path / "scores" / "report.html").exists()


def test_only_an_evaluation_is_overwritten(trained: Path, table: Path, tmp_path: Path, capsys: Any) -> None:
    before = (trained / "metrics.json").read_bytes()
    assert evaluate(trained, table, trained, "--overwrite-output-dir") == 2
    assert "is not the folder of an earlier evaluation" in capsys.readouterr().err
    assert (trained / "metrics.json").read_bytes() == before
    (tmp_path / "file").write_text("")
    assert evaluate(trained, table, tmp_path / "file") == 2
    assert "expected a folder. Got a file instead." in capsys.readouterr().err


def test_what_makes_scores_misleading_is_noted(trained: Path, table: Path, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "new.csv"
    path.write_text("text,label\n" + "a card,card\nan app,app\n" * 5 + ",card\n")
    assert evaluate(trained, path, tmp_path / "scores") == 0
    printed = capsys.readouterr().out
    assert "note: no row has the label 'money'" in printed
    assert f"note: {path} line 12: the text is empty" in printed
    assert evaluate(trained, table, tmp_path / "again") == 0
    printed = capsys.readouterr().out
    assert re.search(r"evaluation \(\d+ of \d+ rows, whose text was not trained on\): accuracy ", printed)
    assert "on all rows: accuracy " in printed
    known = SplitRecord.find(str(trained)).find_trained(read_table(str(table)).text_hashes("text"))
    lines = table.read_text().splitlines()
    seen = [line for line, is_known in zip(lines[1:], known, strict=True) if is_known]
    (tmp_path / "seen.csv").write_text("\n".join([lines[0], *seen]) + "\n")
    assert evaluate(trained, tmp_path / "seen.csv", tmp_path / "seen") == 0
    assert f"trained on all {len(seen)} of these texts, so the scores are too high" in capsys.readouterr().out
    assert main(["compare", str(tmp_path / "seen"), str(tmp_path / "seen")]) == 0
    assert "of its rows, so it may look too good" in capsys.readouterr().out


def test_what_was_guessed_about_the_file_is_printed(trained: Path, tmp_path: Path, capsys: Any) -> None:
    """The encoding, and what the reader noted, as in training; with --quiet nothing."""
    path = tmp_path / "new.csv"
    rows = "carte perdue et très déçue,card\nl'app a planté après la mise à jour,app\n" * 9
    path.write_bytes(f"text,label\n{rows}".encode("cp1252"))
    assert evaluate(trained, path, tmp_path / "scores") == 0
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith(f"table: {path}, 18 rows, texts in 'text' (cp1252 ")
    assert line.endswith("--encoding, --delimiter, --header)")
    words = ["predict", "--model", str(trained), "--data", str(path), "--cpu", "--out"]
    assert main([*words, str(tmp_path / "p.csv")]) == 0
    assert capsys.readouterr().out.splitlines()[0] == line
    assert main([*words, "-"]) == 0
    output = capsys.readouterr()
    assert "table: " not in output.out
    assert line in output.err.splitlines()
    assert main([*words, str(tmp_path / "q.csv"), "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_a_label_that_the_model_does_not_have(trained: Path, tmp_path: Path, capsys: Any) -> None:
    path = tiny.write_table(tmp_path / "new.csv", [*tiny.table_rows(5), ("a text", "other")])
    assert evaluate(trained, path, tmp_path / "a") == 2
    assert "line 7: the label 'other' is in no row of" in capsys.readouterr().err


def test_runs_are_compared_row_by_row(trained: Path, again: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["compare", str(trained), str(again), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["rows"] == 12
    first, second = content["runs"]
    for run, folder in ((first, trained), (second, again)):
        assert run["metrics"]["accuracy"] == pytest.approx(read_json(folder / "metrics.json")["test"]["accuracy"])
    difference = second["paired"]["better"] - second["paired"]["worse"]
    assert difference == round(12 * (second["metrics"]["accuracy"] - first["metrics"]["accuracy"]))
    assert main(["compare", str(trained), str(again)]) == 0
    assert "texts: 12 scored by all" in capsys.readouterr().out


def test_a_run_is_compared_with_an_evaluation(trained: Path, again: Path, table: Path, tmp_path: Path) -> None:
    assert evaluate(again, table, tmp_path / "scores") == 0
    assert main(["compare", str(trained), str(tmp_path / "scores")]) == 0


def test_rows_whose_labels_differ_are_left_out(trained: Path, tmp_path: Path, capsys: Any) -> None:
    predictions = read_table(str(trained / "predictions.csv"))
    rows = list(zip(predictions.column("text"), predictions.column("label"), strict=True))
    other = {"app": "card", "card": "money", "money": "app"}
    changed = [(rows[0][0], other[rows[0][1]]), *rows[1:]]
    assert evaluate(trained, tiny.write_table(tmp_path / "t.csv", changed), tmp_path / "scores") == 0
    capsys.readouterr()
    assert main(["compare", str(trained), str(tmp_path / "scores")]) == 0
    assert "texts: 11 scored by all; 1 more has different labels" in capsys.readouterr().out


def test_runs_with_other_labels_are_compared_where_both_know_them(
    trained: Path, model_folder: Path, table: Path, tmp_path: Path, capsys: Any
) -> None:
    """A label was mended or added: the rows that both scored with the same label are compared."""
    rows = list(zip(read_table(str(table)).column("text"), read_table(str(table)).column("label"), strict=True))
    scored = read_table(str(trained / "predictions.csv")).column("text")
    changed = [(text, "app news" if text in scored[:4] and label == "app" else label) for text, label in rows]
    renamed = sum(text in scored[:4] and label == "app" for text, label in rows)
    assert renamed
    changed += [(f"more {number}", "app news") for number in range(10)]
    new = tiny.write_table(tmp_path / "new.csv", changed)
    config = make_config(model_folder, new, tmp_path / "new", folds=2, num_train_epochs=0.0)
    other = train(config)
    capsys.readouterr()
    assert main(["compare", str(trained), str(other), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["rows"], content["relabelled"]) == (12 - renamed, renamed)
    first = Result.read(trained)
    same = [
        text not in scored[:4] or first.task.labels[target] != "app"
        for text, target in zip(scored, first.rows.targets, strict=True)
    ]
    right = (first.predicted == first.rows.targets)[same]
    assert content["runs"][0]["metrics"]["accuracy"] == pytest.approx(right.mean())


def test_what_cannot_be_compared(trained: Path, table: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["compare", str(trained)]) == 2
    assert "expected two folders or more" in capsys.readouterr().err
    assert main(["compare", str(trained), str(tmp_path)]) == 2
    assert "expected the output folder of a finished run" in capsys.readouterr().err
    new = tiny.write_table(tmp_path / "new.csv", [(f"zero {text}", label) for text, label in tiny.table_rows(9)])
    assert evaluate(trained, new, tmp_path / "scores") == 0
    assert main(["compare", str(trained), str(tmp_path / "scores")]) == 2
    assert "scored no text in common" in capsys.readouterr().err


def test_lists_of_one_label_are_scored_as_they_were_trained(model_folder: Path, tmp_path: Path) -> None:
    """Some programs write every label as a list; cells of predictions.csv stay as they came."""
    table = tmp_path / "my.jsonl"
    table.write_text("\n".join(json.dumps({"text": text, "label": [label]}) for text, label in tiny.table_rows(60)))
    out = train(make_config(model_folder, table, tmp_path / "out", max_steps=1))
    assert read_json(out / "config.json")["id2label"] == {"0": "app", "1": "card", "2": "money"}
    assert set(read_table(str(out / "predictions.csv")).column("label")) <= {'["app"]', '["card"]', '["money"]'}
    assert evaluate(out, table, tmp_path / "scores") == 0
    assert read_json(tmp_path / "scores" / "metrics.json")["test"]["rows"] == 60
