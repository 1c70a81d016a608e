"""Detect the encoding of a file: by its byte-order mark, as UTF-8 where all of it is valid, else by how it reads."""

from __future__ import annotations

import codecs
import io
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from classify.errors import SHOWN, InputError, list_some
from classify.tables.decide import Answer, Candidate, DoubtError, choose
from classify.tables.legacy_encoding import CLOSE, MULTI_BYTE, USUAL, Reading, rank_readings
from classify.tables.source import Source, find_fault

_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # which begins with UTF-16's
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_MARK = "\ufeff"
_UTF8_CHARACTER = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
# Bytes of the fields that encodings are ranked by. Fields are cut where no character of several bytes can be cut.
_ENOUGH = 8_000
_FIELD = re.compile(rb'[^\t\r\n",;]+')
# Letters quoted around a character beyond ASCII, and the first letters of a file among which it is looked for.
_EXCERPT, _LOOKED = 20, 1 << 16
# Valid letters for a bad byte in a damaged line of UTF-8, UTF-8 lines for one of another encoding below which a file is
# not UTF-8, and the fewest lines, and share of lines, of another encoding that make a file one of two.
_DAMAGED, _OTHER, _SOME, _FEW = 3.0, 0.1, 3, 0.02
# Bytes beyond ASCII below which a file is English: too few to tell an encoding by, and English is cp1252.
_ENGLISH = 1 / 500
_TITLES = {"utf-8": "UTF-8", "utf-8-sig": "UTF-8", "utf-16": "UTF-16", "utf-16-le": "UTF-16", "utf-16-be": "UTF-16"}


@dataclass(frozen=True)
class Encoding:
    """An encoding by Python's name; `damaged` UTF-8 has other bytes in it, `sample` is an excerpt of another one."""

    name: str
    damaged: str = ""
    sample: str = ""

    @property
    def errors(self) -> str:
        """Return how to handle invalid bytes: raise, or read them as U+FFFD in a damaged file."""
        return "replace" if self.damaged else "strict"

    @property
    def is_utf8(self) -> bool:
        """Return whether all bytes are valid UTF-8."""
        return self.name in ("utf-8", "utf-8-sig") and not self.damaged

    @property
    def description(self) -> str:
        """Return its display name, with the damaged lines or an excerpt."""
        name = _TITLES.get(self.name, self.name)
        if self.damaged:
            return f"{name} except bytes on lines {self.damaged}, read as \ufffd"
        return f"{name} (e.g. {self.sample})" if self.sample else name

    @property
    def flag(self) -> str:
        """Return the flag to override it; none for valid UTF-8, since nothing else looks like it."""
        return "" if self.is_utf8 else "--encoding"

    def text(self, source: Source, newline: str = "") -> io.TextIOWrapper:
        """Open a file as text, without a byte-order mark; line ends are as `newline` of `open` says.

        A codec such as utf-8 or gb18030, which --encoding may name, decodes the mark to a character.
        """
        stream = self._open(source, newline)
        if stream.read(1) == _MARK:
            return stream
        stream.close()
        return self._open(source, newline)

    def _open(self, source: Source, newline: str) -> io.TextIOWrapper:
        return io.TextIOWrapper(source.open(), encoding=self.name, errors=self.errors, newline=newline)


def detect_encoding(source: Source, requested: str | None = None, usual: str | None = None) -> Encoding:
    """Return the encoding of a file: the `requested` one, else the first that decodes all of it.

    The `usual` one comes before others that are not Unicode. Raises InputError where the requested one does not fit,
    and DoubtError where several do.
    """
    if requested is not None:
        return _check(source, requested)
    start = source.head
    marked = next((name for mark, name in _MARKS if start.startswith(mark)), None)
    if (wide := marked or _find_wide(start)) is not None:
        fault = find_fault(source.blocks(), wide)
        if fault is None:
            return Encoding(wide)
        if marked is not None:
            raise InputError(
                f"{source.path} line {fault[0]}: the byte-order mark says {marked}, but the bytes are not valid in it"
                f"{fault[1]}; give --encoding."
            )
    fault = source.utf8_fault
    if fault is None:
        switches = source.has_escapes and find_fault(source.blocks(), "iso2022_jp") is None
        return Encoding("iso2022_jp" if switches else "utf-8")
    if b"\0" in start:
        raise InputError(f"{source.path} line {fault[0]}: expected text. Got binary data; give another file.")
    if usual is not None and find_fault(source.blocks(), usual) is None:
        return _with_sample(source, Encoding(usual))
    if _is_english(source) and find_fault(source.blocks(), USUAL) is None:
        return _with_sample(source, Encoding(USUAL))
    return _damaged_utf8(source) or _choose_other(source, fault)


def _is_english(source: Source) -> bool:
    """Return whether hardly any byte is beyond ASCII, and none of them begins a character of UTF-8."""
    size = beyond = 0
    for block in source.blocks():
        size += len(block)
        beyond += len(block.translate(None, bytes(range(128))))
        if _UTF8_CHARACTER.search(block):
            return False
    return beyond < _ENGLISH * size


def _check(source: Source, requested: str) -> Encoding:
    """Return the encoding that a flag names. Raises InputError where it does not decode the file."""
    try:
        b"-".decode(requested, errors="replace")  # which codecs of bytes, such as hex, refuse, too
    except (LookupError, UnicodeError):
        raise InputError(
            f"--encoding {requested}: unknown to Python as an encoding of text; expected a name such as utf-8, "
            "gb18030, cp1252."
        ) from None
    name = codecs.lookup(requested).name
    if name in ("utf-16", "utf-32") and not source.head.startswith(tuple(mark for mark, of in _MARKS if of == name)):
        raise InputError(
            f"--encoding {requested}: {source.path} does not begin with a byte-order mark; give {name}-le or {name}-be."
        )
    fault = find_fault(source.blocks(), requested)
    if fault is not None:
        raise InputError(
            f"--encoding {requested}: not valid in {source.path} line {fault[0]}{fault[1]}; give another encoding, "
            "or drop the flag to detect it."
        )
    return _with_sample(source, Encoding(name if name == "utf-8" else requested))


def decode_start(start: bytes) -> str:
    """Decode the first bytes of a file by its mark, else as UTF-8, to recognize its form."""
    name = next((name for mark, name in _MARKS if start.startswith(mark)), None) or _find_wide(start) or "utf-8"
    return start.decode(name, errors="replace").lstrip("\ufeff")


def _find_wide(start: bytes) -> str | None:
    """Detect UTF-16 without a mark: every other byte of Latin letters, spaces and digits is zero."""
    if b"\0" not in start:
        return None
    even, odd = start[::2].count(0), start[1::2].count(0)
    few = len(start) // 8
    if odd > few and not even:
        return "utf-16-le"
    return "utf-16-be" if even > few and not odd else None


def _damaged_utf8(source: Source) -> Encoding | None:
    """Return UTF-8 where nearly all lines are valid or have few bad bytes; None where hardly any is.

    Raises InputError between. A line with more bad bytes is of another encoding, in which few are valid by chance.
    """
    valid, lines, others = 0, list[int](), list[int]()
    with source.open() as stream:
        for number, line in enumerate(stream, start=1):
            if not line.isascii():
                text = line.decode("utf-8", errors="replace")
                bad = text.count("\ufffd")
                good = sum(character > "\x7f" for character in text) - bad
                valid += not bad
                lines += [number] if bad else []
                others += [number] if good < _DAMAGED * bad else []
    if valid < _OTHER * len(others):
        return None
    if len(others) < max(_SOME, _FEW * valid):
        return Encoding("utf-8", damaged=list_some(lines))
    shown = list_some(others)
    raise InputError(
        f"{source.path}: some lines are UTF-8 and {len(others)} are not (lines {shown}), as where files "
        "of two encodings were joined; save these as UTF-8, too, or give --encoding."
    )


def _choose_other(source: Source, fault: tuple[int, str]) -> Encoding:
    """Take the encoding that reads best. Raises InputError where none can be read, DoubtError where several can."""
    ranked = rank_readings(_sample(source), is_of_mac=b"\r" in source.head and b"\n" not in source.head)
    fitting = list(itertools.islice((r for r in ranked if find_fault(source.blocks(), r.encoding) is None), SHOWN))
    if not fitting:
        raise InputError(
            f"{source.path} line {fault[0]}: not UTF-8{fault[1]}, nor any known encoding; give --encoding."
        )
    best = fitting[0]
    wide = {reading.encoding for reading in fitting if best.reads_badly and reading.encoding in MULTI_BYTE}
    if best.reads_badly and not wide:  # nothing reads well, so the commonest is no worse a guess than the best
        return _with_sample(source, Encoding(next((r.encoding for r in fitting if r.encoding == USUAL), best.encoding)))
    excerpts = _find_differences(fitting)
    candidates = []
    for reading, excerpt in zip(fitting, excerpts, strict=True):
        margin = CLOSE if best.encoding == USUAL else 0.0
        is_rival = reading.points_of_words > best.points_of_words + margin or reading.encoding in wide
        points = (best.points if is_rival else reading.points) / CLOSE
        flag = f"--encoding {reading.encoding}"
        candidates.append(Candidate(reading, points, f"{reading.encoding} {excerpt}", flag))
    answer = choose("the encoding", candidates, fewest=-math.inf)
    if not isinstance(answer, Answer):
        raise DoubtError(source.path, [answer])
    return _with_sample(source, Encoding(answer.value.encoding))


def _with_sample(source: Source, encoding: Encoding) -> Encoding:
    """Return an encoding with an excerpt of the file around its first letter beyond ASCII, unless it is UTF-8."""
    if encoding.is_utf8:
        return encoding
    with encoding.text(source) as stream:
        text = stream.read(_LOOKED)
    match = re.search(r"[^\W\d_\x00-\x7f]", text) or re.search(r"[^\x00-\x7f]", text)
    return encoding if match is None else replace(encoding, sample=_quote(text, match.start()))


def _sample(source: Source) -> bytes:
    """Return fields that are not ASCII, one per line: the first ones, then each with a byte not seen before."""
    fields: list[bytes] = []
    size, seen = 0, bytes(range(128))
    with source.open() as stream:
        for line in stream:
            if line.isascii() or (size > _ENOUGH and not line.translate(None, seen)):
                continue
            for field in _FIELD.findall(line):
                unseen = field.translate(None, seen)
                if unseen or (size <= _ENOUGH and not field.isascii()):
                    fields.append(field)
                    size += len(field)
                    seen += bytes(set(unseen))
    return b"\n".join(fields)


def _find_differences(readings: Sequence[Reading]) -> list[str]:
    """Return an excerpt of each reading, from the first field in which most of them differ."""
    rows = zip(*(reading.text.split("\n") for reading in readings), strict=True)
    fields = max(rows, key=lambda variants: len(set(variants)))
    letters = enumerate(itertools.zip_longest(*fields))
    place = next((at for at, variants in letters if len(set(variants)) > 1), 0)
    return [_quote(field, place) for field in fields]


def _quote(text: str, place: int) -> str:
    start = max(text.rfind("\n", 0, place) + 1, place - _EXCERPT)
    quoted = text[start : place + _EXCERPT].partition("\n")[0]
    return f"“{'...' * (start > 0)}{quoted}{'...' * (place + _EXCERPT < len(text))}”"


def replace_surrogates(text: str) -> str:
    """Return a text with U+FFFD in place of lone surrogates, which tokenizers and files refuse."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
