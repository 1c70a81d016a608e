"""Refuse known unsupported forms, each with a way to convert it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from classify.errors import InputError

_PANDAS = "save it as CSV: python -c \"import pandas; pandas.{}('{{path}}').to_csv('table.csv', index=False)\""
_SQLITE = "export the table: sqlite3 -header -csv {path} 'SELECT * FROM name' > table.csv"
_SQL = "load it into a database and export the table as CSV"
_R = "save the data frame as CSV in R: write.csv(frame, 'table.csv', row.names = FALSE, fileEncoding = 'UTF-8')"
_IMAGE = "extract its text first (OCR), into a CSV of texts and labels"
_EXCEL = "open it in Excel or LibreOffice and save the table as .xlsx or CSV UTF-8"
_TEXT = "copy the table into a spreadsheet, and save that as CSV UTF-8"
_UNPACK = "unpack it and give the table in it"
_LFS = "fetch the file itself: git lfs pull"
# A regular expression for a file's first bytes, the name of the form, and what to do.
_STARTS: tuple[tuple[bytes, str, str], ...] = (
    (rb"SQLite format 3\x00", "an SQLite database", _SQLITE),
    (rb"\x00\x01\x00\x00Standard (Jet|ACE) DB", "an Access database", "export the table as CSV UTF-8 in Access"),
    (rb"\$FL[23]", "an SPSS file", "save it as CSV in SPSS or PSPP: SAVE TRANSLATE /OUTFILE='table.csv' /TYPE=CSV"),
    (rb"<stata_dta>|[\x69-\x73][\x01\x02]\x01\x00", "a Stata file", _PANDAS.format("read_stata")),
    (rb"\x00{12}\xc2\xea\x81\x60\xb3\x14\x11\xcf", "a SAS table", _PANDAS.format("read_sas")),
    (rb"HEADER RECORD\*{7}LIB", "a SAS transport file", _PANDAS.format("read_sas")),
    (rb"RD[AX][1-9]\n|[XA]\n\x00\x00\x00[\x02\x03]|A\n[23]\n", "an R data file", _R),
    (rb"\x89HDF\r\n\x1a\n", "an HDF5 file", _PANDAS.format("read_hdf")),
    (rb"ORC[\x00-\x1f]", "an ORC file", _PANDAS.format("read_orc")),
    (rb"Obj\x01", "an Avro file", "save it as Parquet or JSON Lines"),
    (rb"\x80[\x02-\x05]", "a pickle file, which could run code when it is loaded", "save the table as CSV or Parquet"),
    (rb"\x93NUMPY", "a NumPy array", "save texts and labels as CSV or Parquet"),
    (rb"\|[^\n]*\|\s*\n\|[ :|-]+\|\s*\n", "a Markdown table", _TEXT),
    (rb"(?i)(--[^\n]*\n|/\*(?:(?!\*/).)*\*/;?|\s)*(create|insert|drop)\s+(table|into)\b", "an SQL dump", _SQL),
    (rb"%PDF-", "a PDF", _TEXT),
    (rb"\{\\rtf", "a rich text document", _TEXT),
    (rb"\x89PNG\r\n|\xff\xd8\xff|GIF8[79]a|RIFF....WEBP|II\*\x00|MM\x00\*", "an image", _IMAGE),
    (rb"\x1f\x8b|BZh[1-9]1AY|\xfd7zXZ\x00|\x28\xb5\x2f\xfd", "compressed twice", "decompress it once"),
    (rb"7z\xbc\xaf\x27\x1c|Rar!\x1a\x07", "an archive", _UNPACK),
    (rb"version https://git-lfs\.github\.com/", "a Git LFS pointer, not the file", _LFS),
    (rb"(?i)(\xef\xbb\xbf)?\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)?<(!doctype\s+html|html|head|table)\b", "HTML", _EXCEL),
    (rb"(\xef\xbb\xbf)?\s*<\?xml\s", "XML", _EXCEL),
    (rb"(\xef\xbb\xbf)?(---\s*\n|#[^\n]*\n)*- [^\s:]+: [^\n]*\n  [^\s:]+: ", "YAML", "save the records as JSON"),
    (rb"(version: [^\n]*\n\s*)?nlu:\s*\n", "Rasa's YAML", "write each example and its intent as a row of a CSV"),
    (rb"(?i)(%[^\n]*\n|\s)*@relation\s", "an ARFF file of Weka", "save it as CSV in Weka"),
)  # fmt: skip
# The same of zip archives, by the name of a file in them.
_MEMBERS: tuple[tuple[str, str, str], ...] = (
    (r"word/.+", "a Word document", _TEXT),
    (r"ppt/.+", "a PowerPoint file", _TEXT),
    (r"Index/Document\.iwa", "an Apple Numbers or Pages file", "export it as CSV UTF-8 or .xlsx"),
    (r".+/data\.pkl", "PyTorch weights", "give the table of texts and labels"),
    (r".+\.npy", "NumPy arrays", "save texts and labels as CSV or Parquet"),
)


def refuse_unread(path: str, start: bytes) -> None:
    """Raise InputError where a file with these first bytes is of a known, unsupported form."""
    for pattern, name, advice in _STARTS:
        if re.match(pattern, start, re.DOTALL):
            raise _error(path, name, advice)


def refuse_unread_archive(path: str, members: Sequence[str]) -> None:
    """Raise InputError where a zip archive with these files is such a form."""
    for pattern, name, advice in _MEMBERS:
        if any(re.fullmatch(pattern, member) for member in members):
            raise _error(path, name, advice)


def _error(path: str, name: str, advice: str) -> InputError:
    return InputError(f"{path}: this is {name}, which is not supported; {advice.format(path=path)}.")
