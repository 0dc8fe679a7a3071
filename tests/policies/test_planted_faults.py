"""Faults planted in the dispatcher, one method each: the checks of `policies.world.World` must find every one of them.

Each fault is caught by the random drivers of `test_machine` and by the exploration of `test_explore`, and in both by
the check that is meant to: the one that the table names. Without the fault the same seed and the same case pass.
"""

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from exploring import explore
from test_machine import random_setup, run

from policies.builtin import Bucketed
from policies.dispatcher import Dispatcher
from policies.hop import Hop
from policies.ledger import FEED, RECEIVED, STAGED
from policies.policy import WAIT, View
from policies.window import Window
from policies.world import Setup

SEEDS = range(200)
lose, settle, fits = Window.lose, Dispatcher._settle, Hop._fits


def forget_one(self: Window, drafter: int) -> list[int]:
    """Of what a lost drafter had, one batch is left behind."""
    return lose(self, drafter)[1:]


def end_when_nothing_waits(self: Dispatcher) -> None:
    """Batches in a worker's hand are overlooked."""
    if not self.ledger.count(FEED) and not self.ledger.count(STAGED) and self.ended is None:
        self._end("data_exhausted")
    else:
        settle(self)


def end_when_all_is_received(self: Dispatcher) -> None:
    """The last step is not waited for, nor is what it holds flushed."""
    stepping = any(window.stepping for window in self.windows)
    if self._unsettled and self.ledger.count(RECEIVED) == self._unsettled and not stepping:
        self._end("data_exhausted")
    else:
        settle(self)


def fits_one_more(self: Hop, index: int) -> bool:
    """The bound over all lanes is overrun by one."""
    if self.bound is None:
        return fits(self, index)
    self.bound += 1
    try:
        return fits(self, index)
    finally:
        self.bound -= 1


def first_bucket_first(self: Bucketed, consumer: int, view: View, skip: frozenset[int] = frozenset()) -> int:
    """The cursor is not looked at: the last bucket waits while any other has something."""
    return next((lane for lane, it in enumerate(view.lanes) if len(it) and lane not in skip), WAIT)


def serve_a_set(self: Hop) -> None:
    """Consumers are served in the order of a set, not in the order they asked."""
    moved = True
    while moved:
        moved = self.declined = False
        for consumer in set(self.waiting):
            if self._serve_one(consumer):
                self.waiting.remove(consumer)
                moved = True
        if self.held and self._admit_held():
            moved = True


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One method replaced, and what catches it."""

    owner: type
    method: str
    planted: Callable[..., object]
    caught_by: str
    """The function of `policies.world.World` that fails."""
    says: str = ""
    """Part of its message."""
    case: Setup
    """A small pipeline in which the exploration finds it."""
    losses: int = 0
    """Losses that the exploration may add."""


FAULTS = {
    "a lost batch on the loss of a consumer": Fault(
        owner=Window, method="lose", planted=forget_one, caught_by="_check_places",
        case=Setup(buckets=(0, 0), drafters=2), losses=1,
    ),
    "an early end": Fault(
        owner=Dispatcher, method="_settle", planted=end_when_nothing_waits, caught_by="_check_end",
        says="the run ended early", case=Setup(buckets=(0,)),
    ),
    "an end with a partial window": Fault(
        owner=Dispatcher, method="_settle", planted=end_when_all_is_received, caught_by="_check_end",
        says="the run ended early", case=Setup(buckets=(0, 0, 0), accumulate=2),
    ),
    "a bound that is exceeded": Fault(
        owner=Hop, method="_fits", planted=fits_one_more, caught_by="_check_capacity",
        case=Setup(buckets=(0, 1, 0, 1), policy="bucketed"),
    ),
    "a starved bucket": Fault(
        owner=Bucketed, method="_next", planted=first_bucket_first, caught_by="_count_passed_over",
        says="a bucket is passed over more than", case=Setup(buckets=(0, 1, 0, 0, 0), policy="bucketed"),
    ),
    "a tie decided by the order of a set": Fault(
        owner=Hop, method="serve", planted=serve_a_set, caught_by="_on_assign", says="asked before target",
        case=Setup(targets=2, buckets=(0, 0)),
    ),
}  # fmt: skip


def catches(fault: Fault, error: AssertionError) -> bool:
    """Whether this is the check that is meant to catch the fault."""
    functions = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    return fault.caught_by in functions and fault.says in str(error)


def first_caught(fault: Fault) -> int | None:
    """The first seed whose random run is stopped by the check that is meant to."""
    for seed in SEEDS:
        try:
            run(seed)
        except AssertionError as error:
            if catches(fault, error):
                return seed
        except Exception:  # a broken dispatcher may also break down before it is caught
            continue
    return None


@pytest.mark.parametrize("name", FAULTS)
def test_the_random_machine_catches_the_planted_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    monkeypatch.setattr(fault.owner, fault.method, fault.planted)
    seed = first_caught(fault)
    assert seed is not None, f"none of {len(SEEDS)} seeds shows {name}"
    monkeypatch.undo()
    run(seed)
    print(f"{name}: {fault.caught_by} fails with seed {seed}: {random_setup(random.Random(seed))}")


@pytest.mark.parametrize("name", FAULTS)
def test_the_exploration_catches_the_planted_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    found = explore(fault.case, fault.losses, prompt=True)
    with monkeypatch.context() as patched:
        patched.setattr(fault.owner, fault.method, fault.planted)
        with pytest.raises(AssertionError) as caught:
            explore(fault.case, fault.losses, prompt=True)
    assert catches(fault, caught.value), caught.value
    print(f"{name}: {fault.caught_by} fails in {fault.case}, which has {found.states} states without the fault")
