"""classify.train and classify.load: tables in memory are tables, keyword arguments are flags."""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow as pa
import pytest

import classify
from classify.api import as_arrow, in_memory
from classify.config.run_config import RunConfig
from classify.errors import InputError
from classify.tables.read import read_table
from tests.support import tiny
from tests.support.processes import ROOT
from tests.support.runs import make_config, read_json
from tests.support.tasks import CASES

ROWS = tiny.table_rows(60)
TEXTS = [text for text, _ in ROWS]
LABELS = [label for _, label in ROWS]


def options(model: Path, out: Path, **more: Any) -> dict[str, Any]:
    fixed = {"model": model, "output_dir": out, "cpu": True, "epochs": 1, "folds": 0, "contrastive_steps": 0}
    return {**fixed, **more}


class Frame:
    """What polars and others have in common."""

    def __init__(self, table: pa.Table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


def frames() -> dict[str, tuple[Any, ...]]:
    import datasets

    table = {"text": TEXTS, "label": LABELS}
    names: list[str] = sorted(set(LABELS))
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=names)})
    numbers = {"text": TEXTS, "label": [names.index(label) for label in LABELS]}
    return {
        "pandas": (pandas.DataFrame(table),),
        "categories": (pandas.DataFrame({**table, "label": pandas.Categorical(LABELS)}),),
        "arrow": (pa.table(table),),
        "polars": (polars.DataFrame(table),),
        "polars categories": (polars.DataFrame(table).with_columns(polars.col("label").cast(polars.Categorical)),),
        "polars enum": (polars.DataFrame(table).with_columns(polars.col("label").cast(polars.Enum(names))),),
        "stream": (Frame(pa.table(table)),),
        "columns of a dataset": (datasets.Dataset.from_dict(table)["text"], datasets.Dataset.from_dict(table)["label"]),
        "dataset": (datasets.Dataset.from_dict(table),),
        "class names": (datasets.Dataset.from_dict(numbers, features=features),),
        "lists": (TEXTS, LABELS),
        "arrays": (np.array(TEXTS), np.array(LABELS)),
    }


@pytest.fixture(scope="module")
def from_path(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("api")
    run = classify.train(tiny.write_table(folder / "my.csv", ROWS), **options(model_folder, folder / "out"))
    yield run
    run.close()


@pytest.mark.parametrize("name", frames())
def test_a_table_in_memory_is_that_of_a_file(name: str) -> None:
    data, labels = (*frames()[name], None)[:2]
    written = in_memory(as_arrow(data, labels), "data")
    assert (written.columns, written.column("text"), written.column("label")) == (["text", "label"], TEXTS, LABELS)


def test_a_column_of_several_types_is_text() -> None:
    """As pandas.read_excel gives it; also where the column is not used."""
    mixed = [1, "two", None, 3.5, True, datetime.date(2024, 1, 2), *range(54)]
    frame = pandas.DataFrame({"text": TEXTS, "label": LABELS, "mixed": pandas.Series(mixed, dtype=object)})
    written = in_memory(as_arrow(frame, None), "data")
    assert (written.columns, written.column("text")) == (["text", "label", "mixed"], TEXTS)
    assert written.column("mixed")[:7] == ["1", "two", "", "3.5", "true", "2024-01-02", "0"]


@pytest.mark.parametrize("name", ["pandas", "lists"])
def test_a_table_in_memory_trains_as_a_file_does(
    name: str, from_path: classify.Run, model_folder: Path, tmp_path: Path
) -> None:
    run = classify.train(*frames()[name], **options(model_folder, tmp_path / "out"))
    ours, theirs = (folder / "model.safetensors" for folder in (run.folder, from_path.folder))
    assert ours.read_bytes() == theirs.read_bytes()
    assert run.labels == ["app", "card", "money"]


def test_what_a_run_offers(from_path: classify.Run) -> None:
    probabilities = from_path.predict_proba(TEXTS[:5])
    assert from_path.predict(TEXTS[:5]) == [from_path.labels[number] for number in probabilities.argmax(axis=1)]
    np.testing.assert_allclose(from_path.predict_proba(pandas.Series(TEXTS[:5])), probabilities, atol=1e-6)
    assert from_path.metrics == read_json(from_path.folder / "metrics.json")
    assert from_path.report.exists()
    assert [one.word for one in from_path.explain("card stolen")] == ["card", "stolen"]
    assert Path(from_path) == from_path.folder
    with classify.load(from_path.folder, use_cpu=True) as loaded:
        np.testing.assert_allclose(loaded.predict_proba(TEXTS[:5]), probabilities, atol=1e-6)
    assert loaded.predict(TEXTS[:1]) == from_path.predict(TEXTS[:1]), "it is loaded again"
    loaded.close()


@pytest.mark.parametrize(("name", "kind"), [("lists", list), ("scores", float)])
def test_predictions_of_other_tasks(name: str, kind: type, model_folder: Path, tmp_path: Path) -> None:
    case = CASES[name]
    table = case.write(tmp_path / "my.csv")
    with classify.train(table, **options(model_folder, tmp_path / "out", **case.options)) as run:
        assert [type(one) for one in run.predict(["card money", "app"])] == [kind, kind]


@pytest.mark.slow
def test_a_run_on_a_table_in_memory_can_be_resumed(model_folder: Path, tmp_path: Path) -> None:
    settings = options(model_folder, tmp_path / "out", save_steps=1)
    classify.train(pandas.DataFrame({"text": TEXTS, "label": LABELS}), **settings, max_steps=2)
    run = classify.train(pandas.DataFrame({"text": TEXTS, "label": LABELS}), **settings, max_steps=4, resume=True)
    assert run.metrics["train"]["steps"] == 4


def test_every_flag_is_a_keyword(model_folder: Path, tmp_path: Path) -> None:
    """Also values that begin with a hyphen."""
    codes = {"card": "-1", "money": "0", "app": "1"}
    run = classify.train(
        TEXTS, [codes[label] for label in LABELS], **options(model_folder, tmp_path / "out"),
        label_names="-1=card,0=money,1=app",
    )  # fmt: skip
    assert run.labels == ["app", "card", "money"]


def test_a_config_returns_the_folder_with_its_report(model_folder: Path, table: Path, tmp_path: Path) -> None:
    config = make_config(model_folder, table, tmp_path / "out", max_steps=1)
    assert isinstance(config, RunConfig)
    assert classify.train(config) == tmp_path / "out"
    assert (tmp_path / "out" / "report.html").is_file()
    assert (tmp_path / "out" / "README.md").is_file()
    with pytest.raises(TypeError, match="takes no labels and no options"):
        classify.train(config, epochs=1)


@pytest.mark.parametrize(
    ("arguments", "more", "error", "part"),
    [
        ((3,), {}, TypeError, "data must be a path, a DataFrame"),
        ((TEXTS,), {}, TypeError, "a list of texts beside a list of labels"),
        ((TEXTS, LABELS[:3]), {}, ValueError, "60 texts and 3 labels"),
        (([1, 2], ["a", "b"]), {}, TypeError, "texts must be strings, or pairs of strings. Got int"),
        (
            ([{"text": "a", "text_pair": "b"}], ["a"]),
            {},
            TypeError,
            "texts must be strings, or pairs of strings. Got dict",
        ),
        (([{"a", "b"}], ["a"]), {}, TypeError, "texts must be strings, or pairs of strings. Got set"),
        ((["a", "b"], [1, "b"]), {}, TypeError, "labels must be of one type. Got int and str"),
        ((pandas.DataFrame({"text": TEXTS}), LABELS), {}, TypeError, "name the column of a table with label_column"),
        (("my.csv",), {"text_column": {"a": 1}}, TypeError, "text_column must not be a dictionary"),
        (("my.csv", LABELS), {}, TypeError, "the table of a path has its own"),
        (("my.csv",), {"epoch": 3}, InputError, "unknown flag --epoch. Did you mean --epochs?"),
        ((TEXTS, LABELS), {"epochs": "many"}, InputError, "--epochs"),
        (("nowhere.csv",), {}, InputError, "nowhere.csv"),
    ],
)
def test_wrong_arguments(arguments: tuple[Any, ...], more: dict[str, Any], error: type, part: str) -> None:
    with pytest.raises(error, match=part.replace("?", r"\?")):
        classify.train(*arguments, **more)


def test_tables_in_and_scores_out(model_folder: Path, tmp_path: Path) -> None:
    """A DataFrame is predicted, and scored, as the command does with a file of the same rows."""
    frame = pandas.DataFrame({"number": range(60), "text": TEXTS, "label": LABELS})
    run = classify.train(frame, **options(model_folder, tmp_path / "run", text_column="text", label_column="label"))
    assert run.predict(frame) == run.predict(TEXTS)
    assert run.predict(polars.DataFrame(frame[["text"]])) == run.predict(TEXTS)
    scores = run.evaluate(frame, output_dir=tmp_path / "evaluation")
    right = np.mean([one == other for one, other in zip(run.predict(frame), LABELS, strict=True)])
    assert scores["accuracy"] == pytest.approx(right)
    stored = read_json(tmp_path / "evaluation" / "metrics.json")
    assert stored["test"]["accuracy"] == scores["accuracy"]
    assert scores["unseen"]["rows"] == scores["rows"] - stored["trained_rows"]
    splits = read_json(run.folder / "run.json")["inspection"]["splits"]
    # Of 20 rows a class the head learns from both.
    assert stored["trained_rows"] == splits["train"] + splits["validation"]
    assert (tmp_path / "evaluation" / "report.html").exists()
    frame.to_csv(tmp_path / "my.csv", index=False)
    assert run.evaluate(tmp_path / "my.csv") == scores
    with pytest.raises(InputError, match="is not empty"):
        run.evaluate(frame, output_dir=tmp_path / "evaluation")
    with pytest.raises(InputError, match="text"):
        run.predict(frame[["number", "label"]])
    compared = classify.compare(run, tmp_path / "evaluation")
    assert compared["rows"] == len(read_table(str(run.folder / "predictions.csv")))
    with pytest.raises(InputError, match="two folders or more"):
        classify.compare(run)
    pairs = CASES["pair"].write(tmp_path / "pairs.csv")
    other = classify.train(pairs, **options(model_folder, tmp_path / "pairs"))
    table = pandas.read_csv(pairs)
    assert other.predict(table) == other.predict(list(zip(table["sentence1"], table["sentence2"], strict=True)))


def test_inspection(model_folder: Path, tmp_path: Path) -> None:
    frame = pandas.DataFrame({"text": TEXTS, "label": LABELS})
    found = classify.inspect(frame, model=model_folder, cpu=True)
    assert found["rows"] == 60
    assert found["labels"].startswith(f"classes: {len(set(LABELS))}")
    assert classify.inspect(TEXTS, LABELS, model=model_folder)["splits"] == found["splits"]
    weights = dict.fromkeys(LABELS, 1.0)
    given = classify.inspect(frame, model=model_folder, eval_data=frame, class_weights=weights)
    assert given["splits"]["validation"] == len(frame)
    assert not list(tmp_path.iterdir()), "nothing is written"


def test_class_weights_as_a_dictionary(model_folder: Path, tmp_path: Path) -> None:
    weights = {label: 1.0 + number for number, label in enumerate(sorted(set(LABELS)))}
    run = classify.train(TEXTS, LABELS, **options(model_folder, tmp_path / "a", class_weights=weights))
    (tmp_path / "w.json").write_text(str(weights).replace("'", '"'))
    same = classify.train(TEXTS, LABELS, **options(model_folder, tmp_path / "b", class_weights=tmp_path / "w.json"))
    assert (run.folder / "model.safetensors").read_bytes() == (same.folder / "model.safetensors").read_bytes()
    resumed = classify.train(
        TEXTS, LABELS, **options(model_folder, tmp_path / "a", class_weights=weights, resume=True, epochs=2)
    )
    assert resumed.metrics["train"]["epochs"] == 2


def test_a_list_of_pairs_and_a_dictionary_of_names(model_folder: Path, tmp_path: Path) -> None:
    pairs = [(text, text[::-1]) for text in TEXTS]
    codes = ["a" if label == "card" else "b" for label in LABELS]
    settings = options(model_folder, tmp_path / "out", label_names={"a": "yes", "b": "no"}, epochs=0)
    with classify.train(pairs, codes, **settings) as run:
        assert run.labels == ["no", "yes"]
        assert run.predict_proba(pairs[:2]).shape == (2, 2)
        assert run.predict_proba(np.array(pairs[:2])).tolist() == run.predict_proba(pairs[:2]).tolist()
    with pytest.raises(ValueError, match="contains , or =; rename it in the table"):
        classify.train(np.array(pairs), codes, label_names={"a": "yes, please"})


def test_a_table_in_memory_has_its_arguments_name_in_messages(model_folder: Path, tmp_path: Path) -> None:
    frame = pandas.DataFrame({"text": TEXTS, "label": ["a"] * len(TEXTS)})
    with pytest.raises(InputError, match=r"^data: column 'label': expected at least two classes"):
        classify.train(frame, **options(model_folder, tmp_path / "out"))
    tested = pandas.DataFrame({"text": TEXTS, "label": ["new"] * len(TEXTS)})
    with pytest.raises(
        InputError, match=r"^test_data rows 1, 2, 3, 4, 5 and 55 more: the label 'new' is in no row of --data"
    ):
        classify.train(TEXTS, LABELS, test_data=tested, **options(model_folder, tmp_path / "out"))


def test_labels_of_pandas(model_folder: Path, tmp_path: Path) -> None:
    """Whole numbers that pandas made floats beside missing ones are whole again; NaN is no label."""
    texts, labels = zip(*tiny.table_rows(60), strict=True)
    numbers = [float("nan") if row % 6 == 5 else float(row % 3) for row in range(60)]
    frame = pandas.DataFrame({"text": texts, "label": numbers})
    options = {"model": model_folder, "preset": "fast", "folds": 0, "cpu": True, "quiet": True}
    run = classify.train(frame, output_dir=tmp_path / "numbers", **options)
    assert run.labels == ["0", "1", "2"]
    missing = [float("nan") if row % 6 == 5 else label for row, label in enumerate(labels)]
    named = classify.train(list(texts), missing, output_dir=tmp_path / "names", **options)
    assert set(named.labels) == set(labels)
    shuffled = frame["text"].sample(frac=1, random_state=0)
    with pytest.raises(ValueError, match="the indexes of texts and labels differ"):
        classify.train(shuffled, pandas.Series(labels), **options)


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no classify\.json in it"):
        classify.load(tmp_path)


def test_the_package_is_cheap_and_lists_what_it_has() -> None:
    code = (
        "import sys, classify; print(sorted(set(dir(classify)) & {'train', 'load', 'Run', 'TextClassifier'}));"
        "print('torch' in sys.modules, 'sklearn' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True, timeout=60
    )
    assert done.stdout.splitlines() == ["['Run', 'TextClassifier', 'load', 'train']", "False False"]


def test_errors_name_what_was_given(from_path: classify.Run) -> None:
    frame = pandas.DataFrame({"text": TEXTS, "label": LABELS})
    with pytest.raises(InputError, match=r"^table: no column 'label'"):
        from_path.evaluate(frame.drop(columns="label"))
    with pytest.raises(
        InputError,
        match=r"^--class-weights \{\"nope\": 1.0\}: expected balanced, or a JSON file .* a number for each of",
    ):
        classify.train(frame, class_weights={"nope": 1.0}, epochs=1)
