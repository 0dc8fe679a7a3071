"""Replications: seeds, paired comparisons under common random numbers, rankings, how many are needed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np

from reports.statistics import Array, Interval, Numbers, t_interval

_SAME = 1e-9
"""Relative difference below which two results count as equal."""


# ---- random numbers ----


def replication_seeds(seed: int, n: int) -> list[int]:
    """Seeds of `n` replications: the given one (one replication is the plain run), then independent ones.

    More replications extend the list and change none of it. Each seed is below 2^53, exact in any JSON
    reader.
    """
    spawned = np.random.SeedSequence(seed).spawn(max(n - 1, 0))
    return [seed, *(int(child.generate_state(1, np.uint64)[0] >> np.uint64(11)) for child in spawned)][:n]


def replications_needed(pilot: Numbers, half_width: float, confidence: float = 0.95) -> int:
    """Replications in all for an interval of mean +- `half_width`, judged from `pilot` replications.

    Stein's two-stage rule (Annals of Mathematical Statistics 16, 1945): max(n, ceil((t s / h)^2)), with s
    and t from the pilot.
    """
    interval = t_interval(pilot, confidence)
    if interval is None:
        raise ValueError(f"pilot: got {len(pilot)} replications, need at least 2 to judge their spread")
    if half_width <= 0:
        raise ValueError(f"half_width: got {half_width}, must be above 0")
    ratio = interval.half_width / half_width
    return max(interval.count, math.ceil(interval.count * ratio**2))


# ---- comparisons ----


@dataclass(frozen=True)
class Paired:
    """How b differs from a over the same replications.

    None: fewer than two of them, or (gain only) a result of a that is not above 0.
    """

    difference: Interval | None
    """b - a."""
    gain: Interval | None
    """b / a - 1."""


def paired(a: Numbers, b: Numbers, confidence: float = 0.95) -> Paired:
    """Paired t-intervals over replications with common random numbers.

    Source: Law, Simulation Modeling and Analysis, section 10.2.1.
    """
    first, second = _pairs(a, b)
    gain = t_interval(second / first - 1, confidence) if (first > 0).all() else None
    return Paired(t_interval(second - first, confidence), gain)


def _pairs(a: Numbers, b: Numbers) -> tuple[Array, Array]:
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.size != second.size:
        raise ValueError(f"got {first.size} and {second.size} replications, need the same on both sides")
    return first, second


# ---- rankings ----


class Standing(Enum):
    """How an entry stands to the one with the best mean."""

    LEADER = "leader"
    CANNOT_TELL = "cannot tell"
    BEHIND = "behind"


@dataclass(frozen=True)
class Place:
    name: str
    mean: float
    interval: Interval | None
    """Of its own mean, at the plain confidence."""
    to_leader: Interval | None
    """Of the paired difference entry - leader, widened for the number of pairs; None for the leader."""
    standing: Standing


@dataclass(frozen=True)
class Winner:
    name: str


@dataclass(frozen=True)
class CannotTell:
    """The replications do not tell these apart; the one with the best mean comes first."""

    among: tuple[str, ...]


@dataclass(frozen=True)
class Ranking:
    places: tuple[Place, ...]
    """Best mean first; equal means stay in the order given."""
    outcome: Winner | CannotTell


def rank(
    results: Mapping[str, Numbers], *, higher_is_better: bool = True, confidence: float = 0.95
) -> Ranking:
    """Who wins over the same replications, and who cannot be told from the winner.

    Each entry is compared with the leader by a paired interval. Any pair might have been the one compared,
    so the intervals hold jointly over all k (k - 1) / 2 pairs (Bonferroni). One replication tells nothing
    apart.
    """
    if not results:
        raise ValueError("results: got none, need at least one entry to rank")
    sign = -1 if higher_is_better else 1
    values = {name: np.asarray(numbers, dtype=np.float64) for name, numbers in results.items()}
    leader, *others = sorted(values, key=lambda name: sign * float(values[name].mean()))
    best = values[leader]
    joint = 1 - (1 - confidence) / max(len(values) * (len(values) - 1) // 2, 1)
    first = Place(leader, float(best.mean()), t_interval(best, confidence), None, Standing.LEADER)
    chasers = [_chaser(name, values[name], best, confidence, joint) for name in others]
    return Ranking((first, *chasers), _outcome(leader, chasers))


def _chaser(name: str, own: Array, leader: Array, confidence: float, joint: float) -> Place:
    to_leader = paired(leader, own, joint).difference
    told = to_leader is not None and _differ(to_leader, float(np.abs(leader).max()))
    standing = Standing.BEHIND if told else Standing.CANNOT_TELL
    return Place(name, float(own.mean()), t_interval(own, confidence), to_leader, standing)


def _differ(difference: Interval, scale: float) -> bool:
    # A deterministic pipeline gives intervals of no width, in which rounding would pass for a difference.
    return 0 not in difference and abs(difference.mean) > _SAME * scale


def _outcome(leader: str, chasers: list[Place]) -> Winner | CannotTell:
    level = [place.name for place in chasers if place.standing is Standing.CANNOT_TELL]
    return CannotTell((leader, *level)) if level else Winner(leader)
