"""Process group, collectives and sharding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classify.lazy import submodules

if TYPE_CHECKING:
    from classify.distributed import (
        group as group,
        memory as memory,
        sharding as sharding,
        torch_settings as torch_settings,
        world as world,
    )

__getattr__ = submodules(__name__)
