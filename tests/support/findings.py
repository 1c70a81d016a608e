"""The findings of splits, or of what encodes labels, which has them by a method."""

from __future__ import annotations

from typing import Any

from classify.findings import Finding, decisions, notes


def notes_of(found: Any) -> list[str]:
    return [finding.sentence for finding in notes(_of(found))]


def decisions_of(found: Any) -> list[Finding]:
    return decisions(_of(found))


def _of(found: Any) -> Any:
    return found.findings() if callable(found.findings) else found.findings
