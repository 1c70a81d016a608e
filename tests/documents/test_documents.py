"""docs/distributed.md, docs/hardware.md and docs/data.md: what they name is there, and the translation keeps step."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support import python_page, settings_page
from tests.support.documents import DISTRIBUTED, commands
from tests.support.processes import ROOT

HARDWARE = DISTRIBUTED.with_name("hardware.md")
DATA = DISTRIBUTED.with_name("data.md")
TESTS = DISTRIBUTED.with_name("tests.md")
TRANSLATION = DISTRIBUTED.with_name("distributed.zh.md")


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def literals(path: Path) -> str:
    """All string constants of a file, joined."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return "\n".join(
        node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def test_the_tests_it_names_are_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TESTS.read_text(encoding="utf-8"))
    assert len(named) >= 60
    for path, name in named:
        assert name in functions(ROOT / path), f"{path}::{name}"
    for folder in re.findall(r"`(tests/corpus/\w+)`", TESTS.read_text(encoding="utf-8")):
        assert (ROOT / folder).is_dir()


def first_cells(document: Path, head: str) -> list[str]:
    rows = document.read_text(encoding="utf-8").split(head)[1].split("\n\n")[0].splitlines()[2:]
    return [re.split(r"(?<!\\)\|", row)[1].strip() for row in rows]


@pytest.mark.parametrize(
    ("document", "head"),
    [(DISTRIBUTED, "| launched by |"), (DISTRIBUTED, "| `--strategy` |"), (HARDWARE, "| hardware |"),
     (HARDWARE, "| variable |"), (HARDWARE, "| flag |"), (DATA, "| format |")],
)  # fmt: skip
def test_every_row_has_a_test(document: Path, head: str) -> None:
    tested = TESTS.read_text(encoding="utf-8")
    cells = first_cells(document, head)
    assert len(cells) >= 4
    for cell in cells:
        assert f"\n| {cell} | `tests/" in tested, cell


def test_every_row_of_hardware_names_its_status() -> None:
    rows = [line for line in HARDWARE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    rows = [row for row in rows if "| status |" not in row]
    assert len(rows) >= 18
    for row in rows:
        assert re.search(r"\b(run|mock|planned)\b", row.split("|")[-2]), row


def test_every_command_is_run_by_a_test() -> None:
    """By name in a table of commands, or, on two machines, as the lines that name the first one's address."""
    tests = ROOT / "tests" / "distributed"
    run = literals(tests / "test_launchers.py") + literals(tests / "test_schedulers.py")
    for line in commands(DISTRIBUTED):
        assert line in run or (line.startswith(("torchrun", "bash")) and "10.0.0.1" in line), line


@pytest.mark.parametrize("pattern", [r"^(#+) ", r"^```(\w+)$", r"^(\|)", r"^(- )"])
def test_the_translation_has_the_same_headings_blocks_and_rows(pattern: str) -> None:
    ours, theirs = (
        re.findall(pattern, p.read_text(encoding="utf-8"), re.MULTILINE) for p in (DISTRIBUTED, TRANSLATION)
    )
    assert ours == theirs
    assert ours


def test_the_translation_has_the_same_commands() -> None:
    assert commands(TRANSLATION) == commands(DISTRIBUTED)


def test_the_translation_has_the_same_words_of_the_program() -> None:
    """Flags, variables and code are not translated."""
    ours, theirs = (
        set(re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", p.read_text(encoding="utf-8"), flags=re.M | re.S)))
        for p in (DISTRIBUTED, TRANSLATION)
    )
    assert ours == theirs


def test_the_list_of_settings_is_that_of_the_program() -> None:
    assert settings_page.PAGE.read_text(encoding="utf-8") == settings_page.render(), settings_page.__doc__


def test_the_reference_of_python_is_that_of_the_docstrings() -> None:
    assert python_page.PAGE.read_text(encoding="utf-8") == python_page.render(), python_page.__doc__
