"""The HTTP interface: predictions, the page, health and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pydantic
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.requests import ClientDisconnect

from classify.errors import ClassifyError
from classify.files import read_json
from classify.prediction.predictor import Predictor
from classify.serving.batching import Batcher, QueueFullError
from classify.versions import __version__, versions

# Rows computed at a time; more would make a request of one row wait longer.
_BATCH_ROWS = 256
# Words that an explanation lists.
_WORDS = 12
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


# The most texts per request, characters per text, bytes per body, waiting texts, and seconds that a body may take.
MOST_TEXTS, MOST_CHARACTERS, MOST_BYTES, MOST_WAITING, MOST_SECONDS = 1_000, 100_000, 8 << 20, 4_000, 60

_TEXT = {"type": "string", "pattern": "\\S"}
_PAIR = {"type": "array", "prefixItems": [_TEXT, _TEXT], "minItems": 2, "maxItems": 2}


def _list_of(item: dict[str, Any], example: Any) -> Any:
    """Return the schema of a request's texts; what is too large is refused with another status."""
    return pydantic.WithJsonSchema({"type": "array", "items": item, "minItems": 1, "examples": [[example]]})


def _refuse_other_types(value: Any) -> Any:
    """Raise ValueError for booleans and strings, which pydantic would take for numbers."""
    if isinstance(value, bool | str):
        raise ValueError("expected a number")
    return value


_NUMBER = pydantic.BeforeValidator(_refuse_other_types)


class _Options(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    top_k: Annotated[int | None, _NUMBER] = pydantic.Field(None, ge=1, description="how many labels to list")
    min_confidence: Annotated[float | None, _NUMBER] = pydantic.Field(None, ge=0, le=1, description="adds `accepted`")


class Texts(_Options):
    """A request for texts."""

    texts: Annotated[list[str], _list_of(_TEXT, "I was charged twice")] = pydantic.Field(min_length=1)


class Pairs(_Options):
    """A request for pairs of texts."""

    texts: Annotated[list[tuple[str, str]], _list_of(_PAIR, ["a question", "a passage"])] = pydantic.Field(min_length=1)


class Prediction(pydantic.BaseModel):
    """A label, a list of labels or a score, as the task has it; probabilities by label."""

    prediction: str | list[str] | float
    confidence: float | None = None
    probabilities: dict[str, float] | None = None
    accepted: bool | None = None
    in_scope: float | None = None


class Answer(pydantic.BaseModel):
    """A prediction for each text, in order."""

    predictions: list[Prediction]


class Word(pydantic.BaseModel):
    """A word, and by how much it raises the logit of the predicted label."""

    word: str
    score: float


class Served:
    """The folder that is served, which may be replaced, its queue and its metrics."""

    def __init__(self, load: Callable[[], Predictor], wait: float):
        self.predictor, self._load = load(), load
        self.stops = False
        self.registry = CollectorRegistry()
        self.requests = Counter("classify_requests", "requests by status", ["status"], registry=self.registry)
        self.rows = Counter("classify_rows", "texts predicted", registry=self.registry)
        self.seconds = Histogram("classify_request_seconds", "seconds to an answer", registry=self.registry)
        sizes = Histogram(
            "classify_batch_rows", "texts of a batch", registry=self.registry, buckets=[2**n for n in range(11)]
        )
        self.batcher = Batcher(
            lambda texts: np.column_stack([part for part in self.predictor.predict(texts) if part is not None]),
            most_rows=_BATCH_ROWS,
            wait=wait,
            longest=MOST_WAITING,
            on_batch=sizes.observe,
        )
        waiting = Gauge("classify_waiting_rows", "texts that wait", registry=self.registry)
        waiting.set_function(lambda: self.batcher.waiting_rows)

    async def reload(self) -> None:
        """Load the folder again, and serve it from the next batch on; a bad one leaves the old one as it is."""
        try:
            loaded = await asyncio.to_thread(self._load)
            await asyncio.to_thread(loaded.probabilities, [("a", "a") if loaded.texts.pair is not None else "a"])
        except ClassifyError as error:
            print(f"error: {error} The model from before stays.", file=sys.stderr, flush=True)
            return
        self.predictor = loaded
        print(f"reloaded: {loaded.folder}", file=sys.stderr, flush=True)


def make_app(served: Served, token: str | None, on_start: Callable[[], object] = lambda: None) -> FastAPI:
    """Make the application; with a `token` every request for predictions or metrics has to carry it.

    `on_start` is called when requests are answered and SIGHUP is heard.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(served.batcher.run())
        with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread
            asyncio.get_running_loop().add_signal_handler(
                signal.SIGHUP, lambda: background.append(asyncio.create_task(served.reload()))
            )
        on_start()
        yield
        served.stops = True
        task.cancel()

    background: list[asyncio.Task[None]] = []
    app = FastAPI(title="classify", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)

    def check_token(request: Request) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if token is None:
            return
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.encode(), token.encode()):
            raise HTTPException(401, "expected the header Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})

    secured = [Depends(check_token)]

    @app.middleware("http")
    async def count(request: Request, call: Any) -> Response:
        begin = time.perf_counter()
        response: Response = await call(request)
        if request.url.path == "/predict":
            served.seconds.observe(time.perf_counter() - begin)
        served.requests.labels(response.status_code).inc()
        return response

    kind: type[Texts | Pairs] = Pairs if served.predictor.texts.pair is not None else Texts

    async def read(request: Request) -> Texts | Pairs:
        """Return the texts of a request within the limits. Raises HTTPException with one line."""
        body = bytearray()
        try:
            async with asyncio.timeout(MOST_SECONDS):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > MOST_BYTES:
                        raise HTTPException(413, f"expected a body of at most {MOST_BYTES:,} bytes")
        except (ClientDisconnect, TimeoutError):
            raise HTTPException(408, f"expected the whole body within {MOST_SECONDS} seconds") from None
        try:
            texts = kind.model_validate_json(bytes(body))
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise HTTPException(422, f"{place or 'body'}: {first['msg']}") from None
        check_texts(texts.texts)
        return texts

    schema = {"requestBody": {"required": True, "content": {"application/json": {"schema": kind.model_json_schema()}}}}
    refused: dict[int | str, dict[str, Any]] = {
        code: {"description": words}
        for code, words in (
            (401, "no token, or a wrong one"),
            (408, "the body did not come in time"),
            (413, "too large"),
            (422, "not understood"),
            (429, "too many texts wait; try again after Retry-After seconds"),
        )
    }

    @app.post("/predict", dependencies=secured, openapi_extra=schema, responses=refused)
    async def predict(request: Request) -> Answer:
        """Predict texts."""
        texts, predictor = await read(request), served.predictor
        try:
            probabilities = await served.batcher.predict(texts.texts)
        except QueueFullError:
            raise HTTPException(429, "too many texts wait; try again", {"Retry-After": "1"}) from None
        served.rows.inc(len(texts.texts))
        return Answer(predictions=describe(predictor, probabilities, texts.top_k, texts.min_confidence))

    if served.predictor.can_explain:

        @app.post("/explain", dependencies=secured, openapi_extra=schema, responses=refused)
        async def explain(request: Request) -> list[Word]:
            """List the words of the first text that raise or lower the logit of its predicted label most."""
            texts, predictor = await read(request), served.predictor
            words = await served.batcher.call(lambda: predictor.explain(texts.texts[0]))
            ranked = sorted(words, key=lambda word: -abs(word.score))[:_WORDS]
            return [Word(word=word.word, score=word.score) for word in ranked]

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Answer while the process lives."""
        return {"status": "ok"}

    @app.get("/ready", responses={503: {"description": "the server ends"}})
    async def ready() -> JSONResponse:
        """Answer 200 while requests are taken, else 503."""
        return JSONResponse({"ready": not served.stops}, 503 if served.stops else 200)

    @app.get("/model", dependencies=secured)
    async def model() -> dict[str, Any]:
        """Describe the model: task, labels, scores of its run, versions."""
        predictor = served.predictor
        scores: Any = None
        with contextlib.suppress(OSError, ValueError):
            scores = read_json(Path(predictor.folder) / "metrics.json")
            scores = scores["test"] or scores["eval"]
        return {
            "task": predictor.task.name,
            "labels": predictor.labels,
            "pairs": predictor.texts.pair is not None,
            "max_length": predictor.settings["max_length"],
            "precision": predictor.precision,
            "scores": scores,
            "versions": versions(),
        }

    @app.get("/metrics", dependencies=secured, response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Return the counters, in Prometheus's format."""
        return Response(generate_latest(served.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/", response_class=HTMLResponse)
    async def page() -> HTMLResponse:
        """Return a page to type a text into."""
        content = (resources.files("classify.serving") / "page.html").read_text(encoding="utf-8")
        return HTMLResponse(content, headers={"Content-Security-Policy": _POLICY})

    return app


def check_texts(texts: Sequence[str | tuple[str, str]]) -> None:
    """Raise HTTPException for too many texts, too long ones and empty ones."""
    if len(texts) > MOST_TEXTS:
        raise HTTPException(413, f"texts: expected at most {MOST_TEXTS:,} in a request; got {len(texts):,}")
    for number, text in enumerate(texts):
        for part in (text,) if isinstance(text, str) else text:
            if not part.strip():
                raise HTTPException(422, f"texts.{number}: the text is empty")
            if len(part) > MOST_CHARACTERS:
                raise HTTPException(
                    413, f"texts.{number}: expected at most {MOST_CHARACTERS:,} characters; got {len(part):,}"
                )


def describe(predictor: Predictor, rows: Any, top_k: int | None, min_confidence: float | None) -> list[Prediction]:
    """Return the predictions of rows of probabilities, or scores; the last column may be that of being in scope."""
    task, answers = predictor.task, list[Prediction]()
    probabilities, in_scope = predictor.split_outputs(rows)
    values = predictor.answers(probabilities, in_scope)
    shares = [None] * len(rows) if in_scope is None else in_scope.tolist()
    for value, row, share in zip(values, probabilities, shares, strict=True):
        by_label = dict(sorted(zip(task.labels, row.tolist(), strict=True), key=lambda pair: -pair[1])[:top_k])
        confidence, is_rejected = float(row.max()) if task.has_confidence else None, value not in task.labels
        accepted = None if min_confidence is None or confidence is None else confidence >= min_confidence
        if share is not None and is_rejected:
            confidence, accepted = 1 - share, None if min_confidence is None else False
        answers.append(
            Prediction(
                prediction=value,
                confidence=confidence,
                probabilities=by_label if task.has_labels else None,
                accepted=accepted,
                in_scope=share,
            )
        )
    return answers
