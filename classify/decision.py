"""A decision of the program, as it is printed and recorded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Decision:
    """A decision of the program, its reason, and the flag that overrides it.

    It is `printed` without --verbose if it is important or uncertain.
    """

    what: str
    value: str
    why: str
    flag: str
    printed: bool = False

    def line(self) -> str:
        """Return `what: value (why; flag)`."""
        details = "; ".join(part for part in (self.why, self.flag) if part)
        return f"{self.what}: {self.value} ({details})"

    def as_json(self) -> dict[str, str]:
        """Return the entry of run.json."""
        return {"what": self.what, "value": self.value, "why": self.why, "flag": self.flag}
