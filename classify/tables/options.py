"""How a table is to be read, as flags say, or as an earlier table of the same kind was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from classify.errors import InputError
from classify.tables.decide import Question

# What `Table.reading` may hold: a later table of the same kind is read by it, too.
REMEMBERED = ("encoding", "sheet", "delimiter", "quote", "header", "skip_lines")
_NAMED = {"tab": "\t", r"\t": "\t"}


@dataclass(frozen=True)
class ReadOptions:
    """Options that flags give; None where the file decides.

    A `quote` of "" stands for none. `columns` are the names in a related table, such as the one that a model was
    trained on. `like` is how that table was read, which answers what this file leaves open.
    """

    encoding: str | None = None
    sheet: str | None = None
    skips_bad_rows: bool = False
    delimiter: str | None = None
    quote: str | None = None
    header: bool | None = None
    skip_lines: int | None = None
    columns: tuple[str, ...] = ()
    like: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """The options in settings that are named as flags are. Raises InputError where two contradict."""
        if settings.get("header") and settings.get("no_header"):
            raise InputError("--header and --no-header contradict each other; give one of them.")
        delimiter, quote = settings.get("delimiter"), settings.get("quote")
        delimiter, quote = _NAMED.get(delimiter or "", delimiter), "" if quote == "none" else quote
        for flag, sign in (("--delimiter", delimiter), ("--quote", quote or None)):
            if sign is not None and not (len(sign) == 1 and sign.isascii() and not sign.isalnum()):
                raise InputError(f"{flag} {sign}: expected one sign of ASCII (or tab, or no quote: none).")
        header = True if settings.get("header") else False if settings.get("no_header") else None
        return cls(
            settings.get("encoding"), settings.get("sheet"), settings.get("on_bad_rows") == "skip",
            delimiter, quote, header, settings.get("skip_lines"),
        )  # fmt: skip

    def after(self, reading: Mapping[str, Any], columns: Sequence[str]) -> Self:
        """These options for a table like one that was read before: what flags gave then holds again."""
        given = {name: value for name, value in reading.get("given", {}).items() if getattr(self, name) is None}
        return replace(self, columns=tuple(columns), like=reading.get("found", {}), **given)

    @property
    def given(self) -> dict[str, Any]:
        """What flags gave that holds for a later table of the same kind, too."""
        values = {name: getattr(self, name) for name in REMEMBERED}
        return {name: value for name, value in values.items() if value is not None}

    def answer(self, name: str, found: Any) -> Any:
        """What was found, unless that is a question which the earlier table's reading answers."""
        return self.like[name] if isinstance(found, Question) and name in self.like else found
