"""From bytes to characters: the encoding of a text file.

A byte-order mark, UTF-8, or UTF-16 by its zeros is certain. Of the older encodings two are told by their bytes alone:
GB18030, whose two-byte characters are common hanzi, and cp1252, where few letters are beyond ASCII. Any other is asked.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass

from classify.errors import EXCERPT, InputError
from classify.tables.source import Question, QuestionError, ReadOptions

_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark begins alike
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# What a question shows one line under, where it decodes: multi-byte encodings first, since they rarely do by chance.
_ASKED = (
    "gb18030", "big5", "cp932", "euc_jp", "cp949", "cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255",
    "cp1256", "koi8_r", "cp850",
)  # fmt: skip
# Names for messages; Python's own are `utf-8-sig` and the like.
_SHOWN = {"utf-8-sig": "UTF-8", "utf-8": "UTF-8", "utf-16": "UTF-16", "utf-32": "UTF-32", "gb18030": "GB18030"}
# Share of a file's two-byte characters that must be hanzi of GB 2312, level 1: the 3,755 commonest, sorted by sound.
_COMMON_HANZI = 0.9
# Largest share of letters beyond ASCII in texts of western Europe: Icelandic has a tenth, Czech and Hungarian, which
# cp1252 would misread, as many.
_WESTERN = 1 / 5
# Letters that a text in cp1252 hardly has: only Icelandic and Estonian use them, and Slavic, Baltic and Turkish texts
# have others at these bytes in their own encodings. Signs that are letters of those stand inside words.
_ELSEWHERE = frozenset("ðþýšžõ")
_SIGNS = "ªº"
# Share of all letters up to which these are an exception, as in a file whose apostrophes were damaged before.
_FEW_ODD = 0.005
# Share of zeros in every second byte of UTF-16 with mostly Latin letters.
_ZEROS = 0.3


@dataclass(frozen=True)
class Encoding:
    """A codec of Python, and whether that is certain: if not, it is printed with its flag."""

    name: str
    certain: bool = True

    @property
    def shown(self) -> str:
        return _SHOWN.get(self.name, self.name)

    def decode(self, data: bytes, path: str) -> str:
        """The text of a file without its mark. Raises InputError where it is not in this encoding."""
        try:
            return data.decode(self.name).lstrip("\ufeff")
        except UnicodeError as error:
            raise self.refuse(path, error) from None

    def refuse(self, path: str, error: UnicodeError) -> InputError:
        reason = str(error).splitlines()[0]
        return InputError(f"{path}: not {self.shown} ({reason}); name its encoding with --encoding.")


def find_encoding(head: bytes, options: ReadOptions, path: str) -> Encoding:
    """The encoding of a file that begins with `head`, as far as it says; UTF-8 where it is ASCII.

    Raises InputError for an unknown name of --encoding, QuestionError where the bytes leave it open.
    """
    if options.encoding is not None:
        return Encoding(_look_up(options.encoding))
    for mark, name in _MARKS.items():
        if head.startswith(mark):
            return Encoding(name)
    for start, name in ((1, "utf-16-le"), (0, "utf-16-be")):
        if len(head) > 3 and head[start::2].count(0) > _ZEROS * len(head) / 2 > 4 * head[1 - start :: 2].count(0):
            return Encoding(name)
    if b"\0\0" in head[:4096]:
        raise InputError(f"{path}: not a table this program reads; expected CSV, JSON, Parquet or Excel.")
    if is_utf8(head):
        return Encoding("utf-8")
    return find_legacy(head, options, path)


def is_utf8(data: bytes) -> bool:
    """Whether bytes are UTF-8, but for a character that is cut at their end."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return False
    return True


def find_legacy(data: bytes, options: ReadOptions, path: str) -> Encoding:
    """The encoding of bytes that are not UTF-8, whose lines beyond ASCII are enough.

    Raises InputError for damaged UTF-8, QuestionError where it is neither GB18030 nor cp1252.
    """
    lines = [line for line in data.splitlines() if not line.isascii()]
    foreign = b"\n".join(lines)
    decoded = foreign.decode("utf-8", "surrogateescape")
    invalid = sum("\udc80" <= character <= "\udcff" for character in decoded)
    valid = sum(character > "\x7f" for character in decoded) - invalid
    if valid > invalid:
        damaged = next(line for line in lines if not is_utf8(line + b"\n")).decode("utf-8", "replace")
        raise InputError(f"{path}: UTF-8, but not in {damaged[:EXCERPT]!r}; mend such lines, and save it as UTF-8.")
    if _is_gb18030(foreign):
        return Encoding("gb18030", certain=False)
    if 10 * valid <= invalid and _is_cp1252(foreign, len(re.findall(rb"[A-Za-z]", data))):
        return Encoding("cp1252", certain=False)
    if "encoding" in options.like:
        return Encoding(options.like["encoding"])
    line = max(lines[:100], key=lambda line: sum(byte > 127 for byte in line))
    start = max(0, next(place for place, byte in enumerate(line) if byte > 127) - EXCERPT // 4)
    decodes = [name for name in _ASKED if _decode(foreign, name) is not None]
    shown = tuple(f"{name} {line.decode(name)[start:][:EXCERPT].strip()!r}" for name in decodes)
    flags = tuple(f"--encoding {name}" for name in decodes[:1])
    raise QuestionError(path, [Question("which encoding shows this line right", shown, flags)])


def _decode(data: bytes, encoding: str) -> str | None:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        return None


def _is_gb18030(data: bytes) -> bool:
    text = _decode(data, "gb18030")
    if text is None:
        return False
    pairs = [character.encode("gb18030") for character in text if character > "\xff"]
    letters = [pair for pair in pairs if not (len(pair) == 2 and 0xA1 <= pair[0] <= 0xA3)]  # without punctuation
    common = [pair for pair in letters if 0xB0 <= pair[0] <= 0xD7 and pair[1] >= 0xA1]
    # In EUC-KR the same bytes are Hangul, which ends at C8: the later half of the hanzi never occurs.
    later = sum(pair[0] > 0xC8 for pair in common)
    return len(common) > _COMMON_HANZI * len(letters) and later > len(common) / 10


def _is_cp1252(data: bytes, ascii_letters: int) -> bool:
    """Whether bytes are texts of western Europe: few letters are beyond ASCII, and hardly a sign is inside a word."""
    text = _decode(data, "cp1252")
    if text is None or "\0" in text:
        return False
    letters = Counter(character for character in text.lower() if character > "\x7f" and character.isalpha())
    elsewhere = sum(letters[letter] for letter in _ELSEWHERE)
    inside = re.findall(r"(?<=[a-z])[^\x00-\x7f](?=[a-z])", text)
    signs = sum(sign in _SIGNS or unicodedata.category(sign)[0] in "SN" for sign in inside)
    total = letters.total() + ascii_letters
    return letters.total() <= _WESTERN * total and elsewhere + signs <= _FEW_ODD * total


def _look_up(name: str) -> str:
    """Python's name of a codec. Raises InputError where there is none, or it is not one of texts."""
    try:
        codec = codecs.lookup(name)
        "a".encode(name)
    except (LookupError, ValueError, TypeError, UnicodeError):
        raise InputError(
            f"--encoding {name}: no such encoding of texts; expected one of Python's, such as utf-8 or gb18030."
        ) from None
    return "utf-8-sig" if codec.name == "utf-8" else codec.name
