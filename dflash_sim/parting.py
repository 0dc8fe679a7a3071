"""Why a run parts from its prediction: the rule, and the sentence that names the side that moved.

The sides' own paces are compared, never queues or idle times, which only follow: a full queue means slow drafters or
fast targets, and does not say which of them moved.
"""

from dataclasses import dataclass
from math import log
from typing import Final

from reports.moved import SMALL, Pace

APART: Final = 0.10
"""A run and its prediction have parted when their rates differ by more."""
_EXPOSED: Final = 0.03
"""Copying and waiting at steps count when they grew by this share of a drafter's batch."""


@dataclass(frozen=True)
class Parting:
    """The side that moved most of what limits the run."""

    side: str
    """`targets`, `drafters`, `longer data`, `shorter data`, `transfers`, `sync`, `topology` or `dispatch`."""
    what: str
    factor: float | None
    """Of that side's own time; None where the side is not one of time."""

    def sentence(self, source: str = "the profile") -> str:
        """`drafters: step time 2.4× the profile`."""
        if self.factor is None:
            return f"{self.side}: {self.what}"
        return f"{self.side}: {self.what} {_times(self.factor)} {source}"


def parted(before: Pace, after: Pace, apart: float = APART) -> Parting | None:
    """What moved between the prediction and the run; None while their rates differ by no more than `apart`."""
    if not before.tokens_per_s or after.tokens_per_s is None:
        return None
    rate = after.tokens_per_s / before.tokens_per_s
    return None if abs(rate - 1) <= apart else _cause(before, after, slower=rate < 1)


def _cause(before: Pace, after: Pace, *, slower: bool) -> Parting:
    """The side that moved in the run's direction, the one that limits it before the others."""
    moved = [each for each in _candidates(before, after) if slower == (each.factor is None or each.factor > 1)]
    if not moved:
        return Parting("dispatch", "no side's own time moved: workers wait for each other otherwise", None)
    # Slower: whoever limits the run now is to blame. Faster: whoever limited it before.
    limit = _limiting(after if slower else before)
    return max(moved, key=lambda each: (each.side == limit, _size(each)))


def _candidates(before: Pace, after: Pace) -> list[Parting]:
    """All that moved."""
    length = _factor(before.tokens_per_sample, after.tokens_per_sample) or 1.0
    found = []
    for side, then, now in (
        ("targets", before.target_s_per_slot, after.target_s_per_slot),
        ("drafters", before.drafter_s_per_slot, after.drafter_s_per_slot),
    ):
        factor = _factor(then, now)
        if factor is not None and not _explained(factor, length):
            found.append(Parting(side, "step time", factor))
    batch_s = (before.drafter_s_per_slot or 0.0) * (before.slots_per_batch or 0.0)
    for side, what, then, now in (
        ("transfers", "exposed copying", before.transfer_s_per_batch, after.transfer_s_per_batch),
        ("sync", "waiting at steps", before.sync_s_per_batch, after.sync_s_per_batch),
    ):
        if then is not None and now is not None and batch_s and abs(now - then) > _EXPOSED * batch_s:
            found.append(Parting(side, what, max(now, 1e-9) / max(then, 1e-3 * batch_s)))
    if abs(length - 1) > SMALL:
        found.append(Parting("longer data" if length > 1 else "shorter data", "mean length", length))
    if after.targets < before.targets or after.drafters < before.drafters:
        workers = f"{after.targets} + {after.drafters} workers instead of {before.targets} + {before.drafters}"
        found.append(Parting("topology", workers, None))
    return found


def _explained(factor: float, length: float) -> bool:
    """Whether a step time per slot is as before, or moved no more than the length alone may move it.

    Seconds per slot are a + c·length: they grow by the factor of the length at most.
    """
    low, high = min(1.0, length), max(1.0, length)
    return low * (1 - SMALL) <= factor <= high * (1 + SMALL)


def _limiting(pace: Pace) -> str | None:
    """The side with the lower rate of slots, if both are known."""
    if not pace.target_s_per_slot or not pace.drafter_s_per_slot:
        return None
    targets, drafters = pace.targets / pace.target_s_per_slot, pace.drafters / pace.drafter_s_per_slot
    return "targets" if targets < drafters else "drafters"


def _size(each: Parting) -> float:
    return abs(log(each.factor)) if each.factor else 0.0


def _factor(before: float | None, after: float | None) -> float | None:
    return after / before if before and after else None


def _times(factor: float) -> str:
    return f"{factor:.1f}×" if 1.95 <= factor < 100 else f"{factor:.3g}×"
