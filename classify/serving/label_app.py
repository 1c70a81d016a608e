"""The page on which a person labels texts, and the same texts' predictions for Label Studio."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from importlib import resources
from typing import Annotated, Any

import pydantic
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, JSONResponse

from classify.errors import InputError
from classify.prediction.labelling import AnsweredError, Features, Labelling, Question
from classify.serving.app import MOST_TEXTS, POLICY, refusal
from classify.tables.table import replace_surrogates
from classify.versions import __version__

# A tag of Label Studio's labelling interface and its attributes. A pattern, since parsers of XML expand entities.
_TAG = re.compile(r"<(Choices|Text|HyperText|Paragraphs)\b([^>]*)>")
_ATTRIBUTE = re.compile(r"""(\w+)\s*=\s*["']([^"']*)["']""")
_MODEL = f"classify {__version__}"


class Said(pydantic.BaseModel):
    """An answer of a tab: the labels of a text, none of the classes, or null to skip it."""

    model_config = pydantic.ConfigDict(extra="forbid")
    tab: Annotated[str, pydantic.Field(max_length=64)]
    key: Annotated[str, pydantic.Field(max_length=64)]
    labels: list[Annotated[str, pydantic.Field(max_length=200)]] | None
    note: Annotated[str, pydantic.Field(max_length=2_000)] = ""


class Asked(pydantic.BaseModel):
    """A task of Label Studio: its data by name."""

    data: dict[str, Any]


class Tasks(pydantic.BaseModel):
    """A request of Label Studio for predictions."""

    tasks: list[Asked] = pydantic.Field(max_length=MOST_TEXTS)
    label_config: str | None = None


def make_label_app(
    labelling: Labelling, encode: Callable[[Sequence[str]], Features], token: str | None = None
) -> FastAPI:
    """Make the application; see `app.refusal` for the `token`.

    `encode` computes the features of texts that Label Studio sends.
    """
    app = FastAPI(title="classify label", version=__version__, docs_url=None, redoc_url=None)
    tasks = set[asyncio.Task[None]]()

    @app.middleware("http")
    async def check(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        return refusal(request, token) or await call(request)

    @app.exception_handler(InputError)
    async def refuse(_: Request, error: Exception) -> Response:
        return JSONResponse({"detail": str(error)}, 422)

    def describe(question: Question | None) -> dict[str, Any]:
        """All that the page shows."""
        standing = labelling.standing
        return {
            "question": None if question is None else asdict(question),
            "labels": labelling.labels,
            "has_sets": labelling.has_sets,
            "labelled": len(labelling.file.answers),
            "texts": len(labelling.rows),
            "file": str(labelling.file.path),
            "standing": None if standing is None else asdict(standing),
        }

    def refit_later() -> None:
        """Fit the head in the background, so that the next question comes at once."""
        if labelling.is_due and not tasks:
            task = asyncio.create_task(run_in_threadpool(labelling.refit))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    @app.post("/next")
    async def ask(tab: str) -> dict[str, Any]:
        """The next text for a tab."""
        return describe(await run_in_threadpool(labelling.ask, tab))

    @app.post("/answer")
    async def answer(said: Said) -> Response:
        """Write an answer; the reply has the next text."""
        status, detail = 200, None
        try:
            await run_in_threadpool(labelling.answer, said.tab, said.key, said.labels, said.note)
        except AnsweredError as error:
            status, detail = 409, str(error)
        except OSError as error:
            return JSONResponse({"detail": f"{labelling.file.path}: {error.strerror}; nothing was written"}, 507)
        refit_later()
        state = describe(await run_in_threadpool(labelling.ask, said.tab))
        return JSONResponse({**state, "detail": detail}, status)

    @app.post("/undo")
    async def undo(tab: str) -> dict[str, Any]:
        """Take the last answer back, and ask again."""
        question = await run_in_threadpool(labelling.undo, tab)
        state = describe(question or await run_in_threadpool(labelling.ask, tab))
        return state if question else {**state, "detail": "this page has no answer to take back"}

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Label Studio asks whether the backend lives."""
        return {"status": "UP", "model_class": _MODEL}

    @app.post("/setup")
    async def setup() -> dict[str, str]:
        """Label Studio connects a project; whatever its interface is, each request for predictions names it again."""
        return {"model_version": _MODEL}

    @app.post("/predict")
    async def predict(asked: Tasks) -> dict[str, Any]:
        """Predict the tasks of a Label Studio project, as choices of its labelling interface."""
        return await run_in_threadpool(_predict_tasks, labelling, encode, asked)

    @app.get("/", response_class=HTMLResponse)
    async def page() -> HTMLResponse:
        content = (resources.files("classify.serving") / "label.html").read_text(encoding="utf-8")
        return HTMLResponse(content, headers={"Content-Security-Policy": POLICY})

    return app


def _predict_tasks(labelling: Labelling, encode: Callable[[Sequence[str]], Features], asked: Tasks) -> dict[str, Any]:
    """The predictions in Label Studio's form; raises InputError for an interface without choices for a text."""
    tags = {name: dict(_ATTRIBUTE.findall(rest)) for name, rest in _TAG.findall(asked.label_config or "")}
    choices = tags.pop("Choices", {})
    of_text = next(iter(tags.values()), {})
    if asked.label_config is not None and not {"name", "toName"} <= set(choices):
        raise InputError("label_config: expected <Choices name=... toName=...> beside a <Text>.")
    if len(labelling.rows[0]) > 1:
        raise InputError("Label Studio: the texts of this table are in several columns; predict one text at a time.")
    variable = of_text.get("value", "$text").removeprefix("$")
    texts = [replace_surrogates(str(task.data.get(variable, ""))) for task in asked.tasks]
    if labelling.layer is None or not texts:
        return {"results": [{"result": [], "score": 0.0} for _ in texts], "model_version": _MODEL}
    shares = labelling.probabilities(encode(texts))
    decided = labelling.task.targets.decode(labelling.task.answers.decide(shares))
    results = []
    for labels, row in zip(decided, shares.max(axis=1).tolist(), strict=True):
        value = {"choices": labels if isinstance(labels, list) else [labels]}
        names = {"from_name": choices.get("name", "label"), "to_name": choices.get("toName", "text")}
        results.append({"result": [{**names, "type": "choices", "value": value}], "score": row})
    return {"results": results, "model_version": _MODEL}
