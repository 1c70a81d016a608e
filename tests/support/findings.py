"""The findings of a thing: its notes as sentences, and its decisions."""

from __future__ import annotations

from typing import Any

from classify.findings import Finding, decisions, notes


def notes_of(found: Any) -> list[str]:
    """Return the notes of what has `findings`."""
    return [finding.sentence for finding in notes(_of(found))]


def decisions_of(found: Any) -> list[Finding]:
    """Return the decisions of what has `findings`."""
    return decisions(_of(found))


def _of(found: Any) -> Any:
    """Return the findings, which what encodes labels has by a method."""
    return found.findings() if callable(found.findings) else found.findings
