"""Read tables of texts and labels: `read_table` is the door, `roles.find_columns` says which column is what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classify.lazy import submodules

if TYPE_CHECKING:
    from classify.tables import (
        arrow_file as arrow_file,
        csv_file as csv_file,
        excel as excel,
        folders as folders,
        json_file as json_file,
        labels as labels,
        profile as profile,
        read as read,
        roles as roles,
        rules as rules,
        source as source,
        table as table,
        text as text,
        writers as writers,
    )

__getattr__ = submodules(__name__)
