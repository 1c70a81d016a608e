"""Write README.md, the model card of a result folder, as the hub of Hugging Face reads it."""

from __future__ import annotations

import re
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from classify.data.languages import UNKNOWN
from classify.data.tokenize import TRUNCATE
from classify.evaluation.metrics import display_name
from classify.files import atomic_write
from classify.report.environment import templates
from classify.report.result import Result
from classify.report.verdict import WEAK, describe_automation, find_weak_classes

FILE = "README.md"
# The hub's name for the task.
_KIND = "text-classification"
# Share of the training texts from which a language is named.
_NAMED = 0.1


def write_card(result: Result) -> Path:
    """Write README.md: the YAML of https://huggingface.co/docs/hub/model-cards, then Markdown.

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
    with atomic_write(result.folder / FILE) as file:
        file.write(f"---\n{metadata.to_yaml()}\n---\n\n{body}")
    return result.folder / FILE
