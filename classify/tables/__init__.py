"""Read tables of texts and labels: `read_table` is the door, `roles.find_columns` says which column is what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classify.lazy import submodules

if TYPE_CHECKING:
    from classify.tables import (
        arrow_file as arrow_file,
        folders as folders,
        json_file as json_file,
        labels as labels,
        read as read,
        roles as roles,
        source as source,
        table as table,
        writers as writers,
    )

__getattr__ = submodules(__name__)
