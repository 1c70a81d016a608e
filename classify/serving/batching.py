"""Pack concurrent requests into batches, with a queue that cannot grow without limit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Result = TypeVar("Result")
Rows = npt.NDArray[np.float64]


class QueueFullError(Exception):
    """More rows wait than the queue holds."""


@dataclass(frozen=True)
class _Request:
    texts: Sequence[Any]
    answer: asyncio.Future[Rows]


class Batcher:
    """One thread computes; while it does, requests collect for its next batch.

    `compute` returns a row per text. A batch has up to `most_rows` rows, or one larger request, and an idle server
    waits `wait` seconds for more. At most `longest` rows wait.
    """

    def __init__(
        self,
        compute: Callable[[list[Any]], Rows],
        *,
        most_rows: int,
        wait: float,
        longest: int,
        on_batch: Callable[[int], object] = lambda rows: None,
    ):
        self._compute, self._most_rows, self._wait, self._longest = compute, most_rows, wait, longest
        self._on_batch = on_batch
        self._queue: deque[_Request] = deque()
        self._came = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "predict")
        self.waiting_rows = 0

    async def predict(self, texts: Sequence[Any]) -> Rows:
        """The probabilities of texts. Raises QueueFullError at once where too many rows wait."""
        self._check_room(len(texts))
        request = _Request(texts, asyncio.get_running_loop().create_future())
        self._queue.append(request)
        self.waiting_rows += len(texts)
        self._came.set()
        return await request.answer

    async def call(self, function: Callable[[], Result], rows: int = 0) -> Result:
        """Call a function that takes as long as `rows` between two batches, in their thread; raises as `predict`."""
        self._check_room(rows)
        self.waiting_rows += rows
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, function)
        finally:
            self.waiting_rows -= rows

    def _check_room(self, rows: int) -> None:
        """Raise QueueFullError where that many rows more are too many; one request may always come."""
        if rows and self.waiting_rows and self.waiting_rows + rows > self._longest:
            raise QueueFullError

    async def run(self) -> None:
        """Compute batches until the task is cancelled."""
        while True:
            await self._came.wait()
            if self.waiting_rows < self._most_rows:
                await asyncio.sleep(self._wait)
            batch = self._take_batch()
            texts = [text for request in batch for text in request.texts]
            if not texts:
                continue
            self._on_batch(len(texts))
            try:
                rows = await self.call(lambda texts=texts: self._compute(texts))  # type: ignore[misc]
            except Exception as error:
                for request in batch:
                    if not request.answer.done():
                        request.answer.set_exception(error)
                continue
            ends = np.cumsum([len(request.texts) for request in batch])
            for request, part in zip(batch, np.split(rows, ends[:-1]), strict=True):
                if not request.answer.done():  # its client may have left
                    request.answer.set_result(part)

    def _take_batch(self) -> list[_Request]:
        batch, rows = list[_Request](), 0
        while self._queue and (not batch or rows + len(self._queue[0].texts) <= self._most_rows):
            request = self._queue.popleft()
            self.waiting_rows -= len(request.texts)
            if not request.answer.done():
                batch.append(request)
                rows += len(request.texts)
        if not self._queue:
            self._came.clear()
        return batch
