"""Write docs/settings.md, which lists every flag: python -m tests.support.settings_page."""

from __future__ import annotations

from pathlib import Path

from classify.config.fields import choices, shown_name
from classify.config.parser import GROUPS, own_options
from classify.config.run_config import FIELDS, HINTS

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
_HEAD = """# Settings

Each flag of `classify train`. A YAML file for `--config` has them as keys, without `--`; a flag overrides it.
From Python they are keyword arguments: `classify.train("my.csv", epochs=3)`. `--help-all` prints the same list.
"""


def render() -> str:
    """Return the page."""
    parts = [_HEAD]
    for title, kind in GROUPS.items():
        rows = map(_row, own_options(kind))
        parts.append("\n".join([f"## {title}\n", "| flag | default | |", "|---|---|---|", *rows, ""]))
    return "\n".join(parts)


def _row(name: str) -> str:
    spec = FIELDS[name][1]
    default = "" if spec.default is None else f"`{spec.default}`"
    if isinstance(spec.default, bool):
        default = "on" if spec.default else "off"
    text = spec.metadata["help"].replace("|", "\\|")
    if any(value not in text for value in choices(HINTS[name])):
        text += f": {', '.join(choices(HINTS[name]))}"
    return f"| `{shown_name(spec)}` | {default} | {text} |"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
