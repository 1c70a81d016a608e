"""Write report.html, one file that requests nothing and is readable without JavaScript, and the model card."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

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
from classify.report.sections import SECTIONS
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
    sections = [(SECTIONS[name], SECTIONS[name].context(result)) for name in result.task.answers.sections]
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
        sections=[(section, values) for section, values in sections if values is not None],
        origin=f"{source}{day}",
        version=versions()["classify"],
        **inline,
    )


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
    names = [name for name in result.majority if isinstance(result.scores.get(name), float)]
    evaluated = [
        EvalResult(
            task_type=_KIND,
            dataset_type=re.sub(r"[^\w-]+", "-", table.stem).strip("-") or "table",
            dataset_name=table.name,
            dataset_split=result.scores.get("method") or ("test" if result.metrics["test"] else "validation"),
            metric_type=name,
            metric_value=round(float(result.scores[name]), 4),
            metric_name=display_name(name),
        )
        for name in names
    ]
    metadata = ModelCardData(
        model_name=result.folder.name,
        language=languages or None,
        library_name="transformers",
        pipeline_tag=_KIND,
        tags=[_KIND, "bert", "classify"],
        base_model=base if base.count("/") == 1 else None,
        metrics=names,
        eval_results=evaluated,
    )
    body = templates().get_template("card.md").render(
        result=result,
        base=base,
        data=table.name,
        rows=[result.score_row(name) for name in names],
        languages=languages,
        automated=describe_automation(result),
        truncate=TRUNCATE.name,
        weak_below=WEAK,
        weak=list(find_weak_classes(result)),
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
