"""Write README.md, the model card of a result folder, as the hub of Hugging Face reads it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from classify.data.languages import UNKNOWN
from classify.data.long_texts import TRUNCATE
from classify.evaluation.metrics import display_name
from classify.files import atomic_write
from classify.report.environment import templates
from classify.report.result import Result
from classify.report.verdict import FEWEST, WEAK, usefulness

FILE = "README.md"
# Share of the training texts from which a language is named.
_NAMED = 0.1


def write_card(folder: Path) -> Path:
    """Write README.md into a training run's folder, from its files. Raises OSError, ValueError or InputError."""
    text = render(Result.read(folder))
    with atomic_write(folder / FILE) as file:
        file.write(text)
    return folder / FILE


def render(result: Result) -> str:
    """The card: metadata as YAML, then Markdown."""
    scores, majority = result.scores, result.majority
    names = [name for name in majority if isinstance(scores.get(name), float)]
    settings, run = result.settings, result.run
    shares = (settings.get("languages") or {}).items()
    languages = [code for code, share in shares if share >= _NAMED and code != UNKNOWN]
    body = (
        templates()
        .get_template("card.md")
        .render(
            name=result.folder.name,
            labels=result.task.labels,
            has_labels=result.task.answers.has_labels,
            base=_name_base(result),
            data=Path(run["data"]["path"]).name,
            data_rows=run["data"]["rows"],
            scored=result.scored,
            rows=[result.score_row(name) for name in names],
            languages=languages,
            max_length=settings["max_length"],
            automated=" ".join(usefulness(result)),
            has_confidence=result.task.answers.has_confidence,
            thresholds=result.thresholds if result.task.answers.has_confidence else [],
            pair=result.reads_pairs,
            cuts_alike=settings.get("long_text", TRUNCATE.name) == TRUNCATE.name,
            inspection=run.get("inspection"),
            splits=[decision for decision in run["guesses"] if decision["what"] == "split"],
            weak_below=WEAK,
            weak=[
                name
                for name, values in scores["per_class"].items()
                if values["support"] >= FEWEST and values["f1"] < WEAK
            ],
            shell=shlex.quote(result.folder.name),
            version=run["versions"]["classify"],
        )
    )
    return f"---\n{_metadata(result, names, languages)}---\n\n{body}"


def _name_base(result: Result) -> str:
    """The model that was fine-tuned; of a folder its name alone, since paths are private."""
    base = str(result.run["config"]["model"]["model"])
    is_folder = Path(base).exists() or Path(base).is_absolute() or base.count("/") > 1
    return Path(base).name if is_folder else base


def _metadata(result: Result, names: list[str], languages: list[str]) -> str:
    """The YAML of https://huggingface.co/docs/hub/model-cards."""
    from huggingface_hub import EvalResult, ModelCardData

    base = _name_base(result)
    slug = re.sub(r"[^\w-]+", "-", Path(result.run["data"]["path"]).stem).strip("-") or "table"
    kind = "text-classification"
    evaluated = [
        EvalResult(
            task_type=kind,
            dataset_type=slug,
            dataset_name=Path(result.run["data"]["path"]).name,
            dataset_split=result.scores.get("method") or ("test" if result.metrics["test"] else "validation"),
            metric_type=name,
            metric_value=round(float(result.scores[name]), 4),
            metric_name=display_name(name),
        )
        for name in names
    ]
    data = ModelCardData(
        model_name=result.folder.name,
        language=languages or None,
        library_name="transformers",
        pipeline_tag=kind,
        tags=[kind, "bert", "classify"],
        base_model=base if base.count("/") == 1 else None,
        metrics=names,
        eval_results=evaluated,
    )
    return f"{data.to_yaml()}\n"
