"""TextClassifier is an estimator of scikit-learn."""

from __future__ import annotations

import pickle  # noqa: TID251
import tempfile
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

import classify
from classify import TextClassifier
from classify.errors import InputError
from classify.training.run import train
from tests.support import tiny
from tests.support.runs import make_config
from tests.support.tasks import CASES

ROWS = tiny.table_rows(60)
TEXTS = np.array([text for text, _ in ROWS])
LABELS = np.array([label for _, label in ROWS])


def make(model: Path, **more: Any) -> TextClassifier:
    fixed = {"folds": 0, "contrastive_steps": 0, "report_to": "none"}
    return TextClassifier(model=str(model), epochs=1, cpu=True, options={**fixed, **more})


class NumbersAsTexts(TextClassifier):
    """The estimator on tables of numbers, which most checks of scikit-learn pass: each row's digits are a text."""

    def fit(self, X: Any, y: Any) -> Self:
        """Train on the texts of X (n, columns)."""
        X, y = validate_data(self, X, y)
        check_classification_targets(y)
        return super().fit(_spell(X), y)

    def predict_proba(self, X: Any) -> Any:
        """Return the probabilities of the texts of X (n, columns)."""
        check_is_fitted(self)
        return super().predict_proba(_spell(validate_data(self, X, reset=False)))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = False, True
        tags.classifier_tags.poor_score = True  # a frozen random model learns little of digits
        return tags


def _spell(rows: Any) -> list[str]:
    return [" ".join("abcdefghij"[int(digit)] for digit in "".join(f"{abs(x):.2f}" for x in row) if digit.isdigit())
            for row in rows]  # fmt: skip


EXPECTED_FAILURES = {
    "check_classifiers_one_label": "one class is nothing to learn: the table is refused",
    "check_fit2d_1sample": "fewer than 10 rows are refused, in the program's own words",
    "check_methods_subset_invariance": "products of another batch size round otherwise in the last bits",
}


@pytest.mark.slow
@parametrize_with_checks(
    [NumbersAsTexts(epochs=0, cpu=True, preset="fast", options={"folds": 0, "report_to": "none"})],
    expected_failed_checks=lambda _: EXPECTED_FAILURES,
)
def test_checks_of_scikit_learn(estimator: Any, check: Any, model_folder: Path) -> None:
    check(estimator.set_params(model=str(model_folder)))


@pytest.fixture(scope="module")
def fitted(model_folder: Path) -> TextClassifier:
    return make(model_folder).fit(TEXTS, LABELS)


def test_predictions(fitted: TextClassifier) -> None:
    assert fitted.classes_.tolist() == ["app", "card", "money"]
    probabilities = fitted.predict_proba(TEXTS)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    assert (fitted.predict(TEXTS) == fitted.classes_[probabilities.argmax(axis=1)]).all()
    assert fitted.score(TEXTS, LABELS) == (fitted.predict(TEXTS) == LABELS).mean()


def test_classes_keep_their_type_and_order(model_folder: Path) -> None:
    """10 comes before 9 as text, and the model's own order is another one."""
    numbers = np.select([LABELS == "app", LABELS == "card"], [10, 9], 2)
    estimator = make(model_folder).fit(list(TEXTS), numbers)
    assert estimator.classes_.tolist() == [2, 9, 10]
    assert estimator.run_.labels == ["2", "9", "10"]
    assert estimator.predict(TEXTS[:3]).dtype == numbers.dtype
    truth = make(model_folder).fit(TEXTS, numbers == 9)
    assert truth.classes_.tolist() == [False, True]


def test_a_larger_table_keeps_a_tenth_for_validation(model_folder: Path) -> None:
    rows = tiny.table_rows(300)
    estimator = make(model_folder).fit([text for text, _ in rows], [label for _, label in rows])
    metrics = estimator.run_.metrics
    assert metrics["eval"]["rows"] == 30
    assert metrics["test"] is None


@pytest.mark.slow
def test_in_a_pipeline_a_search_and_cross_validation(model_folder: Path) -> None:
    frame = pandas.DataFrame({"text": TEXTS, "other": range(60)})
    pipeline = make_pipeline(
        make_column_transformer(("passthrough", ["text"])), FunctionTransformer(), make(model_folder)
    )
    scores = cross_val_score(pipeline, frame, LABELS, cv=2)
    assert scores.shape == (2,)
    assert np.isfinite(scores).all()
    search = GridSearchCV(make(model_folder), {"learning_rate": [1e-4, 1e-2]}, cv=2).fit(TEXTS, LABELS)
    assert search.best_params_["learning_rate"] in (1e-4, 1e-2)
    assert len(search.predict(TEXTS[:2])) == 2


def test_clone_pickle_and_save(fitted: TextClassifier, tmp_path: Path) -> None:
    assert clone(fitted).get_params() == fitted.get_params()
    expected = fitted.predict_proba(TEXTS[:3])
    again = pickle.loads(pickle.dumps(fitted))  # noqa: S301 - of this test
    np.testing.assert_allclose(again.predict_proba(TEXTS[:3]), expected, atol=1e-6)
    loaded = TextClassifier.load(fitted.save(tmp_path / "again"))
    assert loaded.get_params() == {**fitted.get_params(), "output_dir": None}
    assert (loaded.classes_.dtype, loaded.classes_.tolist()) == (fitted.classes_.dtype, fitted.classes_.tolist())
    np.testing.assert_allclose(loaded.predict_proba(TEXTS[:3]), expected, atol=1e-6)
    with classify.load(fitted.save(tmp_path / "saved"), use_cpu=True) as run:
        np.testing.assert_allclose(run.predict_proba(TEXTS[:3]), expected, atol=1e-6)


def test_a_pickle_holds_the_model(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no text: it may be moved to another machine. Nothing is left behind here."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    estimator = make(model_folder).fit(TEXTS, np.arange(len(TEXTS)) % 3)
    expected = estimator.predict(TEXTS)
    content = pickle.dumps(estimator)
    assert not [text for text in TEXTS if len(text) > 20 and text.encode() in content]
    estimator.run_.close()
    del estimator
    assert list((tmp_path / "temporary").iterdir()) == []
    again = pickle.loads(content)  # noqa: S301 - of this test
    np.testing.assert_array_equal(again.predict(TEXTS), expected)
    again.run_.close()
    del again
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_run_of_the_command_is_loaded(model_folder: Path, table: Path, tmp_path: Path) -> None:
    run = classify.train(table, model=model_folder, preset="fast", cpu=True, output_dir=tmp_path / "out")
    loaded = TextClassifier.load(run.folder)
    assert loaded.predict(TEXTS).tolist() == run.predict(TEXTS)
    with pytest.raises(InputError):
        TextClassifier.load(tmp_path)


def test_a_run_of_another_task_is_refused(model_folder: Path, tmp_path: Path) -> None:
    table = CASES["scores"].write(tmp_path / "my.csv")
    run = train(make_config(model_folder, table, tmp_path / "out", max_steps=1, **CASES["scores"].options))
    with pytest.raises(InputError, match=r"expected one label per row\. Got regression"):
        TextClassifier.load(run)


def test_what_is_given_twice_is_refused(model_folder: Path) -> None:
    estimator = TextClassifier(model=str(model_folder), epochs=1, options={"epochs": 3})
    with pytest.raises(ValueError, match="epochs is a parameter, 1; give it once"):
        estimator.fit(["a", "b"], [0, 1])


@pytest.mark.slow
def test_a_further_fit_replaces_the_run(model_folder: Path, tmp_path: Path) -> None:
    estimator = make(model_folder).set_params(output_dir=str(tmp_path / "out"))
    first = estimator.fit(TEXTS, LABELS).predict_proba(TEXTS[:3])
    second = estimator.fit(TEXTS[::-1], LABELS[::-1]).predict_proba(TEXTS[:3])
    assert (tmp_path / "out" / "report.html").exists()
    assert np.abs(first - second).max() > 0
    with pytest.raises(ValueError, match="holds the run of another estimator"):
        clone(estimator).fit(TEXTS, LABELS)
    np.testing.assert_array_equal(estimator.predict_proba(TEXTS[:3]), second)


def test_a_failed_fit_leaves_the_earlier_one(fitted: TextClassifier, tmp_path: Path) -> None:
    before, classes = fitted.predict_proba(TEXTS[:3]), list(fitted.classes_)
    parameters = fitted.get_params()
    try:
        fitted.set_params(model=str(tmp_path / "missing"))
        with pytest.raises(InputError):
            fitted.fit(TEXTS, ["x", "y"] * (len(TEXTS) // 2))
    finally:
        fitted.set_params(**parameters)
    assert list(fitted.classes_) == classes
    np.testing.assert_array_equal(fitted.predict_proba(TEXTS[:3]), before)


def test_classes_that_a_table_would_merge_stay_apart(model_folder: Path) -> None:
    labels = [("1", "1.0", '["a"]')[place % 3] for place in range(len(TEXTS))]
    estimator = make(model_folder).fit(TEXTS, labels)
    assert set(estimator.predict(TEXTS)) <= set(estimator.classes_) == {"1", "1.0", '["a"]'}


@pytest.mark.parametrize("name", ["NA", "nan"])
def test_a_class_with_the_name_of_a_missing_value(model_folder: Path, name: str) -> None:
    """It was given as a value, so its rows count as those of the others."""
    labels = np.where(LABELS == "app", name, LABELS)
    estimator = make(model_folder).fit(TEXTS, labels)
    assert estimator.predict_proba(TEXTS).shape == (len(TEXTS), 3)
    assert estimator.run_.metrics["test"]["per_class"][f"class {name}"]["support"] > 0
    assert name in estimator.classes_


def test_texts_in_memory_stay_in_memory(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only their token ids are cached, as those of any table that trains."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    estimator = make(model_folder).fit(TEXTS, LABELS)
    frame = pandas.DataFrame({"text": TEXTS, "label": LABELS})
    assert len(estimator.run_.predict(frame)) == len(frame)
    assert estimator.run_.evaluate(frame)["rows"] == len(frame)
    names = {path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert {name for name in names if not name.endswith(".lock")} == {"ids.bin", "offsets.npy"}


def test_a_relative_folder_stays_where_it_was(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    estimator = make(model_folder).set_params(output_dir="out").fit(TEXTS, LABELS)
    before = estimator.predict_proba(TEXTS[:3])
    estimator.run_.close()
    monkeypatch.chdir(tmp_path / "there")
    np.testing.assert_array_equal(estimator.predict_proba(TEXTS[:3]), before)
    assert pickle.loads(pickle.dumps(estimator.run_)).labels == estimator.run_.labels  # noqa: S301


def test_wrong_input(fitted: TextClassifier) -> None:
    with pytest.raises(NotFittedError):
        TextClassifier().predict(["a"])
    with pytest.raises(ValueError, match="X must be a list"):
        fitted.predict("a text")
    with pytest.raises(ValueError, match="X must be a list"):
        fitted.predict(np.zeros((3, 2)))
    for missing in (None, float("nan")):
        with pytest.raises(ValueError, match=r"a class for each text.* at index 1"):
            TextClassifier().fit(["a", "b"], np.array(["x", missing], dtype=object))
    for missing in (None, float("nan")):
        with pytest.raises(ValueError, match=r"X must be a list.* at index 1"):
            fitted.predict(["a", missing])
    with pytest.raises(ValueError, match="one class per text"):
        TextClassifier().fit(["a", "b"], ["x"])


@pytest.mark.parametrize(
    "option",
    [
        {"label_names": {"card": "money", "money": "card"}},
        {"unlabelled-value": "card"},
        {"task": "multi"},
        {"normalize_labels": "auto"},
    ],
)
def test_an_option_that_changes_the_classes_is_refused(option: dict[str, Any], model_folder: Path) -> None:
    """Exchanged names would be looked up in those of y: each prediction would be the other class."""
    (name,) = option
    with pytest.raises(ValueError, match=f"options: {name.replace('-', '_')} must not be "):
        make(model_folder, **option).fit(TEXTS, LABELS)
