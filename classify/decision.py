"""A decision of the program, as it is printed and recorded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Decision:
    """A decision of the program, its reason, and the flag that overrides it."""

    what: str
    value: str
    why: str
    flag: str

    def line(self) -> str:
        """Return `what: value (why; flag)`."""
        details = "; ".join(part for part in (self.why, self.flag) if part)
        return f"{self.what}: {self.value} ({details})"
