"""The model: finding, loading, packing and precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classify.lazy import submodules

if TYPE_CHECKING:
    from classify.modeling import (
        classifier as classifier,
        find as find,
        load as load,
        precision as precision,
        result_folder as result_folder,
    )

__getattr__ = submodules(__name__)
