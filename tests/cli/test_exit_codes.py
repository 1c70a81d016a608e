"""What the operating system refuses, by who can mend it."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle  # noqa: TID251
import sys
from pathlib import Path

import pytest

from classify import cli
from classify.errors import InputError, Interrupted
from classify.serving.batching import QueueFullError
from classify.tables.source import Question, QuestionError
from tests.support import tiny
from tests.support.processes import run_python


@pytest.mark.parametrize(
    ("number", "name", "code"),
    [
        (errno.EACCES, "/data/out/run.json", 2),
        (errno.EPERM, "/data/out/run.json", 2),
        (errno.EROFS, "/data/out/run.json", 2),
        (errno.ENOSPC, "/data/out/run.json", 2),
        (errno.ENOSPC, None, 2),  # write() knows a descriptor alone
        (errno.EDQUOT, None, 2),
        (errno.ENOENT, "/data/out/run.json", 2),
        (errno.ENOTDIR, "/data/out/run.json", 2),
        (errno.ENAMETOOLONG, "/data/out/run.json", 2),
        (errno.ENOENT, os.path.join(sys.prefix, "lib", "part-of-a-package"), 1),
        (errno.ENOENT, cli.__file__, 1),
        (errno.EACCES, None, 1),  # of a socket, say
        (errno.EBADF, None, 1),
        (errno.EINVAL, "/data/out/run.json", 1),
    ],
)
def test_an_error_of_the_operating_system(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, name: str | None, code: int
) -> None:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number), name)

    monkeypatch.setattr("classify.commands.train.run", fail)
    assert cli.main(["--data", "my.csv"], "run_classify.py") == code
    where = f"{name}: " if name else ""
    hint = "; the temporary folder may be full (TMPDIR)" if (number, name) == (errno.ENOSPC, None) else ""
    assert capsys.readouterr().err == f"error: {where}{os.strerror(number)}{hint}\n"


def test_an_error_is_printed_where_standard_output_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after `| head`, or on a full disk."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    stream.write("a line in its buffer")
    monkeypatch.setattr(sys, "stdout", stream)
    assert cli.fail("what is wrong", 2, debug=False) == 2
    assert capsys.readouterr().err == "error: what is wrong\n"
    with contextlib.suppress(OSError):
        stream.close()


@pytest.mark.parametrize(
    "error",
    [
        InputError("one fault", "another"),
        QuestionError("my.csv", [Question("which column", ("'a'", "'b'"), ("--text-column a",))], "a hint"),
        Interrupted("interrupted", 15),
        QueueFullError(),
    ],
)
def test_errors_survive_a_pickle(error: Exception) -> None:
    """Joblib and multiprocessing send them from their workers."""
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(copy) is type(error)
    assert (str(copy), copy.__dict__) == (str(error), error.__dict__)


def test_a_file_that_hides_a_librarys_module_is_named(tmp_path: Path) -> None:
    tiny.write_table(tmp_path / "my.csv", tiny.table_rows(60))
    (tmp_path / "random.py").write_text("numbers = [4]\n")
    done = run_python(tmp_path, "-m", "classify", "inspect", "--data", "my.csv")
    assert done.returncode == 2
    assert "random.py hides the module 'random' that a library needs; rename it" in done.stderr
