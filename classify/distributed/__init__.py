"""Process group, collectives and sharding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classify.lazy import submodules

if TYPE_CHECKING:
    from classify.distributed import (
        alone as alone,
        group as group,
        memory as memory,
        sharding as sharding,
        world as world,
    )

__getattr__ = submodules(__name__)
