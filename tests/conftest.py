"""Explorations report how many states they visited; the run's last lines say how many that were in all."""

from collections.abc import Callable

import pytest

Visited = Callable[[str, int], None]
"""Reports one exploration: what was explored, and how many states it has."""


@pytest.fixture
def visited(request: pytest.FixtureRequest) -> Visited:
    """Counts the states of explorations; `-v` lists them one by one."""
    return lambda what, states: request.node.user_properties.append(("explored", (what, states)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The total and the largest set-up, if anything was explored."""
    reports = [report for each in ("passed", "failed") for report in terminalreporter.getreports(each)]
    explored = [value for report in reports for name, value in report.user_properties if name == "explored"]
    if not explored:
        return
    terminalreporter.section("explored")
    if terminalreporter.verbosity > 0:
        for what, states in explored:
            terminalreporter.write_line(f"{states:>8,} states: {what}")
    largest, most = max(explored, key=lambda each: each[1])
    total = sum(states for _, states in explored)
    terminalreporter.write_line(f"{len(explored):,} set-ups, {total:,} states; the largest has {most:,}: {largest}")
