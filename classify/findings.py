"""What the program decided, and what may be wrong: terminal, run.json, report and inspect read lists of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

_FLAG = re.compile(r"--[a-z][a-z-]+")


@dataclass(frozen=True)
class Finding:
    """A decision (`where` is what was decided, `text` the value), or a note on what may be wrong at a place.

    A "detail" is a decision that is printed with --verbose only. `flag` changes what was decided.
    """

    level: Literal["detail", "decision", "note"]
    where: str
    text: str
    flag: str = ""
    why: str = ""

    def line(self) -> str:
        if self.level == "note":
            return f"note: {self.sentence}"
        details = "; ".join(part for part in (self.why, self.flag) if part)
        return f"{self.where}: {self.text} ({details})"

    @property
    def sentence(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text

    def as_json(self) -> dict[str, str]:
        return {"level": self.level, "where": self.where, "text": self.text, "flag": self.flag}

    def as_guess(self) -> dict[str, str]:
        return {"what": self.where, "value": self.text, "why": self.why, "flag": self.flag}


def decided(what: str, value: str, why: str, flag: str, printed: bool = False) -> Finding:
    """A decision, `printed` where it is important or uncertain."""
    return Finding("decision" if printed else "detail", what, value, flag, why)


def note(text: str, where: str = "") -> Finding:
    """A note; its flag is the first one in its text."""
    flag = _FLAG.search(text)
    return Finding("note", where, text, flag[0] if flag else "")


def decisions(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level != "note"]


def notes(findings: Iterable[Finding]) -> list[Finding]:
    return list(dict.fromkeys(finding for finding in findings if finding.level == "note"))
