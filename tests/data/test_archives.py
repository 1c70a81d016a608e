"""Archives with one table, and the forms that are known by their first bytes and not read."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from classify.errors import InputError
from classify.tables.formats.base import ReadOptions
from classify.tables.formats.registry import read_table
from classify.tables.source import Source

TABLE = "text,label\ngood,pos\nbad,neg\n"


def write_zip(path: Path, members: dict[str, str | bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def write_tar(path: Path, members: dict[str, str], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content.encode()))
    return path


def why_not_writable(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_table(str(path))
    (line,) = caught.value.faults
    assert "\n" not in line
    assert line.startswith(f"{path}: ")
    return line.removeprefix(f"{path}: ")


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tar.bz2", "a.tgz", "a.csv"])
def test_the_one_table_in_an_archive(tmp_path: Path, name: str) -> None:
    members = {"x/tickets.csv": TABLE, "x/README.txt": "about", "__MACOSX/x/._tickets.csv": "\0", "x/.hidden.csv": "h"}
    if ".t" in name:
        path = write_tar(tmp_path / name, members, {"a.tar": "w", "a.tar.bz2": "w:bz2"}.get(name, "w:gz"))
    else:
        path = write_zip(tmp_path / name, dict(members))
    table = read_table(str(path))
    assert table.column("text") == ["good", "bad"]
    assert table.form.startswith(f"x/tickets.csv in {name}: UTF-8 with a header, comma")
    assert table.describe_rows([1]) == f"{path} line 3"
    assert Source(str(path), "").stem == "a"
    assert [entry.name for entry in tmp_path.iterdir()] == [name], "nothing is unpacked"


def test_other_forms_in_an_archive(tmp_path: Path) -> None:
    import openpyxl

    book, sink = openpyxl.Workbook(), io.BytesIO()
    for row in [("text", "label"), ("a", "b")]:
        book.active.append(row)
    book.save(sink)
    path = write_zip(tmp_path / "a.zip", {"a.xlsx": sink.getvalue()})
    assert read_table(str(path)).column("text") == ["a"]
    path = write_zip(tmp_path / "b.zip", {"dump": '{"text": "a", "label": "b"}\n{"text": "c", "label": "b"}\n'})
    assert read_table(str(path)).column("text") == ["a", "c"]


def test_a_name_in_an_archive_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path = write_zip(tmp_path / "in" / "a.zip", {"../../evil.csv": TABLE})
    assert len(read_table(str(path))) == 2
    assert not list(tmp_path.glob("*.csv"))
    path = tmp_path / "in" / "a.tar"
    with tarfile.open(path, "w") as archive:
        entry = tarfile.TarInfo("a.csv")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(entry)
    assert "Got none instead" in why_not_writable(path)


def test_archives_that_are_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"train.csv": TABLE, "test.csv": TABLE})
    assert (
        "Got several (train.csv, test.csv) instead; unpack it, and give one of its files or the folder"
        in why_not_writable(path)
    )
    path = write_tar(tmp_path / "a.tar.gz", {f"{n}.txt": "a" for n in range(9)})
    assert "Got several (0.txt, 1.txt, 2.txt, 3.txt, 4.txt and 4 more)" in why_not_writable(path)
    assert "Got none instead" in why_not_writable(write_zip(tmp_path / "b.zip", {"a.png": "", "b.png": ""}))
    path = write_zip(tmp_path / "c.zip", {"a.csv": TABLE})
    data = bytearray(path.read_bytes())
    data[6] |= 1
    data[data.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)
    assert "'a.csv' in it is encrypted" in why_not_writable(path)
    path = write_zip(tmp_path / "d.zip", {"a.csv": TABLE * 99})
    data = bytearray(path.read_bytes())
    data[60] ^= 255
    path.write_bytes(data)
    assert "cannot be decompressed (" in why_not_writable(path)
    path = write_zip(tmp_path / "e.zip", {"a.csv": TABLE})
    path.write_bytes(path.read_bytes()[:-9])
    assert "not a readable workbook or zip archive" in why_not_writable(path)


# A file's first bytes, in the order of the registry, and what the line says of it.
STARTS: dict[str, tuple[bytes, str]] = {
    "a.db": (b"SQLite format 3\0" + bytes(99), "an SQLite database, which is not supported; export the table: sqlite3"),
    "a.mdb": (b"\0\1\0\0Standard Jet DB\0", "an Access database"),
    "a.sav": (b"$FL2@(#) SPSS DATA FILE", "an SPSS file"),
    "a.dta": (b"<stata_dta><header><release>118", "a Stata file"),
    "old.dta": (b"\x72\x02\x01\x00\x05\x00", "a Stata file"),
    "a.sas7bdat": (bytes(12) + b"\xc2\xea\x81\x60\xb3\x14\x11\xcf\xbd", "a SAS table"),
    "a.xpt": (b"HEADER RECORD*******LIBRARY HEADER RECORD", "a SAS transport file"),
    "a.rds": (gzip.compress(b"X\n\0\0\0\3\0\4"), "an R data file"),
    "a.RData": (gzip.compress(b"RDX3\nX\n"), "an R data file"),
    "a.h5": (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    "a.orc": (b"ORC\x08\x01", "an ORC file"),
    "a.avro": (b"Obj\1\4", "an Avro file"),
    "a.arff": (b"% a comment\n\n@RELATION mails\n@attribute text string\n", "an ARFF file of Weka"),
    "nlu.yml": (b'version: "3.1"\n\nnlu:\n- intent: greet\n  examples: |\n    - hi\n', "Rasa's YAML"),
    "a.pkl": (b"\x80\x04\x95\x10\0\0\0", "a pickle file"),
    "a.npy": (b"\x93NUMPY\1\0", "a NumPy array"),
    "a.pdf": (b"%PDF-1.7\n", "a PDF"),
    "a.rtf": (b"{\\rtf1\\ansi", "a rich text document"),
    "a.png": (b"\x89PNG\r\n\x1a\n", "an image"),
    "a.jpg": (b"\xff\xd8\xff\xe0", "an image"),
    "a.csv.gz.gz": (gzip.compress(gzip.compress(TABLE.encode())), "compressed twice"),
    "a.7z": (b"7z\xbc\xaf\x27\x1c\0\4", "an archive"),
    "lfs.csv": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer"),
    "a.html": (b"<!-- saved --><!DOCTYPE html>\n<html><table>", "HTML"),
    "page.csv": (b"\n<html><body>not found</body></html>", "HTML"),
    "export.xls": (b'<html xmlns:x="urn:schemas-microsoft-com:office:excel"><table>', "HTML"),
    "xml.xls": (b'<?xml version="1.0"?><?mso-application progid="Excel.Sheet"?><Workbook>', "XML"),
}


@pytest.mark.parametrize("name", STARTS)
def test_forms_that_are_named_and_not_read(tmp_path: Path, name: str) -> None:
    content, form = STARTS[name]
    for path in (tmp_path / name, tmp_path / "table.csv"):
        path.write_bytes(content)
        line = why_not_writable(path)
        assert line.startswith(f"this is {form}"), line
        assert "; " in line, "a way to a form that is read"


@pytest.mark.parametrize(
    ("members", "form"),
    [
        ({"[Content_Types].xml": "", "word/document.xml": ""}, "a Word document"),
        ({"[Content_Types].xml": "", "ppt/presentation.xml": ""}, "a PowerPoint file"),
        ({"Index/Document.iwa": ""}, "an Apple Numbers or Pages file"),
        ({"archive/data.pkl": "", "archive/data/0": ""}, "PyTorch weights"),
        ({"texts.npy": "", "labels.npy": ""}, "NumPy arrays"),
    ],
)
def test_zip_archives_that_are_documents(tmp_path: Path, members: dict[str, str | bytes], form: str) -> None:
    assert form in why_not_writable(write_zip(tmp_path / "a.zip", members))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_text_under_the_name_of_a_workbook(tmp_path: Path, encoding: str) -> None:
    """As many programs export it."""
    (tmp_path / "a.xls").write_text("text\tlabel\ngrün\tx\nrot\ty\n", encoding=encoding)
    table = read_table(str(tmp_path / "a.xls"))
    assert table.column("text") == ["grün", "rot"]
    assert "tab between columns" in table.form


@pytest.mark.parametrize(
    "content", ["ORCHID,flower\nROSE,flower\nOAK,tree\n", "text,label\n<html>,a\n<table>,b\n", "BZh,label\na,b\nc,b\n"]
)
def test_text_that_begins_like_another_form(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.csv").write_text(content)
    assert len(read_table(str(tmp_path / "a.csv"))) >= 2


def test_an_archive_for_each_part(tmp_path: Path) -> None:
    from classify.config.schema import DataConfig
    from classify.data.reading import read_tables

    write_zip(tmp_path / "train.zip", {"a.csv": TABLE + "more,pos\nless,neg\n" * 2})
    write_tar(tmp_path / "test.tar.gz", {"b.csv": TABLE})
    tables = read_tables(DataConfig(data=str(tmp_path)))
    assert tables.test is not None
    assert len(tables.test) == 2


def test_lines_of_texts_in_an_archive(tmp_path: Path) -> None:
    write_zip(tmp_path / "texts.zip", {"texts.txt": "good\nbad\n"})
    (tmp_path / "labels.txt").write_text("pos\nneg\n")
    table = read_table(str(tmp_path / "texts.zip"), options=ReadOptions(labels=str(tmp_path / "labels.txt")))
    assert table.column("label") == ["pos", "neg"]


def test_a_compressed_table_in_an_archive_is_one_of_several(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"part1.csv": TABLE, "part2.csv.gz": gzip.compress(TABLE.encode())})
    assert "Got several (part1.csv, part2.csv.gz) instead" in why_not_writable(path)
