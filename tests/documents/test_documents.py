"""docs/distributed.md, docs/hardware.md and docs/data.md: what they name is there, and the translation keeps step."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from classify.commands import COMMANDS
from classify.export.registry import TARGETS
from classify.launch.devices import ACCELERATORS, STRATEGIES
from classify.tables.read import SUFFIXES
from classify.tasks.registry import TASKS
from tests.support import python_page, settings_page
from tests.support.documents import DISTRIBUTED, commands
from tests.support.processes import ROOT

HARDWARE = DISTRIBUTED.with_name("hardware.md")
DATA = DISTRIBUTED.with_name("data.md")
TRANSLATION = DISTRIBUTED.with_name("distributed.zh.md")


def literals(path: Path) -> str:
    """All string constants of a file, joined."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return "\n".join(
        node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def test_every_row_of_hardware_names_its_status() -> None:
    rows = [line for line in HARDWARE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    rows = [row for row in rows if "| status |" not in row]
    assert len(rows) >= 17
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


WRITTEN = "\n".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize(
    ("variants", "page", "shown"),
    [
        (STRATEGIES, DISTRIBUTED, "| `{}` |"),
        (TASKS, DISTRIBUTED.with_name("tasks.md"), "`--task {}`"),
        (TARGETS, DISTRIBUTED.with_name("deploy.md"), "| `{}` |"),
        (SUFFIXES, DATA, "{}"),
        (ACCELERATORS, HARDWARE, "{}"),
    ],
)
def test_every_variant_is_documented(variants: Iterable[str], page: Path, shown: str) -> None:
    """A strategy, task, export, table format or kind of device that is registered stands on its page."""
    written = page.read_text(encoding="utf-8")
    assert [name for name in variants if shown.format(name) not in written] == []


def test_every_command_is_documented() -> None:
    assert [name for name in COMMANDS if f"classify {name}" not in WRITTEN and f"`{name}`" not in WRITTEN] == []
