"""The stop protocols of the field: the smallest failing case of each broken one, and none of the classic's."""

import pytest

from tests.conftest import Visited
from tests.specimens.explorer import BLOCKED, HANG, LIVELOCK, LOST, Case, Size, sizes, smallest
from tests.specimens.protocols import BROKEN, CLASSIC, Protocol

BOUND = sizes(targets=3, drafters=3, batches=4, capacity=2)
FOUND = {
    "one None per target": ((1, 2, 0, 1), (HANG,)),
    "Nones placed up front": ((1, 1, 1, 1), (LOST,)),
    "a bounced None": ((1, 1, 0, 1), (LIVELOCK,)),
    "a None put without waiting": ((1, 1, 1, 1), (HANG,)),
    "two targets believe they are last": ((2, 2, 0, 1), (BLOCKED,)),
}
"""(targets, drafters, batches, capacity) of the smallest failing case, and what goes wrong there."""
FIRST = {
    "one None per target": {HANG: (1, 2, 0, 1), LOST: (2, 1, 1, 1), BLOCKED: (2, 1, 1, 1)},
    "Nones placed up front": {LOST: (1, 1, 1, 1), BLOCKED: (1, 1, 2, 1)},
    "a bounced None": {LIVELOCK: (1, 1, 0, 1)},
    "a None put without waiting": {HANG: (1, 1, 1, 1)},
    "two targets believe they are last": {BLOCKED: (2, 2, 0, 1)},
}
"""Every kind of failure within the bound, and the smallest case that shows it."""


def name(protocol: Protocol) -> str:
    return protocol.name


@pytest.mark.parametrize("protocol", BROKEN, ids=name)
def test_each_broken_protocol_is_caught_at_its_smallest_case(protocol: Protocol) -> None:
    failure = smallest(protocol, BOUND)
    assert failure is not None
    print(failure.schedule)
    assert (failure.size, failure.kinds) == FOUND[protocol.name]


@pytest.mark.parametrize("protocol", BROKEN, ids=name)
def test_each_broken_protocol_fails_in_the_known_ways_and_in_no_other(protocol: Protocol) -> None:
    first: dict[str, Size] = {}
    for size in BOUND:
        for kind, failure in Case(protocol, size).failures().items():
            if kind not in first:
                first[kind] = size
                print(failure.schedule)
    assert first == FIRST[protocol.name]


def passes(cases: list[Size], visited: Visited) -> None:
    """The classic passes each of them."""
    for size in cases:
        case = Case(CLASSIC, size)
        visited(f"{CLASSIC.name}: {size}", case.states)
        assert not case.failures(), size


def test_the_classic_passes_every_case_within_the_bound(visited: Visited) -> None:
    passes(BOUND, visited)


@pytest.mark.slow
def test_the_classic_passes_larger_cases_too(visited: Visited) -> None:
    passes(sizes(targets=5, drafters=5, batches=7, capacity=3), visited)


def test_a_schedule_reads_as_what_each_worker_did() -> None:
    failure = smallest(BROKEN[0], [Size(2, 1, 1, 1)])
    assert failure is not None and failure.kinds == (LOST, BLOCKED)
    lines = failure.schedule.splitlines()
    assert lines[0] == (
        "one None per target: 2 targets, 1 drafter, 1 batch, capacity 1: batch lost, target blocked for ever"
    )
    assert [line.split("  queue")[0].strip() for line in lines[1:-1]] == [
        "target 0 computes batch 0",
        "target 1 finds no work left",
        "target 1 puts None and leaves",
        "drafter 0 takes None and leaves",
        "target 0 puts batch 0",
        "target 0 finds no work left",
    ]
    assert lines[-1] == "  never trained: 1 of 1; target 0 waits for ever to put"
