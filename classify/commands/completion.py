"""Print a script that completes commands and flags in a shell."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from classify.commands import COMMANDS, load_command
from classify.config.parser import Parser, known_flags
from classify.errors import InputError


def make_parser(program: str) -> Parser:
    parser = Parser(
        prog=program,
        usage=f"{program} bash|zsh|fish",
        description=f"Print a completion script: `source <({program} bash)`, or in fish `{program} fish | source`.",
    )
    parser.add_argument("shell", nargs="?", metavar="SHELL", help="bash, zsh or fish")
    return parser


def run(arguments: Sequence[str], program: str) -> int:
    shell = make_parser(program).parse(arguments).shell
    if shell not in _SCRIPTS:
        raise InputError(f"{program}: expected bash, zsh or fish. Got {shell or 'nothing'} instead.")
    flags = {name: sorted({*known_flags(load_command(name).make_parser(name))}) for name in COMMANDS}
    print(_SCRIPTS[shell](flags))
    return 0


def _bash(flags: dict[str, list[str]]) -> str:
    cases = "\n".join(f"        {name}) words={shlex.quote(' '.join(listed))} ;;" for name, listed in flags.items())
    return f"""_classify() {{
    local words current=${{COMP_WORDS[COMP_CWORD]}}
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W {shlex.quote(" ".join(flags))} -- "$current"))
        return
    fi
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    case "$current" in
        -*) COMPREPLY=($(compgen -W "$words" -- "$current")) ;;
        *) COMPREPLY=($(compgen -f -- "$current")) ;;
    esac
}}
complete -o filenames -F _classify classify"""


def _zsh(flags: dict[str, list[str]]) -> str:
    return f"autoload -U +X bashcompinit && bashcompinit\n{_bash(flags)}"


def _fish(flags: dict[str, list[str]]) -> str:
    lines = [f"complete -c classify -n __fish_use_subcommand -f -a {name}" for name in flags]
    for name, listed in flags.items():
        seen = f"-n '__fish_seen_subcommand_from {name}'"
        lines += [f"complete -c classify {seen} -l {flag.removeprefix('--')}" for flag in listed]
    return "\n".join(lines)


_SCRIPTS: dict[str, Callable[[dict[str, list[str]]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
