"""The pages: the generated ones are current, links lead somewhere, and every command has flags that exist."""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from classify.commands import COMMANDS, load_command
from tests.support import python_page, settings_page
from tests.support.documents import DISTRIBUTED, commands
from tests.support.processes import ROOT

PAGES = [ROOT / "README.md", ROOT / "README.zh.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TYPED = re.compile(r"(?:python run_classify\.py|torchrun \S.*? run_classify\.py|\bclassify [a-z]+) [^`#|\n]*")


@pytest.mark.parametrize("page", [settings_page, python_page])
def test_generated_pages_are_current(page: object) -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.render(), page.__doc__  # type: ignore[attr-defined]


def test_every_command_of_the_guide_to_processes_is_run_by_a_test() -> None:
    """By name in a table of commands, or, on two machines, as the lines that name the first one's address."""
    run = ""
    for name in ("test_launchers.py", "test_schedulers.py"):
        tree = ast.parse((ROOT / "tests" / "distributed" / name).read_text(encoding="utf-8"))
        run += "\n".join(str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)) + "\n"
    for line in commands(DISTRIBUTED):
        assert line in run or (line.startswith(("torchrun", "bash")) and "10.0.0.1" in line), line
    assert commands(DISTRIBUTED.with_name("distributed.zh.md")) == commands(DISTRIBUTED)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        path = (page.parent / target) if target else page
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def unknown_flags(words: list[str]) -> list[str]:
    """Flags that the command does not have; of `--resume` and the helps, whose parsers end or read a run, none."""
    if "run_classify.py" in words:
        name, flags = "train", words[words.index("run_classify.py") + 1 :]
    else:
        name, flags = words[words.index("classify") + 1], words[words.index("classify") + 2 :]
    if name not in COMMANDS or {"--resume", "--help", "--help-all"} & set(flags):
        return []
    _, unknown = load_command(name).make_parser(f"classify {name}").parse_known_args(flags)
    return [word for word in unknown if word.startswith("--")]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_flags_of_every_command_exist(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In lines, cells of tables and words in the text alike."""
    monkeypatch.chdir(ROOT)
    for line in TYPED.findall(page.read_text(encoding="utf-8")):
        if " -" in line and not line.endswith("--data"):
            assert not unknown_flags(shlex.split(line.replace("...", "x").rstrip("。；，)"))), line


def test_the_commands_in_configs_have_flags_that_exist() -> None:
    service = re.search(r"^ExecStart=\S+ (.*)$", (ROOT / "configs/serve/classify.service").read_text(), re.MULTILINE)
    image = re.search(r"^CMD (\[.*\])$", (ROOT / "configs/serve/Dockerfile").read_text(), re.MULTILINE)
    assert service is not None
    assert image is not None
    job = yaml.safe_load((ROOT / "configs/cluster/pytorchjob.yaml").read_text())["spec"]["pytorchReplicaSpecs"]
    pods = [replica["template"]["spec"]["containers"][0]["command"] for replica in job.values()]
    for words in (["classify", *shlex.split(service[1])], ["classify", *json.loads(image[1])[1:]], *pods):
        assert not unknown_flags([word for word in words if word != "--resume"]), words


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_every_file_that_developers_are_sent_to_exists(page: str) -> None:
    named = set(re.findall(r"`([\w./]+\.py)`", (ROOT / page).read_text(encoding="utf-8")))
    places = [ROOT, ROOT / "classify", *(ROOT / "classify").iterdir()]
    assert [name for name in sorted(named) if not any((place / name).exists() for place in places)] == []
