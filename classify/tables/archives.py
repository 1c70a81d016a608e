"""Read the one table of a zip or tar archive without unpacking it."""

from __future__ import annotations

import re
import tarfile
import zipfile
from collections.abc import Callable, Container, Iterable
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO

from classify.errors import InputError, list_some
from classify.tables.unread import refuse_unread_archive

SUFFIXES = (".zip", ".tar", ".tgz")
# Errors of broken archives, and of compression methods that Python lacks.
ERRORS = (zipfile.BadZipFile, tarfile.TarError, NotImplementedError, RuntimeError)
_COMPRESSION = re.compile(r"\.(gz|bz2|xz|zst)$")
_ABOUT = ("readme", "license", "licence", "copying", "changelog")  # files that come with a table
_OPEN_DOCUMENT = b"application/vnd.oasis.opendocument."


def is_zip(start: bytes) -> bool:
    """Return whether a file with these first bytes is a zip archive, as workbooks are."""
    return start.startswith((b"PK\x03\x04", b"PK\x05\x06"))


def is_tar(start: bytes) -> bool:
    return start[257:262] == b"ustar"


def find_zip_member(path: str, file: Path, suffixes: Container[str], check_growth: Callable[[int], None]) -> str:
    """Return the name of the only table in a zip archive; "" for a workbook.

    Raises InputError without exactly one table. `check_growth` gets the total size of the files, and may raise.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            check_growth(sum(entry.file_size for entry in entries))
            names = [entry.filename for entry in entries]
            kind = archive.read("mimetype")[:99] if "mimetype" in names else b""
            is_workbook = "[Content_Types].xml" in names and any(name.startswith("xl/") for name in names)
            if is_workbook or kind.startswith(_OPEN_DOCUMENT + b"spreadsheet"):
                return ""
            refuse_unread_archive(path, names)
            member = _only_table(path, names, suffixes)
            if archive.getinfo(member).flag_bits & 1:
                raise InputError(f"{path}: {member!r} in it is encrypted; unpack it and give the file.")
            return member
    except ERRORS as error:
        raise InputError(f"{path}: not a readable workbook or zip archive ({error}); copy it again.") from None


def find_tar_member(path: str, stream: BinaryIO, suffixes: Container[str]) -> str:
    """Return the name of the only table in a tar archive. Raises InputError without exactly one."""
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            return _only_table(path, (entry.name for entry in archive if entry.isreg()), suffixes)
    except ERRORS as error:
        raise InputError(f"{path}: not a readable tar archive ({error}); copy it again.") from None


def open_zip_member(file: Path, member: str) -> IO[bytes]:
    """Open a file of a zip archive. Raises InputError where it is damaged, or compressed in a way that is not read."""
    try:
        with zipfile.ZipFile(file) as archive:  # the member keeps the file open
            return archive.open(member)
    except (NotImplementedError, *ERRORS) as error:
        raise InputError(f"{file}: {member!r} in it cannot be read ({error}); unpack it and give the file.") from None


def open_tar_member(stream: BinaryIO, member: str) -> IO[bytes]:
    """Open a file of a tar archive; the archive is read from its beginning."""
    archive = tarfile.open(fileobj=stream, mode="r|")  # noqa: SIM115
    found = next((entry for entry in archive if entry.name == member and entry.isreg()), None)
    content = None if found is None else archive.extractfile(found)
    if content is None:
        raise tarfile.ReadError("it was changed meanwhile")
    return content


def _only_table(path: str, names: Iterable[str], suffixes: Container[str]) -> str:
    """Return the one file with a table's suffix, or the one file; hidden files do not count. Raises InputError."""
    files = [name for name in names if not name.rpartition("/")[2].startswith(".") and "__MACOSX" not in name]

    def is_table(name: str) -> bool:
        file = PurePosixPath(_COMPRESSION.sub("", name.lower()))
        return file.suffix in suffixes and file.suffix not in SUFFIXES and not file.name.startswith(_ABOUT)

    tables = list(filter(is_table, files)) or (files if len(files) == 1 else [])
    if len(tables) == 1:
        return tables[0]
    found = f"several ({list_some(tables)})" if tables else "none"
    raise InputError(
        f"{path}: expected one table in the archive. Got {found} instead; unpack it, and give one of its files or the "
        "folder."
    )
