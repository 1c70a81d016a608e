"""What a test of this folder has measured is printed in a table at the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Note a figure, in words, for the table."""
    return lambda text: record_property("figure", text)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a line for each case that has a figure, or failed."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    rows = [
        (report.nodeid.rpartition("::")[2], report.outcome, text)
        for report in reports
        if report.when == "call"
        for name, text in report.user_properties
        if name == "figure"
    ]
    if rows:
        terminalreporter.section("figures")
    for name, outcome, text in sorted(rows):
        terminalreporter.write_line(f"{name:60} {outcome:7} {text}")
