"""Read a YAML file of settings, or JSON, which is YAML too. Nothing in it is executed."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import yaml

from classify.config.fields import expand_home

# The keys of a run's record, which is no file of settings.
_RECORD = {"config", "command", "versions"}


class _Loader(yaml.SafeLoader):
    """Refuses aliases, by which a few lines can stand for more values than memory holds, and a key given twice."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(
                problem="aliases (*name) are not supported", problem_mark=self.peek_event().start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if (name := str(key.value).replace("-", "_")) in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} is given twice", problem_mark=key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


def read_yaml(path: str, faults: list[str]) -> dict[str, Any]:
    """The values of a file by key, with _ for -, without empty ones; what is wrong is added to `faults`."""
    where = f"--config {path}"
    try:
        content = yaml.load(Path(expand_home(path)).read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506
    except OSError as error:
        faults.append(f"{where}: cannot be read ({error.strerror}). Give a YAML file, e.g. configs/quickstart.yaml.")
        return {}
    # A value such as 2024-02-30, or with a tag such as !!bool, raises errors of Python.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        faults.append(f"{where}{line}: not valid YAML ({problem}). Expected lines such as 'batch-size: 32'.")
        return {}
    if not isinstance(content, dict | None):
        faults.append(f"{where}: expected lines such as 'batch-size: 32'. Got a {type(content).__name__} instead.")
        return {}
    values = {str(key).replace("-", "_"): value for key, value in (content or {}).items() if value is not None}
    if values.keys() >= _RECORD:
        faults.append(f"{where}: this is the record of a run; give --like {shlex.quote(str(Path(path).parent))}.")
        return {}
    return values
