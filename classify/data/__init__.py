"""Read, check, split and tokenize tables; plan the batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classify.lazy import submodules

if TYPE_CHECKING:
    from classify.data import (
        sampler as sampler,
        split_record as split_record,
        split_rows as split_rows,
        split_table as split_table,
        splits as splits,
        token_cache as token_cache,
        tokenize as tokenize,
    )

__getattr__ = submodules(__name__)
