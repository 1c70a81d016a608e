"""The HTTP interface: predictions, the page, health and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import operator
import time
from collections.abc import AsyncIterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pydantic
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.requests import ClientDisconnect

from classify.files import read_json
from classify.prediction.explanations import WordAttribution, strongest
from classify.prediction.predictor import Predictor
from classify.serving import is_loopback
from classify.serving.batching import Batcher, QueueFullError
from classify.tables.table import replace_surrogates
from classify.tasks.base import Task
from classify.versions import __version__, versions

# Rows computed at a time; more would make a request of one row wait longer.
BATCH_ROWS = 256
# Rows whose time an explanation takes, about, so that it counts as many in the queue.
EXPLANATION_ROWS = 64
# Words that an explanation lists.
WORDS = 12
# Limits that keep one client from taking the memory or the time of all: texts of a request, characters of a text,
# bytes of a body, and texts that wait in all.
MOST_TEXTS = 1_000
MOST_CHARACTERS = 100_000
MOST_BYTES = 8 << 20
MOST_WAITING_ROWS = 4_000
# Seconds that a body may take to arrive.
MOST_SECONDS = 60
JSON = "application/json"
# What is answered without the token: the pages, which ask for it, and what says that the server lives.
_OPEN = ("/", "/health", "/ready", "/openapi.json")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


def refusal(request: Request, token: str | None) -> Response | None:
    """The answer to a request that does not carry the `token`; without one, to what may be from another site.

    The page of another site can send requests through a browser of this machine, but not under this machine's own
    address, nor as JSON.
    """
    if token is not None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # The bytes of a header, which starlette decodes as latin-1.
        is_right = scheme.lower() == "bearer" and hmac.compare_digest(given.encode("latin-1"), token.encode())
        # Not of `request.url`, which older versions of starlette read from the header Host.
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        if is_right or path in _OPEN:
            return None
        detail = "expected the header Authorization: Bearer TOKEN"
        return JSONResponse({"detail": detail}, 401, {"WWW-Authenticate": "Bearer"})
    if not is_loopback(request.url.hostname or ""):
        return JSONResponse({"detail": "without a token, the server answers to localhost alone"}, 403)
    if request.method == "POST" and request.headers.get("content-type", "").partition(";")[0].strip() != JSON:
        return JSONResponse({"detail": f"expected the header Content-Type: {JSON}"}, 415)
    return None


def _check_text(text: Any) -> Any:
    """Refuse a blank text, and replace lone surrogates, which JSON may hold and no tokenizer takes."""
    if isinstance(text, str) and not text.strip():
        raise ValueError("the text is empty")
    return replace_surrogates(text) if isinstance(text, str) else text


Text = Annotated[str, pydantic.Field(max_length=MOST_CHARACTERS), pydantic.BeforeValidator(_check_text)]


class _Options(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)
    top_k: int | None = pydantic.Field(None, ge=1, description="how many labels to list")
    min_confidence: float | None = pydantic.Field(None, ge=0, le=1, description="adds `accepted`")


class Texts(_Options):
    """A request for texts."""

    texts: list[Text] = pydantic.Field(min_length=1, max_length=MOST_TEXTS, examples=[["I was charged twice"]])


class Pairs(_Options):
    """A request for pairs of texts."""

    texts: list[Annotated[tuple[Text, Text], pydantic.Field(strict=False)]] = pydantic.Field(
        min_length=1, max_length=MOST_TEXTS, examples=[[["a question", "a passage"]]]
    )


class Prediction(pydantic.BaseModel):
    """A label, a list of labels or a score, as the task has it; probabilities by label.

    `accepted_label` is the most exact node of a hierarchy that reaches `min_confidence`.
    """

    prediction: str | list[str] | float
    confidence: float | None = None
    probabilities: dict[str, float] | None = None
    accepted: bool | None = None
    accepted_label: str | None = None
    in_scope: float | None = None


class ColumnPredictions(pydantic.BaseModel):
    """A prediction for each of several label columns, by its name."""

    columns: dict[str, Prediction]


class Answer(pydantic.BaseModel):
    """A prediction for each text, in order."""

    predictions: list[Prediction] | list[ColumnPredictions]


def make_app(predictor: Predictor, token: str | None = None, wait: float = 0.005) -> FastAPI:
    """Make the application; see `refusal` for the `token`. An idle server waits `wait` seconds for more texts."""
    registry = CollectorRegistry()  # of its own: a process may make the application twice
    requests = Counter("classify_requests", "requests by status", ["status"], registry=registry)
    counted = Counter("classify_rows", "texts predicted", registry=registry)
    seconds = Histogram("classify_request_seconds", "seconds to an answer", registry=registry)
    sizes = Histogram("classify_batch_rows", "texts of a batch", registry=registry, buckets=[2**n for n in range(11)])
    waiting = Gauge("classify_waiting_rows", "texts that wait", registry=registry)
    batcher = Batcher(
        lambda texts: np.column_stack([part for part in predictor.predict(texts) if part is not None]),
        most_rows=BATCH_ROWS,
        wait=wait,
        longest=MOST_WAITING_ROWS,
        on_batch=sizes.observe,
    )
    waiting.set_function(lambda: batcher.waiting_rows)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(batcher.run())
        yield
        task.cancel()

    app = FastAPI(title="classify", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)

    @app.middleware("http")
    async def count(request: Request, call: Any) -> Response:
        begin, status = time.perf_counter(), 500
        try:
            response: Response = refusal(request, token) or await call(request)
            status = response.status_code
        finally:
            if request.url.path == "/predict":
                seconds.observe(time.perf_counter() - begin)
            requests.labels(status).inc()
        return response

    @app.exception_handler(QueueFullError)
    async def refuse(_: Request, error: Exception) -> Response:
        return JSONResponse({"detail": "too many texts wait; try again"}, 429, {"Retry-After": "1"})

    kind: type[Texts | Pairs] = Pairs if predictor.texts.pair is not None else Texts
    schema = {"requestBody": {"required": True, "content": {JSON: {"schema": kind.model_json_schema()}}}}

    @app.post("/predict", openapi_extra=schema, response_model=Answer)
    async def predict(request: Request) -> Response:
        """Predict texts."""
        body = await _read(request, kind)
        rows = await batcher.predict(body.texts)
        counted.inc(len(body.texts))

        def write() -> bytes:  # a thousand texts of a thousand classes take a second, in which others want answers
            predictions = describe(predictor, rows, body.top_k, body.min_confidence)
            return Answer(predictions=predictions).model_dump_json().encode()

        return Response(await run_in_threadpool(write), media_type=JSON)

    @app.post("/explain", openapi_extra=schema)
    async def explain(request: Request) -> list[WordAttribution]:
        """List the words of the first text that raise or lower the logit of its predicted label most.

        Of several label columns it is that of the first.
        """
        text = (await _read(request, kind)).texts[0]
        label = next((column.name for column in predictor.task.columns), None)
        return strongest(await batcher.call(lambda: predictor.explain(text, label), EXPLANATION_ROWS), WORDS)

    @app.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> dict[str, str]:
        """Answer while the process lives."""
        return {"status": "ok"}

    @app.api_route("/ready", methods=["GET", "HEAD"])
    async def ready() -> dict[str, bool]:
        """Answer while requests are taken: from when the model is loaded until the server ends."""
        return {"ready": True}

    @app.get("/model")
    async def model() -> dict[str, Any]:
        """Describe the model: task, labels, scores of its run, versions."""
        scores: dict[str, Any] = {"test": None, "eval": None}  # a folder may have been copied without them
        with contextlib.suppress(OSError, ValueError):
            scores = read_json(Path(predictor.folder) / "metrics.json")
        return {
            "task": predictor.task.name,
            "labels": predictor.labels,
            "pairs": predictor.texts.pair is not None,
            "max_length": predictor.settings["max_length"],
            "precision": predictor.precision,
            "scores": scores["test"] or scores["eval"],
            "versions": versions(),
        }

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """The counters, in Prometheus's format."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/", response_class=HTMLResponse)
    async def page() -> HTMLResponse:
        """A page to type a text into."""
        content = (resources.files("classify.serving") / "page.html").read_text(encoding="utf-8")
        return HTMLResponse(content, headers={"Content-Security-Policy": POLICY})

    return app


async def _read(request: Request, kind: type[Texts | Pairs]) -> Texts | Pairs:
    """A request's texts. Raises HTTPException with one line."""
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(MOST_SECONDS):
            async for chunk in request.stream():  # to its end, or the client would see a broken connection
                size += len(chunk)
                if size <= MOST_BYTES:
                    body += chunk
    except (ClientDisconnect, TimeoutError):
        raise HTTPException(408, f"expected the whole body within {MOST_SECONDS} seconds") from None
    if size > MOST_BYTES:
        raise HTTPException(413, f"expected a body of at most {MOST_BYTES:,} bytes")
    try:
        return kind.model_validate(json.loads(body))
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise HTTPException(422, f"{place or 'body'}: {first['msg'].removeprefix('Value error, ')}") from None
    except (ValueError, RecursionError) as error:
        raise HTTPException(422, f"body: invalid JSON ({error})") from None


def describe(
    predictor: Predictor, rows: Any, top_k: int | None, min_confidence: float | None
) -> list[Prediction] | list[ColumnPredictions]:
    """The predictions of rows of probabilities, or scores; the last column may be that of being in scope."""
    task = predictor.task
    probabilities, in_scope = task.split(rows)
    values = predictor.answers(probabilities, in_scope)
    if not task.columns:
        return _describe(task, probabilities, values, in_scope, top_k, min_confidence)
    of_columns = [
        _describe(
            column.task,
            probabilities[:, column.outputs],
            [value[column.name] for value in values],
            None,
            top_k,
            min_confidence,
        )
        for column in task.columns
    ]
    names = [column.name for column in task.columns]
    return [ColumnPredictions(columns=dict(zip(names, parts, strict=True))) for parts in zip(*of_columns, strict=True)]


def _describe(
    task: Task, probabilities: Any, values: list[Any], in_scope: Any, top_k: int | None, min_confidence: float | None
) -> list[Prediction]:
    """`describe` for one label column, from what it predicts."""
    answers = list[Prediction]()
    shares: Sequence[Any] = [None] * len(values) if in_scope is None else in_scope.tolist()
    for value, row, share in zip(values, probabilities, shares, strict=True):
        ranked = sorted(zip(task.labels, row.tolist(), strict=True), key=operator.itemgetter(1), reverse=True)
        by_label = dict(ranked[:top_k])
        is_rejected = share is not None and value not in task.labels
        confidence = None if not task.answers.has_confidence else 1 - share if is_rejected else float(row.max())
        accepted = accepted_label = None
        if min_confidence is not None and confidence is not None:
            node = "" if is_rejected else str(task.answers.accept(row[None], min_confidence)[0][0])
            accepted = bool(node)
            accepted_label = node if node and "accepted_label" in task.answers.accepted_columns else None
        answers.append(
            Prediction(
                prediction=value,
                confidence=confidence,
                probabilities=by_label if task.answers.has_labels else None,
                accepted=accepted,
                accepted_label=accepted_label,
                in_scope=share,
            )
        )
    return answers
