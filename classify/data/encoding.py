"""In which encoding a file is written: by its mark, as UTF-8 where all of it is that, else by what its letters say."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from dataclasses import dataclass

from classify.data.source import Source
from classify.errors import InputError

_BLOCK = 1 << 22
_SAMPLE = 1 << 16
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # which begins with UTF-16's
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# In the order in which they are preferred where letters say nothing. cp1252 holds Latin-1's letters, gb18030 GBK's,
# cp932 those of Shift-JIS. What extends EUC-KR holds so many syllables that Japanese would pass for Korean: it comes
# last.
_OTHERS = ("cp1252", "gb18030", "big5", "cp932", "euc_kr", "euc_jp", "cp1251", "cp1250", "mac_roman")
_LAST = ("cp949", "latin_1")
# How much more of a language's common letters another encoding must show to be preferred to cp1252.
_MARGIN = 0.05
# Letters that are UTF-8 for each that is not, from which on a file is UTF-8 that was damaged: misread letters of
# another encoding are hardly ever UTF-8.
_MOSTLY = 20
_SHOWN = 5
_WORDS = {
    "utf-8": "UTF-8",
    "utf-8-sig": "UTF-8",
    "utf-16": "UTF-16",
    "utf-16-le": "UTF-16",
    "utf-16-be": "UTF-16",
    "utf-32": "UTF-32",
    "cp1252": "cp1252 (Latin-1)",
    "gb18030": "GB18030",
    "big5": "Big5",
    "cp932": "cp932 (Shift-JIS)",
    "euc_kr": "EUC-KR",
    "cp949": "cp949 (EUC-KR)",
    "latin_1": "Latin-1",
    "mac_roman": "Mac Roman",
}


@dataclass(frozen=True)
class Encoding:
    """An encoding by Python's name. `damaged` are the first lines of a UTF-8 file that hold bytes of something else."""

    name: str
    damaged: tuple[int, ...] = ()

    @property
    def errors(self) -> str:
        """What is done with bytes that are no text: they stop the reading, or are shown as U+FFFD in a damaged file."""
        return "replace" if self.damaged else "strict"

    @property
    def words(self) -> str:
        """Its name for people."""
        name = _WORDS.get(self.name, self.name)
        lines = ", ".join(map(str, self.damaged))
        return f"{name} but for bytes on lines {lines} ..., which are read as \ufffd" if self.damaged else name

    @property
    def flag(self) -> str:
        """How to say otherwise; whole UTF-8 is not guessed, since nothing else looks like it."""
        return "" if self.words == "UTF-8" else "--encoding"

    def text(self, source: Source) -> io.TextIOWrapper:
        """The characters of a file."""
        return io.TextIOWrapper(source.open(), encoding=self.name, errors=self.errors, newline="")


def detect_encoding(source: Source, asked: str | None = None) -> Encoding:
    """The encoding of a file: the one `asked` for, else the first that decodes all of it.

    Raises InputError where there is no such encoding, and where the file is not text in it.
    """
    if asked is not None:
        try:
            codecs.lookup(asked)
        except LookupError:
            raise InputError(
                f"--encoding {asked}: Python knows no such encoding; e.g. utf-8, gb18030, cp1252."
            ) from None
        fault = _fault(source, asked)
        if fault is not None:
            raise InputError(f"--encoding {asked}: {source.path} line {fault[0]} is not text in it{fault[1]}.")
        return Encoding(asked)
    start = source.start(_SAMPLE)
    for mark, name in _MARKS:
        if start.startswith(mark):
            fault = _fault(source, name)
            if fault is not None:
                raise InputError(
                    f"{source.path} line {fault[0]}: begins as {_WORDS[name]} and is not{fault[1]}; give --encoding."
                )
            return Encoding(name)
    wide = _wide(start)
    if wide is not None and _fault(source, wide) is None:
        return Encoding(wide)
    fault = _fault(source, "utf-8")
    if fault is None:
        return Encoding("utf-8")
    if b"\0" in start:
        raise InputError(f"{source.path} line {fault[0]}: expected text. Got bytes that are none; give another file.")
    damaged = _damaged_lines(source)
    if damaged:
        return Encoding("utf-8", damaged)
    for name in dict.fromkeys([*_likely(source), *_OTHERS, *_LAST]):
        if _fault(source, name) is None:
            return Encoding(name)
    raise InputError(
        f"{source.path} line {fault[0]}: not UTF-8{fault[1]}, nor any encoding that is known; give --encoding."
    )


def decoded_start(start: bytes) -> str:
    """The first characters of a file, as far as its mark or UTF-8 tell; for looking at its form alone."""
    name = next((name for mark, name in _MARKS if start.startswith(mark)), None) or _wide(start) or "utf-8"
    return start.decode(name, errors="replace").lstrip("\ufeff")


def _wide(start: bytes) -> str | None:
    """UTF-16 without a mark: of Latin letters, spaces and digits every other byte is zero."""
    if b"\0" not in start:
        return None
    even, odd = start[::2].count(0), start[1::2].count(0)
    few = len(start) // 8
    if odd > few and not even:
        return "utf-16-le"
    return "utf-16-be" if even > few and not odd else None


def _fault(source: Source, name: str) -> tuple[int, str] | None:
    """The line on which a file stops being text in an encoding, and what stands there; None where all of it is."""
    decoder = codecs.getincrementaldecoder(name)()
    lines = 1
    for block in _blocks(source):
        try:
            lines += decoder.decode(block).count("\n")
        except UnicodeDecodeError as error:
            byte = error.object[error.start] if error.start < len(error.object) else 0
            return lines + error.object[: error.start].count(b"\n"), f" (byte 0x{byte:02x})"
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return lines, " (it ends inside a character)"
    return None


def _damaged_lines(source: Source) -> tuple[int, ...]:
    """The first lines that are not UTF-8 where nearly all letters beyond ASCII are; none where many are not."""
    good = bad = 0
    lines: list[int] = []
    with source.open() as stream:
        for number, line in enumerate(stream, start=1):
            if line.isascii():
                continue
            text = line.decode("utf-8", errors="replace")
            broken = text.count("\ufffd")
            good += sum(character > "\x7f" for character in text) - broken
            bad += broken
            if broken and len(lines) < _SHOWN:
                lines.append(number)
    return tuple(lines) if good > _MOSTLY * bad else ()


def _blocks(source: Source) -> Iterator[bytes]:
    with source.open() as stream:
        while block := stream.read(_BLOCK):
            yield block


def _likely(source: Source) -> list[str]:
    """Encodings by what the letters of a sample say: the words of a language are not those of another misread."""
    from charset_normalizer import from_bytes

    sample = b""
    with source.open() as stream:
        for line in stream:
            if any(byte > 127 for byte in line):
                sample += line
            if len(sample) > _SAMPLE:
                break
    matches = {match.encoding: match.coherence for match in from_bytes(sample, cp_isolation=list(_OTHERS))}
    best = next(iter(matches.values()), 0.0)
    if matches.get("cp1252", -1.0) >= best - _MARGIN:
        return ["cp1252", *matches]
    return list(matches)
