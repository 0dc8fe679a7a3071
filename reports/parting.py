"""Why a run parts from its prediction, or from another run: the rule, and the sentence that names the side that moved.

The sides' own paces are compared, never queues or idle times, which only follow: a full queue means slow drafters or
fast targets, and does not say which of them moved. Where no pace explains it, workers wait for each other otherwise:
that is dispatch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from reports.moved import LOST, SMALL, Pace

APART: Final = 0.10
"""A run and its prediction have parted when their rates differ by more."""
TARGETS: Final = "targets"
DRAFTERS: Final = "drafters"
DISPATCH: Final = "dispatch"
TOPOLOGY: Final = "topology"
_EXPOSED: Final = 0.03
"""Copying and waiting at steps count when they grew by this share of a drafter's batch."""
_ROOM: Final = 1.1
"""A role that could do this many times what limits the run has room to spare: what moves there explains nothing."""


@dataclass(frozen=True)
class Parting:
    """The side that moved most of what limits the run."""

    side: str
    """`targets`, `drafters`, `longer data`, `shorter data`, `transfers`, `sync`, `lost workers`,
    `topology` or `dispatch`."""
    what: str
    factor: float | None
    """Of that side's own time; None where the side is not one of time."""

    def sentence(self, source: str = "the profile") -> str:
        """`drafters: step time 2.4× the profile`."""
        if self.factor is None:
            return f"{self.side}: {self.what}"
        return f"{self.side}: {self.what} {_times(self.factor)} {source}"


def parted(before: Pace, after: Pace, apart: float = APART) -> Parting | None:
    """What moved between the prediction and the run; None while their rates of slots differ by no more than `apart`.

    Of slots: where less is padded more tokens come of the same work.
    """
    was, now = _slots_per_s(before), _slots_per_s(after)
    if not was or now is None:
        return None
    rate = now / was
    return None if abs(rate - 1) <= apart else _cause(before, after, slower=rate < 1)


@dataclass(frozen=True)
class _Moved:
    """One side that moved."""

    parting: Parting
    of: str
    """The role whose rate it changes."""
    cost: float
    """Seconds that it adds to each batch of the whole pipeline, where that role limits it."""


def _cause(before: Pace, after: Pace, *, slower: bool) -> Parting:
    """The side that moved in the run's direction and cost most, of those that limit it before the others."""
    tight = _tight(before) | _tight(after)
    moved = [each for each in _candidates(before, after) if slower == (each.cost > 0) and each.of in tight]
    if not moved:
        return Parting(DISPATCH, "no side's own time moved: workers wait for each other otherwise", None)
    # Slower: whoever limits the run now is to blame. Faster: whoever limited it before.
    limit = _limiting(after if slower else before)
    return max(moved, key=lambda each: (each.of == limit, abs(each.cost))).parting


def _candidates(before: Pace, after: Pace) -> Iterator[_Moved]:
    """All that moved."""
    slots = before.slots_per_batch or 1.0
    length = _factor(before.tokens_per_sample, after.tokens_per_sample) or 1.0
    excused = 0.0
    for side, then, now, were, are in (
        (TARGETS, before.target_s_per_slot, after.target_s_per_slot, before.targets, after.targets),
        (DRAFTERS, before.drafter_s_per_slot, after.drafter_s_per_slot, before.drafters, after.drafters),
    ):
        if not then or not now:
            continue
        cost = (now - then) * slots / max(are, 1)
        if not _explained(now / then, length):
            yield _Moved(Parting(side, "step time", now / then), side, cost)
        elif side == _limiting(after):
            excused = cost
        if are < were:
            yield _Moved(_fewer(before, after), side, then * slots * (1 / max(are, 1) - 1 / were))
        if are > were:
            yield _Moved(_more(before, after), side, then * slots * (1 / are - 1 / max(were, 1)))
    if held := after.held_s_per_batch - before.held_s_per_batch:
        # Whoever it was: at worst all the others stood until it was given up.
        yield _Moved(_fewer(before, after), _limiting(after) or DRAFTERS, held)
    for side, what, was, by in (
        ("transfers", "exposed copying", before.transfer_s_per_batch, after.transfer_s_per_batch),
        ("sync", "waiting at steps", before.sync_s_per_batch, after.sync_s_per_batch),
    ):
        batch_s = (before.drafter_s_per_slot or 0.0) * slots
        if was is not None and by is not None and batch_s and abs(by - was) > _EXPOSED * batch_s:
            factor = max(by, 1e-9) / max(was, 1e-3 * batch_s)
            yield _Moved(Parting(side, what, factor), DRAFTERS, (by - was) / max(after.drafters, 1))
    if abs(length - 1) > SMALL:
        side = "longer data" if length > 1 else "shorter data"
        tiny = 1e-9 * (length - 1)  # named where nothing else is: a longer batch alone takes no longer a slot
        yield _Moved(Parting(side, "mean length", length), _limiting(after) or DRAFTERS, excused or tiny)


def _fewer(before: Pace, after: Pace) -> Parting:
    return Parting(LOST, _workers(before, after), None)


def _more(before: Pace, after: Pace) -> Parting:
    return Parting(TOPOLOGY, _workers(before, after), None)


def _workers(before: Pace, after: Pace) -> str:
    return f"{after.targets} + {after.drafters} workers instead of {before.targets} + {before.drafters}"


def _slots_per_s(pace: Pace) -> float | None:
    filled = 1 - (pace.padding_share or 0.0)
    return None if pace.tokens_per_s is None or filled <= 0 else pace.tokens_per_s / filled


def _explained(factor: float, length: float) -> bool:
    """Whether a step time per slot is as before, or moved no more than the length alone may move it.

    Seconds per slot are a + c·length: they grow by the factor of the length at most.
    """
    low, high = min(1.0, length), max(1.0, length)
    return low * (1 - SMALL) <= factor <= high * (1 + SMALL)


def _limiting(pace: Pace) -> str | None:
    """The role with the lower rate of slots, if both are known."""
    rates = _rates(pace)
    return min(rates, key=lambda role: rates[role]) if len(rates) == 2 else None


def _tight(pace: Pace) -> set[str]:
    """The roles without room to spare; both where a rate is not known."""
    rates = _rates(pace)
    if len(rates) < 2:
        return {TARGETS, DRAFTERS}
    return {role for role, rate in rates.items() if rate <= _ROOM * min(rates.values())}


def _rates(pace: Pace) -> dict[str, float]:
    """Slots per second of each role, where its pace is known; copies and waiting at steps are the drafters'."""
    found = {}
    if pace.drafter_s_per_slot:
        apart = ((pace.transfer_s_per_batch or 0.0) + (pace.sync_s_per_batch or 0.0)) / (pace.slots_per_batch or 1.0)
        found[DRAFTERS] = pace.drafters / (pace.drafter_s_per_slot + apart)
    if pace.target_s_per_slot:
        found[TARGETS] = pace.targets / pace.target_s_per_slot
    return found


def _factor(before: float | None, after: float | None) -> float | None:
    return after / before if before and after else None


def _times(factor: float) -> str:
    return f"{factor:.1f}×" if 1.95 <= factor < 100 else f"{factor:.3g}×"
