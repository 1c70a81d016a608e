"""report.html and the model card of a result folder; made from its files alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classify.lazy import submodules

if TYPE_CHECKING:
    from classify.report import (
        comparison as comparison,
        environment as environment,
        page as page,
        result as result,
        sections as sections,
    )

__getattr__ = submodules(__name__)
