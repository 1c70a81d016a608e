"""Write report.html, one file that requests nothing and is readable without JavaScript, and the model card."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import EvalResult, ModelCardData

from classify.config.schema import TrainingConfig
from classify.data.languages import UNKNOWN
from classify.data.tokenize import TRUNCATE
from classify.evaluation.metrics import display_name
from classify.files import atomic_write, read_json, write_json
from classify.launch.launch import Launch
from classify.prediction import explanations
from classify.report.environment import templates
from classify.report.result import Result
from classify.report.sections import SECTIONS, Section
from classify.report.verdict import WEAK, describe_automation, find_weak_classes, sentences
from classify.training.terminal import Timeline, log, log_detail
from classify.versions import versions

FILE = "report.html"
CARD = "README.md"
# The hub's name for the task.
_KIND = "text-classification"
# Share of the training texts from which a language is named.
_NAMED = 0.1


def write_report(result: Result) -> Path:
    """Write report.html into the folder of a result. Raises OSError, ValueError or InputError."""
    page = render(result)
    with atomic_write(result.folder / FILE) as file:
        file.write(page)
    return result.folder / FILE


def render(result: Result) -> str:
    """The page of a result, with the style and the script that its policy allows."""
    shown = list(_list_sections(result))
    data, day = result.run["data"]["path"], f"{datetime.fromisoformat(result.run['date']):, %-d %B %Y}"
    source = f"{result.model} scored on {data}"
    if result.is_training:
        source = f"trained on {data} from {result.run['config']['model']['model']}"
    environment = templates()
    inline: dict[str, str] = {}
    for kind, name in {"style": "style.css", "script": "page.js"}.items():
        inline[kind] = text = environment.loader.get_source(environment, name)[0].strip()  # type: ignore[union-attr]
        # The hash by which a Content-Security-Policy allows an inline style or script.
        inline[f"{kind}_hash"] = "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return environment.get_template("page.html").render(
        result=result,
        name=result.folder.name,
        sentences=sentences(result),
        language=result.language,
        sections=[one for one in shown if one.values is not None],
        origin=f"{source}{day}",
        version=versions()["classify"],
        **inline,
    )


class Shown(NamedTuple):
    """A section on the page: its anchor and title, the result that it shows, and the values of its template."""

    id: str
    title: str
    section: Section
    result: Result
    values: Any


def _list_sections(result: Result) -> Iterator[Shown]:
    """Yield the sections of a result; of several label columns those of each first, but for what all share."""
    shared = result.task.answers.sections
    for number, (name, view) in enumerate(result.by_column.items()):
        for one in (SECTIONS[key] for key in view.task.answers.sections if key not in shared or key == "scores"):
            yield Shown(f"{one.name}-{number}", f"{name}: {one.title}", one, view, one.context(view))
    for one in (SECTIONS[key] for key in shared if key != "scores" or not result.by_column):
        yield Shown(one.name, one.title, one, result, one.context(result))


def write_card(result: Result) -> Path:
    """Write README.md, the model card: the YAML of https://huggingface.co/docs/hub/model-cards, then Markdown.

    Raises OSError, ValueError or InputError.
    """
    given = str(result.run["config"]["model"]["model"])
    # Of a folder its name alone, since paths are private.
    is_folder = Path(given).exists() or Path(given).is_absolute() or given.count("/") > 1
    base = Path(given).name if is_folder else given
    table = Path(result.run["data"]["path"])
    shares = (result.settings.get("languages") or {}).items()
    languages = [code for code, share in shares if share >= _NAMED and code != UNKNOWN]
    views = result.by_column or {"": result}
    names = {
        column: [name for name in view.majority if isinstance(view.scores.get(name), float)]
        for column, view in views.items()
    }
    evaluated = [
        EvalResult(
            task_type=_KIND,
            dataset_type=re.sub(r"[^\w-]+", "-", table.stem).strip("-") or "table",
            dataset_name=f"{table.name}, {column}" if column else table.name,
            dataset_split=view.scores.get("method") or ("test" if result.metrics["test"] else "validation"),
            metric_type=name,
            metric_value=round(float(view.scores[name]), 4),
            metric_name=display_name(name),
        )
        for column, view in views.items()
        for name in names[column]
    ]
    metadata = ModelCardData(
        model_name=result.folder.name,
        language=languages or None,
        library_name="transformers",
        pipeline_tag=_KIND,
        tags=[_KIND, "bert", "classify"],
        base_model=base if base.count("/") == 1 else None,
        metrics=list(dict.fromkeys(itertools.chain.from_iterable(names.values()))),
        eval_results=evaluated,
    )
    body = templates().get_template("card.md").render(
        result=result,
        base=base,
        data=table.name,
        rows=[(column, view.score_row(name)) for column, view in views.items() for name in names[column]],
        languages=languages,
        automated=describe_automation(result),
        thresholds=result.thresholds if result.task.answers.has_confidence else [],
        truncate=TRUNCATE.name,
        weak_below=WEAK,
        weak=[label for view in views.values() for label in find_weak_classes(view)],
    )  # fmt: skip
    with atomic_write(result.folder / CARD) as file:
        file.write(f"---\n{metadata.to_yaml()}\n---\n\n{body}")
    return result.folder / CARD


def write_pages_of_run(folder: Path, training: TrainingConfig, timeline: Timeline, launch: Launch) -> None:
    """Write the pages of a training run, on the ranks that write its folder; the others do nothing.

    With --verbose, print where the time went; run.json keeps it.
    """
    is_writer = launch.is_main or (training.save_on_each_node and launch.is_local_main)
    if is_writer and write_pages(folder, use_cpu=training.use_cpu):
        timeline.end("report")
        with _log_failure(folder / "run.json"):
            write_json(folder / "run.json", {**read_json(folder / "run.json"), "seconds": timeline.seconds})
        log_detail(f"time: {timeline.describe()}")


def write_pages(folder: Path, *, use_cpu: bool = False) -> bool:
    """Write report.html and, of a training run, the model card; print the path.

    A failure is a note: the run is done. The result is False where the report is newer than the scores.
    """
    page, scores = folder / FILE, folder / "metrics.json"
    if page.exists() and page.stat().st_mtime >= scores.stat().st_mtime:
        return False
    has_model = (folder / "classify.json").exists()  # the folder of an evaluation has none
    if has_model:
        with _log_failure(folder / explanations.FILE):
            explanations.write_explanations(folder, use_cpu=use_cpu)
    with _log_failure(page):
        result = Result.read(folder)
        if has_model:
            with _log_failure(folder / CARD):
                write_card(result)
        log(f"report: {write_report(result)}")
    return True


@contextlib.contextmanager
def _log_failure(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        log(f"note: {path} is not written ({type(error).__name__}: {error})")
