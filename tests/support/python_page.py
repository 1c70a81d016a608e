"""Write docs/python-reference.md from the docstrings of the package: python -m tests.support.python_page."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import classify
from classify import errors

PAGE = Path(__file__).parents[2] / "docs" / "python-reference.md"
_HEAD = """# Python reference

All names of the package `classify` and its errors, from their docstrings. Examples: [python.md](python.md).
"""
_ERRORS = (errors.InputError, errors.CheckpointError, errors.Interrupted, errors.ClassifyError)


def render() -> str:
    """Return the page."""
    names = [name for name in classify.__all__ if not name.startswith("__")]
    parts = [_HEAD]
    for name, found in [*((f"classify.{name}", getattr(classify, name)) for name in names), *_named_errors()]:
        parts.append(_entry("##", name, found))
        if inspect.isclass(found) and not issubclass(found, Exception):
            parts += [_entry("###", f"{name}.{member}", value) for member, value in _members(found)]
    return "\n".join(parts)


def _named_errors() -> list[tuple[str, Any]]:
    return [(f"classify.errors.{error.__name__}", error) for error in _ERRORS]


def _members(found: type) -> list[tuple[str, Any]]:
    """Return the documented public methods and properties of a class, without those that scikit-learn adds."""
    return [
        (name, value)
        for name, value in vars(found).items()
        if not name.startswith("_")
        and not name.endswith("_request")
        and inspect.getdoc(value)
        and not isinstance(value, type | str | int)
    ]


def _entry(level: str, name: str, found: Any) -> str:
    doc = inspect.cleandoc(found.__doc__ or "")
    return f"{level} {name}\n\n{_signature(name, found)}{doc}\n"


def _signature(name: str, found: Any) -> str:
    """Return the call as code; nothing for attributes and errors."""
    if not callable(found) or (isinstance(found, type) and issubclass(found, Exception)):
        return ""
    signature = inspect.signature(found)
    kept = [
        parameter.replace(annotation=parameter.empty)
        for key, parameter in signature.parameters.items()
        if key != "self"
    ]
    return f"```\n{name}{signature.replace(parameters=kept, return_annotation=signature.empty)}\n```\n\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
