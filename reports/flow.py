"""Progress over time from a trace's columns: commits, throughput in bins, the ETA as it was estimated over the run."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reports.recorded import Recorded
from reports.statistics import Eta, remaining_time

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

_MOMENTS: Final = 40
"""At how many moments of a run its ETA is estimated again."""
_INSTANTS: Final = 20
"""A rate over fewer instants shows how they fall, not the pace; a short run must do with fewer."""
_BINS: Final = 240


@dataclass(frozen=True, eq=False)
class Commits:
    """The optimizer steps of a run, W in order."""

    time_s: F64
    tokens: I64
    samples: I64
    length: F64
    """Mean length of the step's batches."""
    buckets: I64
    """How many buckets are in it."""
    firsts: list[int]
    """The commit in which each drafter's first batch was."""


@dataclass(frozen=True, eq=False)
class Rate:
    """Tokens per second in K stretches of time, each from one instant of commits to a later one."""

    edges: F64
    """float64[K + 1], from 0 to the last commit."""
    tokens_per_s: F64
    instants: int
    """Instants of commits in each stretch; fewer in the last."""


@dataclass(frozen=True, eq=False)
class EtaHistory:
    """The total time as it was estimated at M moments; NaN where nothing supports a bound."""

    at_s: F64
    total_s: F64
    low_s: F64
    high_s: F64
    truth_s: float | None
    """When all data were trained; None where the run ended before."""


def commits(recorded: Recorded) -> Commits:
    """What each optimizer step trained."""
    rows = recorded.rows("commit")
    step, batch = recorded.step[rows], recorded.batch[rows]
    first = np.flatnonzero(np.append(True, step[1:] != step[:-1])[: len(rows)])
    plan = recorded.plan
    if not len(first):
        none = np.zeros(0, np.int64)
        return Commits(none.astype(np.float64), none, none, none.astype(np.float64), none, [])
    sizes = np.diff(np.append(first, len(rows)))
    number = np.repeat(np.arange(len(first)), sizes)
    return Commits(
        time_s=recorded.time_s[rows[first]],
        tokens=np.add.reduceat(plan["tokens"][batch], first),
        samples=np.add.reduceat(plan["samples"][batch], first),
        length=np.add.reduceat(plan["length"][batch], first) / sizes,
        buckets=_distinct(number, plan["bucket"][batch], len(first)),
        firsts=_firsts(recorded, number, batch),
    )


def rate_over_time(done: Commits) -> Rate:
    """Trained tokens per second between instants of commits.

    Bins of equal width would hold now one commit more, now one less, and show that as a change of pace.
    """
    instants, which = np.unique(done.time_s, return_inverse=True)
    tokens = np.bincount(which, weights=done.tokens, minlength=len(instants))
    some = max(-(-len(instants) // _BINS), min(_INSTANTS, max(len(instants) // 12, 1)))
    starts = np.arange(0, len(instants), some)
    sums = np.add.reduceat(tokens, starts) if len(starts) else tokens
    last = np.minimum(starts + some, len(instants)) - 1
    edges = np.append(0.0, instants[last])
    if len(edges) > 1 and edges[1] == 0.0:  # everything in no time at all
        return Rate(np.zeros(1), np.zeros(0), some)
    return Rate(edges, sums / np.diff(edges), some)


def eta_history(done: Commits, planned_tokens: int, end_s: float, complete: bool) -> EtaHistory:
    """What `reports.statistics.remaining_time` said at moments spread over the run; `complete`: all was trained."""
    count = len(done.time_s)
    cuts = np.unique(np.linspace(1, count, min(_MOMENTS, count)).astype(np.int64)) if count else np.zeros(0, np.int64)
    tokens, total = done.tokens.astype(np.float64), np.cumsum(done.tokens)
    found = []
    for cut in cuts.tolist():
        left = float(planned_tokens - total[cut - 1])
        firsts = [first for first in done.firsts if first < cut]
        estimate = remaining_time(done.time_s[:cut], tokens[:cut], left, firsts=firsts)
        now = float(done.time_s[cut - 1])
        if isinstance(estimate, Eta):
            bounds = (np.nan if bound is None else now + bound for bound in (estimate.low, estimate.high))
            found.append((now, now + estimate.seconds, *bounds))
    at_s, total_s, low_s, high_s = np.array(found, np.float64).reshape(-1, 4).T
    return EtaHistory(at_s, total_s, low_s, high_s, truth_s=end_s if complete else None)


def owners(recorded: Recorded) -> NDArray[np.int16]:
    """The drafter that each batch was delivered to last; -1 where it never was."""
    rows = recorded.rows("deliver")
    owner = np.full(recorded.header.planned, -1, np.int16)
    owner[recorded.batch[rows]] = recorded.worker[rows]
    return owner


def _distinct(number: I64, bucket: I64, count: int) -> I64:
    """How many different buckets each step holds."""
    pairs = np.unique(number * (int(bucket.max()) + 1) + bucket) // (int(bucket.max()) + 1)
    return np.bincount(pairs, minlength=count)


def _firsts(recorded: Recorded, number: I64, batch: NDArray[np.int32]) -> list[int]:
    owner = owners(recorded)[batch]
    drafters, first = np.unique(owner, return_index=True)
    return sorted(number[first[drafters >= 0]].tolist())
