"""The start of a run, before the dispatcher is asked anything, and its end, when it decides nothing any more."""

import time
from collections.abc import Callable, Iterable

from dflash_run.attendance import Attendance
from dflash_run.briefing import Briefing
from dflash_run.crew import Worker
from dflash_run.limits import Limits
from dflash_run.messages import Group


def assemble(
    people: Attendance,
    briefing: Briefing,
    limits: Limits,
    workers: Iterable[Worker],
    group: Callable[[list[int]], Group] | None,
    interrupted: Callable[[], bool],
) -> None:
    """Wait until every worker has started and is prepared: that is t = 0. `group`: the first one of these drafters."""
    until = time.monotonic() + limits.start_s
    for worker in people.wait(until, interrupted):
        people.gone[worker] = f"did not start within {limits.start_s:.0f} s"
        people.present[worker] = time.monotonic()
    everyone = list(workers)

    def started(role: str) -> tuple[int, ...]:
        return tuple(number for each, number in everyone if each == role and (each, number) not in people.gone)

    drafters = started("drafter")
    if group is not None and len(drafters) > 1:
        message = group(list(drafters))
        for drafter in drafters:
            people.send(("drafter", drafter), message)
    asked = True
    while asked and not interrupted():
        posts = list(briefing.openers(started("target"), started("drafter")))
        for worker, post in posts:
            people.busy(worker)
            people.send(worker, post)
        asked = bool(posts)
        for worker in people.wait(until, interrupted, limits.watchdog_s):
            people.gone[worker] = f"was not prepared within {limits.start_s:.0f} s"


def close(people: Attendance, briefing: Briefing, limits: Limits, *, settled: bool) -> list[tuple[Worker, str]]:
    """Ask what is still to be asked of the drafters, a last checkpoint for instance; returns who failed at it, and why.

    `settled`: no step is half applied.
    """
    failed: list[tuple[Worker, str]] = []
    asked = bool(limits.close_s)
    while asked:
        people.forget_absent()
        for worker, message in briefing.closers(tuple(people.drafters()), settled):
            people.send(worker, message)
        owing = people.forget_absent()
        for worker in owing:
            people.busy(worker)
        for worker in people.wait(time.monotonic() + limits.close_s, silent_s=limits.watchdog_s):
            people.abandon(worker)
            people.gone[worker] = f"did not close within {limits.close_s:g} s"
        for worker, why in people.gone.items():
            if worker in owing:
                failed.append((worker, why))
            people.strike(worker)
        asked = bool(owing)
    return failed
