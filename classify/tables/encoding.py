"""Detect the encoding of a file: by its byte order mark, as UTF-8 where all of it is valid, else by its letters."""

from __future__ import annotations

import codecs
import io
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from classify.errors import InputError, list_some
from classify.tables.legacy_encoding import MULTI_BYTE, USUAL, Reading, rank_readings
from classify.tables.source import Source

_BLOCK = 1 << 22
_SAMPLE = 1 << 16
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # which begins with UTF-16's
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_MARK = "\ufeff"
# Encodings whose byte order is that of the mark.
_MARKED = {"utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)}
# The ASCII bytes with which ISO-2022-JP switches to Japanese.
_JAPANESE = b"\x1b$"
# Evidence that two readings of a file must differ by, in points: see legacy_encoding.
_CLOSE = 8.0
# Bytes of the fields that encodings are ranked by. Fields are cut where no character of several bytes can be cut.
_ENOUGH = 8_000
# Bytes of lines in a piece of a file that is ranked by itself, and the most pieces besides the last one. Points by
# which the whole file's encoding may be behind a piece's best one: few in files of one encoding, and mostly several
# hundred in a piece of another encoding.
_PIECE, _MOST_PIECES, _FAR = 1_000, 12, 150.0
_FIELD = re.compile(rb'[^\t\r\n",;]+')
_EXCERPT = 20
# Valid characters per invalid one from which a file is damaged UTF-8: letters of another encoding are hardly ever
# valid.
_MOSTLY = 20
# A file of another encoding has hardly any line beyond ASCII that is valid UTF-8: fewer than one for this many others.
_MIXED = 3
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
    """An encoding by Python's name.

    `damaged` are the first lines of a UTF-8 file that hold bytes of something else; `sample` is an excerpt
    of a file in another encoding; `reads_badly` where some of its characters are nonsense in all of them.
    """

    name: str
    damaged: tuple[int, ...] = ()
    sample: str = ""
    reads_badly: bool = False

    @property
    def errors(self) -> str:
        """Return how to handle invalid bytes: raise, or read them as U+FFFD in a damaged file."""
        return "replace" if self.damaged else "strict"

    @property
    def title(self) -> str:
        return _WORDS.get(self.name, self.name)

    @property
    def description(self) -> str:
        """Return its display name, with the damaged lines or an excerpt."""
        name = self.title
        if self.damaged:
            lines = ", ".join(map(str, self.damaged))
            return f"{name} except bytes on lines {lines} ..., read as \ufffd"
        if self.reads_badly:
            name = f"{name}, though some characters read badly in every encoding"
        return f"{name} (e.g. {self.sample})" if self.sample else name

    @property
    def flag(self) -> str:
        """Return the flag to override it; none for valid UTF-8, since nothing else looks like it."""
        return "" if self.description == "UTF-8" else "--encoding"

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


def detect_encoding(source: Source, requested: str | None = None) -> Encoding:
    """Return the encoding of a file: the `requested` one, else the first that decodes all of it.

    Raises InputError for an unknown encoding, and for a file that is not text in it.
    """
    if requested is not None:
        try:
            b"-".decode(requested, errors="replace")  # which codecs of bytes, such as hex, refuse, too
        except (LookupError, UnicodeError):
            raise InputError(
                f"--encoding {requested}: unknown to Python as an encoding of text; expected a name such as utf-8, "
                "gb18030, cp1252."
            ) from None
        name = codecs.lookup(requested).name
        if name in _MARKED and not source.head.startswith(_MARKED[name]):
            raise InputError(
                f"--encoding {requested}: {source.path} does not begin with a byte-order mark; give {name}-le or "
                f"{name}-be."
            )
        fault = _fault(source, requested)
        if fault is not None:
            raise InputError(
                f"--encoding {requested}: not valid in {source.path} line {fault[0]}{fault[1]}; give another encoding, "
                "or drop the flag to detect it."
            )
        return _with_sample(source, requested)
    start = source.head
    for mark, name in _MARKS:
        if start.startswith(mark):
            fault = _fault(source, name)
            if fault is not None:
                raise InputError(
                    f"{source.path} line {fault[0]}: the byte-order mark says {_WORDS[name]}, but the bytes are not "
                    f"valid in it{fault[1]}; give --encoding."
                )
            return _with_sample(source, name)
    wide = _wide(start)
    if wide is not None and _fault(source, wide) is None:
        return _with_sample(source, wide)
    fault = _fault(source, "utf-8")
    if fault is None:
        return _with_sample(source, "iso2022_jp" if _is_iso2022(source) else "utf-8")
    if b"\0" in start:
        raise InputError(f"{source.path} line {fault[0]}: expected text. Got binary data; give another file.")
    return _mostly_utf8(source) or _legacy_encoding(source, fault)


def decode_start(start: bytes) -> str:
    """Decode the first bytes of a file by its mark, else as UTF-8, to recognize its form."""
    name = next((name for mark, name in _MARKS if start.startswith(mark)), None) or _wide(start) or "utf-8"
    return start.decode(name, errors="replace").lstrip("\ufeff")


def _wide(start: bytes) -> str | None:
    """Detect UTF-16 without a mark: every other byte of Latin letters, spaces and digits is zero."""
    if b"\0" not in start:
        return None
    even, odd = start[::2].count(0), start[1::2].count(0)
    few = len(start) // 8
    if odd > few and not even:
        return "utf-16-le"
    return "utf-16-be" if even > few and not odd else None


def _fault(source: Source, name: str) -> tuple[int, str] | None:
    """Return the first line that is not text in an encoding, with the reason; None where all lines are."""
    decoder = codecs.getincrementaldecoder(name)()
    lines = 1
    for block in _blocks(source):
        try:
            lines += decoder.decode(block).count("\n")
        except UnicodeDecodeError as error:
            byte = error.object[error.start] if error.start < len(error.object) else 0
            return lines + error.object[: error.start].count(b"\n"), f" (byte 0x{byte:02x})"
        except UnicodeError as error:  # of punycode, for one
            return lines, f" ({error})"
    try:
        decoder.decode(b"", final=True)
    except UnicodeError:
        return lines, " (it ends inside a character)"
    return None


def _mostly_utf8(source: Source) -> Encoding | None:
    """Return UTF-8 where nearly all characters beyond ASCII are valid in it, else None.

    Raises InputError for a file that holds lines of two encodings.
    """
    good = bad = valid = invalid = 0
    first: list[int] = []
    with source.open() as stream:
        for number, line in enumerate(stream, start=1):
            if line.isascii():
                continue
            text = line.decode("utf-8", errors="replace")
            broken = text.count("\ufffd")
            right = sum(character > "\x7f" for character in text) - broken
            good, bad = good + right, bad + broken
            if broken:
                invalid += 1
                if len(first) < _SHOWN:
                    first.append(number)
            elif right > 1:  # a single one may be valid by chance
                valid += 1
    if good > _MOSTLY * bad:
        return Encoding("utf-8", tuple(first))
    if valid * _MIXED >= invalid:
        raise InputError(
            f"{source.path}: {valid} non-ASCII lines are UTF-8 and {invalid} are not "
            f"(lines {list_some(list(map(str, first)), invalid)}), as where files of two encodings were joined; save "
            "the other lines as UTF-8, too, or give --encoding."
        )
    return None


def _blocks(source: Source) -> Iterator[bytes]:
    with source.open() as stream:
        while block := stream.read(_BLOCK):
            yield block


def _legacy_encoding(source: Source, fault: tuple[int, str]) -> Encoding:
    """Take the encoding that reads best. Raises InputError where none does, and where others read nearly as well."""

    def decodes(reading: Reading) -> bool:
        return _fault(source, reading.encoding) is None

    ranked = rank_readings(_sample(source))
    best = next(filter(decodes, ranked), None)
    if best is None:
        raise InputError(
            f"{source.path} line {fault[0]}: not UTF-8{fault[1]}, nor any known encoding; give --encoding."
        )
    wide = [reading for reading in ranked if best.reads_badly and reading.encoding in MULTI_BYTE and decodes(reading)]
    if best.reads_badly and not wide:  # nothing reads well, so the commonest is no worse a guess than the best
        usual = next((reading for reading in ranked if reading.encoding == USUAL and decodes(reading)), best)
        return Encoding(usual.encoding, sample=_excerpt(usual.text), reads_badly=True)
    rivals = [
        reading
        for reading in ranked
        if reading is not best
        and (best.points - reading.points < _CLOSE or reading.points_of_words > best.points_of_words)
    ]
    rivals += wide
    if any(map(decodes, rivals)):
        others = [reading for reading in ranked if reading is not best and reading not in rivals]
        shown = list(itertools.islice(filter(decodes, [best, *rivals, *others]), 3))
        pairs = zip(shown, _find_differences(shown), strict=True)
        samples = ", ".join(f"{reading.encoding} {excerpt}" for reading, excerpt in pairs)
        raise InputError(
            f"{source.path}: not UTF-8{fault[1]}, and several encodings fit: {samples}; "
            f"give the right one, e.g. --encoding {best.encoding}."
        )
    _require_one_encoding(source, best.encoding)
    return Encoding(best.encoding, sample=_excerpt(best.text))


def _require_one_encoding(source: Source, name: str) -> None:
    """Raise InputError where another encoding reads a piece of the file far better, as where files were joined.

    An encoding with characters of several bytes is hardly valid by chance, and may hold rows in further languages.
    """
    for line, piece in _pieces(source) if name not in MULTI_BYTE else ():
        ranked = rank_readings(piece)
        text = piece.decode(name, errors="replace")
        own, best = next((reading for reading in ranked if reading.text == text), ranked[0]), ranked[0]
        if min(best.points - own.points, best.points_of_words - own.points_of_words) > _FAR:
            excerpts = _find_differences([own, best])
            raise InputError(
                f"{source.path}: not UTF-8; most of it reads as {name}, but below line {line} {best.encoding} reads "
                f"better ({best.encoding} {excerpts[1]}, {name} {excerpts[0]}), as where files of two encodings were "
                f"joined; save all lines as UTF-8, or give --encoding {name} if it is right."
            )


def _pieces(source: Source) -> list[tuple[int, bytes]]:
    """Return pieces spread over a file, the last one included: the line before each, and its fields beyond ASCII."""
    pieces: list[tuple[int, list[bytes]]] = []
    above, piece, size, count, every = 0, list[bytes](), 0, 0, 1
    with source.open() as stream:
        for number, line in enumerate(stream, start=1):
            if line.isascii():
                continue
            piece.append(line)
            size += len(line)
            if size >= _PIECE:
                if count % every == 0:
                    pieces.append((above, piece))
                if len(pieces) > _MOST_PIECES:
                    pieces, every = pieces[::2], 2 * every
                above, piece, size, count = number, [], 0, count + 1
    fields = [
        (line, [field for text in lines for field in _FIELD.findall(text) if not field.isascii()])
        for line, lines in [*pieces, (above, piece)]
    ]
    return [(line, b"\n".join(found)) for line, found in fields if found]


def _with_sample(source: Source, name: str) -> Encoding:
    """Return an encoding by name, with an excerpt of the file unless it is UTF-8."""
    encoding = Encoding(name)
    if codecs.lookup(name).name in ("utf-8", "utf-8-sig"):
        return encoding
    with encoding.text(source) as stream:
        return replace(encoding, sample=_excerpt(stream.read(_SAMPLE)))


def _is_iso2022(source: Source) -> bool:
    """Return whether 7-bit bytes switch to Japanese letters somewhere."""
    return any(_JAPANESE in block for block in _blocks(source)) and _fault(source, "iso2022_jp") is None


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


def _excerpt(text: str) -> str:
    """Quote the words around the first letter, else character, beyond ASCII; "" without one."""
    match = re.search(r"[^\W\d_\x00-\x7f]", text) or re.search(r"[^\x00-\x7f]", text)
    return "" if match is None else _quote(text, match.start())


def _find_differences(readings: list[Reading]) -> list[str]:
    """Return an excerpt of each reading, from the first field in which most of them differ."""
    rows = zip(*(reading.text.split("\n") for reading in readings), strict=True)
    fields = max(rows, key=lambda variants: len(set(variants)))
    place = next(at for at, letters in enumerate(itertools.zip_longest(*fields)) if len(set(letters)) > 1)
    return [_quote(field, place) for field in fields]


def _quote(text: str, place: int) -> str:
    start = max(text.rfind("\n", 0, place) + 1, place - _EXCERPT)
    end = place + _EXCERPT
    quoted = text[start:end].partition("\n")[0]
    return f"“{'...' * (start > 0)}{quoted}{'...' * (end < len(text))}”"


def replace_surrogates(text: str) -> str:
    """Return a text with U+FFFD in place of lone surrogates, which tokenizers and files refuse."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
