"""Print a script that completes commands and flags in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import shtab

from classify.commands import COMMANDS, load_command
from classify.config.parser import Parser
from classify.errors import InputError

_SHELLS = ("bash", "zsh", "fish")


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
    if shell not in _SHELLS:
        raise InputError(f"{program}: expected bash, zsh or fish. Got {shell or 'nothing'} instead.")
    parser = argparse.ArgumentParser(prog="classify")
    commands = parser.add_subparsers()
    for name, (_, summary) in COMMANDS.items():
        flags = load_command(name).make_parser(f"classify {name}")
        commands.add_parser(name, parents=[flags], add_help=False, help=summary)
    print(shtab.complete(parser, shell))
    return 0
