"""A run beside its prediction while it goes on: how far they are apart, why, and when the run will end.

The prediction is a timeline: when how many tokens were trained in the simulation. The run's clock is laid along it by
tokens, not by time, so that data that grow longer on the way are foreseen. Warm-up is left out of both.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import fmean, linear_regression
from typing import Final, NamedTuple

from dflash_sim.prediction import Run, metrics_for
from reports.metrics import BUSY, SYNC, TRANSFER, Metrics, WorkerMeter
from reports.moved import SMALL, Pace
from reports.observer import Exchange
from reports.parting import APART, Parting, parted
from reports.statistics import SteadyRate, steady_rate

LEAST: Final = 10
"""Commits after the warm-up from which on the end is foreseen."""
SURE: Final = 20
"""Commits of each drafter from which on the run is said to have parted.

Drafters that began together commit together: over n commits of d drafters a rate is d / n off, so that fewer would
call a tenth what is chance.
"""
_WINDOW: Final = 0.25
"""Share of the run so far over which sides are compared: what is newer than that is news."""
_WINDOW_S: Final = 3_600.0
"""What is compared is no longer than this, unless too few commits came: a week's run may part on its last day."""
_EVERY_S: Final = 1.0
"""Between two looks, at least."""
_POINTS: Final = 200
"""Commits, evenly spread, that the end is foreseen from, so that a look costs the same in a long run."""
_MOMENTS: Final = 500
"""Of a simulation that are kept."""


@dataclass(frozen=True)
class Timeline:
    """Tokens trained over time."""

    times: Sequence[float]
    """Rising: when each commit came."""
    tokens: Sequence[int]
    """Trained by then."""
    end: float
    warm: int
    """Index of the commit by which every drafter had its first."""

    @classmethod
    def of(cls, metrics: Metrics, end: float) -> "Timeline":
        warm = max(metrics.firsts, default=0)
        return cls(list(metrics.times), list(accumulate(metrics.trained_tokens)), end, warm)

    def when(self, tokens: float) -> float:
        """When so many were trained, between two commits in proportion."""
        if not self.times or tokens >= self.tokens[-1]:
            return self.end if not self.times else self.times[-1]
        at = bisect_right(self.tokens, tokens)
        before, since = (self.tokens[at - 1], self.times[at - 1]) if at else (0, 0.0)
        share = (tokens - before) / (self.tokens[at] - before)
        return since + share * (self.times[at] - since)


def pace_ratio(predicted: Timeline, run: Timeline, since: int | None = None) -> float | None:
    """How much longer the run took for the tokens since its warm-up (or commit `since`); None: too few to say."""
    start = max(run.warm, since or 0)
    if len(run.times) - 1 - start < LEAST:
        return None
    taken = run.times[-1] - run.times[start]
    foreseen = predicted.when(run.tokens[-1]) - predicted.when(run.tokens[start])
    return taken / foreseen if foreseen > 0 and taken > 0 else None


def end_of(predicted: Timeline, run: Timeline) -> float | None:
    """When the run will end: what the prediction still has before it, at the run's own pace; None: too few to say.

    The pace is the slope of a line through the run's times over the foreseen ones (least squares), laid through the
    last commits. First and last commit alone would do after hundreds only: drafters that began together commit
    together, so that a tenth of a run of 250 batches was up to 3.4 % off, and by the line it is up to 1 %.
    """
    last = len(run.times) - 1
    if last - run.warm < LEAST:
        return None
    count = min(last - run.warm + 1, _POINTS)
    chosen = [run.warm + (last - run.warm) * point // (count - 1) for point in range(count)]
    foreseen = [predicted.when(run.tokens[at]) for at in chosen]
    if foreseen[-1] <= foreseen[0]:
        return None
    pace = max(linear_regression(foreseen, [run.times[at] for at in chosen]).slope, 0.0)
    recent = range(len(run.times) - LEAST, len(run.times))
    ends = [run.times[at] + max(predicted.end - predicted.when(run.tokens[at]), 0.0) * pace for at in recent]
    return max(fmean(ends), run.times[-1])


class Counted(NamedTuple):
    """What a run had done by a moment; first batches of workers (compilation) are left out of busy and worked."""

    trained: float
    """Tokens trained."""
    commits: float
    target_busy: float
    target_tokens: float
    drafter_busy: float
    drafter_tokens: float
    transfer: float
    sync: float
    batches: float
    """Of drafters."""
    held: float
    """Seconds that lost workers spent on what they never finished; these are in none of the others."""

    @classmethod
    def of(cls, metrics: Metrics, trained: int) -> "Counted":
        """`trained`: the sum of the metrics' trained tokens, which takes long to make anew in a long run."""
        drafters = metrics.drafters
        return cls(
            trained,
            len(metrics.times),
            *_worked(metrics.targets),
            *_worked(drafters),
            sum(meter.seconds[TRANSFER] - meter.in_vain(TRANSFER) for meter in drafters),
            sum(meter.seconds[SYNC] - meter.in_vain(SYNC) for meter in drafters),
            sum(meter.batches for meter in drafters),
            sum(_held(meter) for meter in (*metrics.targets, *drafters)),
        )


NOTHING: Final = Counted(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def _worked(meters: Sequence[WorkerMeter]) -> tuple[float, int]:
    warm = [meter for meter in meters if meter.batches]
    busy = sum(max(meter.seconds[BUSY] - meter.in_vain(BUSY) - meter.first_working, 0.0) for meter in warm)
    return busy, sum(meter.tokens - meter.first_tokens for meter in warm)


def _held(meter: WorkerMeter) -> float:
    """At a batch or a copy, or in a step that was not applied with it; who was blocked or starved held up nobody."""
    if not meter.lost or meter.end is None:
        return 0.0
    return meter.unfinished if meter.state != SYNC else meter.end - meter.stuck_since


class Course:
    """An observer of the simulation: what it had done at moments on the way, by an accumulator of its own."""

    def __init__(self, run: Run) -> None:
        self._metrics = metrics_for(run.pipeline, run.dispatcher, run.plan)
        self._least = int(run.plan.tokens.sum()) / _MOMENTS
        self._seen: list[Counted] = [NOTHING]
        self._trained = 0

    def observe(self, exchanges: list[Exchange]) -> None:
        """Keep a moment whenever a good deal was trained."""
        metrics = self._metrics
        for each in exchanges:
            metrics.observe([each])
            if each[1] == "commit":
                self._trained += metrics.trained_tokens[-1]
                if self._trained - self._seen[-1].trained >= self._least:
                    self._seen.append(Counted.of(metrics, self._trained))

    def over(self, name: str, since: float, until: float) -> Counted:
        """What was done while the count of this name rose from the one to the other."""
        start, end = self._at(name, since), self._at(name, until)
        return Counted(*(b - a for a, b in zip(start, end, strict=True)))

    def _at(self, name: str, value: float) -> Counted:
        """When a count was so high, between two moments in proportion."""
        seen = self._seen
        at = bisect_right(seen, value, key=lambda each: getattr(each, name))
        if at == len(seen):
            return seen[-1]
        before, after = seen[at - 1], seen[at]
        low, high = getattr(before, name), getattr(after, name)
        share = (value - low) / (high - low)
        return Counted(*(a + share * (b - a) for a, b in zip(before, after, strict=True)))


class Foresight:
    """One prediction, held beside one run. `look` may be called as often as one likes."""

    def __init__(self, predicted: Run, course: Course, run: Run) -> None:
        self._run = run
        self._course = course
        self.timeline = Timeline.of(predicted.metrics, predicted.metrics.now)
        self._seen: deque[tuple[float, Counted]] = deque([(0.0, NOTHING)])
        """From the moment that is compared with on, each that had a new commit: as many as there are seconds in the
        window or commits in the rule, however long the run."""
        self._looked_at: float | None = None
        self._times: list[float] = []
        self._tokens: list[int] = []
        self._done = Timeline(self._times, self._tokens, 0.0, 0)
        """The run so far."""
        self.warnings: list[str] = []
        """When the run first parted from its prediction because of a side, and how much that had moved."""
        self.sentence: str | None = None
        """What moved, while the run is parted from its prediction."""
        steady = steady_rate(
            predicted.metrics.times, predicted.metrics.trained_tokens, end=predicted.metrics.fed_at
        )
        self.rate = steady.rate if isinstance(steady, SteadyRate) else None
        """Predicted tokens/s, once it is steady."""
        self._named: set[tuple[str, bool]] = set()
        """Sides that were warned of and have not come back since, and whether they had grown."""
        self._apart_at = 0.0
        """When the run was last parted from its prediction."""

    def look(self, now: float) -> str | None:
        """Compare the run as of now; a warning, if there is a new one."""
        if self._looked_at is not None and now - self._looked_at < _EVERY_S:
            return None
        self._looked_at = now
        counted = self._counted()
        found = self._parting(now, counted)
        self.sentence = None if found is None else found.sentence()
        if found is None:
            if now - self._apart_at > min(_WINDOW * now, _WINDOW_S):  # together for so long: what moves again is news
                self._named.clear()
            return None
        self._apart_at = now
        named = found.side, found.factor is None or found.factor > 1
        if named in self._named:
            return None
        self._named.add(named)
        self.warnings.append(f"at {now:,.0f} s the run parted from its prediction: {found.sentence()}")
        return self.warnings[-1]

    def end(self) -> float | None:
        """When the run will end by now; None before it can be said."""
        self._counted()
        return end_of(self.timeline, self._done)

    def over_all(self) -> Parting | None:
        """What moved over the whole run by more than 3 %, warm-up left out, now that it is over."""
        return self._between(NOTHING, self._counted(), SMALL)

    def _counted(self) -> Counted:
        """As of now; what is new joins the timeline, so that a look costs the same in a long run as in a short one."""
        metrics, times, tokens = self._run.metrics, self._times, self._tokens
        for at in range(len(times), len(metrics.times)):
            times.append(metrics.times[at])
            tokens.append(metrics.trained_tokens[at] + (tokens[-1] if tokens else 0))
        self._done = Timeline(times, tokens, 0.0, max(metrics.firsts, default=0))
        return Counted.of(metrics, tokens[-1] if tokens else 0)

    def _parting(self, now: float, counted: Counted) -> Parting | None:
        least = SURE * self._run.pipeline.topology.drafters
        since = self._since(now - min(_WINDOW * now, _WINDOW_S), counted.commits - least)
        if counted.commits > self._seen[-1][1].commits:
            self._seen.append((now, counted))
        return None if counted.commits - self._done.warm < least else self._between(since, counted, APART)

    def _since(self, latest: float, most: float) -> Counted:
        """The last moment that was no later and had no more commits. Both only rise: what is before it may go."""
        seen = self._seen
        while len(seen) > 1 and seen[1][0] <= latest and seen[1][1].commits <= most:
            seen.popleft()
        return seen[0][1]

    def _between(self, since: Counted, now: Counted, apart: float) -> Parting | None:
        ratio = pace_ratio(self.timeline, self._done, max(int(since.commits) - 1, 0))
        if ratio is None:
            return None
        return parted(self._before(since, now), self._after(since, now, 1.0 / ratio), apart)

    def _before(self, since: Counted, now: Counted) -> Pace:
        """What was foreseen for the work that each side did, which for targets is ahead of what was trained."""
        course = self._course

        def over(name: str) -> Counted:
            return course.over(name, getattr(since, name), getattr(now, name))

        targets, drafters, trained = over("target_tokens"), over("drafter_tokens"), over("trained")
        by = trained._replace(
            target_busy=targets.target_busy,
            target_tokens=targets.target_tokens,
            drafter_busy=drafters.drafter_busy,
            drafter_tokens=drafters.drafter_tokens,
        )
        pace = _pace(by, self._run, 1.0)
        topology = self._run.pipeline.topology
        return replace(pace, targets=topology.targets, drafters=topology.drafters)

    def _after(self, since: Counted, now: Counted, tokens_per_s: float) -> Pace:
        return _pace(Counted(*(b - a for a, b in zip(since, now, strict=True))), self._run, tokens_per_s)


def _pace(by: Counted, run: Run, tokens_per_s: float) -> Pace:
    """The paces of what was done. Slots are tokens by the plan's own padding; data are the same on both sides."""
    tokens, slots = int(run.plan.tokens.sum()), int(run.plan.slots.sum())
    per_token = slots / tokens if tokens else 1.0
    return Pace(
        target_s_per_slot=_ratio(by.target_busy, per_token * by.target_tokens),
        drafter_s_per_slot=_ratio(by.drafter_busy, per_token * by.drafter_tokens),
        transfer_s_per_batch=_ratio(by.transfer, by.batches),
        sync_s_per_batch=_ratio(by.sync, by.batches),
        slots_per_batch=_ratio(slots, run.plan.count),
        tokens_per_sample=_ratio(tokens, int(run.plan.samples.sum())),
        padding_share=1 - tokens / slots if slots else None,
        targets=sum(not meter.lost for meter in run.metrics.targets),
        drafters=sum(not meter.lost for meter in run.metrics.drafters),
        tokens_per_s=tokens_per_s,
        held_s_per_batch=_ratio(by.held, by.commits) or 0.0,
    )


def _ratio(amount: float, per: float) -> float | None:
    return amount / per if per > 0 else None
