"""Process group, collectives and sharding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classify.lazy import submodules

if TYPE_CHECKING:
    from classify.distributed import (
        alone as alone,
        memory as memory,
        network as network,
        process_group as process_group,
        sharding as sharding,
        stall as stall,
        world as world,
    )

__getattr__ = submodules(__name__)
