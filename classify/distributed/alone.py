"""One process without torch: what prediction asks of `World`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any


class Alone:
    """The only process of a prediction: it writes files and prints, and has no one to exchange with."""

    rank, world_size = 0, 1
    is_main, distributed = True, False

    def __init__(self) -> None:
        self.closed = False

    def check_same(self, kinds: Mapping[str, str]) -> None:
        """Do nothing: there is no other process that could differ."""

    def sync_errors(self) -> contextlib.AbstractContextManager[None]:
        """A block that nobody else waits for."""
        return contextlib.nullcontext()

    def broadcast(self, value: Any) -> Any:
        """The value."""
        return value

    def all_reduce_max(self, value: int) -> int:
        """The value."""
        return value

    def close(self, error: BaseException | None = None) -> None:
        """Mark the predictor as closed."""
        self.closed = True
