"""Process group, collectives and sharding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classify.lazy import submodules

if TYPE_CHECKING:
    from classify.distributed import group as group, memory as memory

__getattr__ = submodules(__name__)
