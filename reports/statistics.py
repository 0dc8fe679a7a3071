"""Output analysis: intervals, the end of the warm-up, the steady rate and the time that remains.

Pure functions over numbers. What cannot be said has a name (`TOO_SHORT`, `NO_ESTIMATE`); an interval that
too few numbers support is None, as in the summary. Sequences may be lists, `array.array` or numpy arrays;
the latter two are not copied.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Numbers: TypeAlias = Sequence[float] | NDArray[np.floating] | NDArray[np.integer]

BATCHES: Final = 20
"""Batch means use this many batches where the run is long enough."""
MIN_INSTANTS: Final = 10
"""A steady rate needs completions at this many different instants."""

_SAME: Final = 1e-9
"""Relative difference below which two numbers count as equal: sums of rounded times differ by less."""
_LONGEST_PERIOD: Final = 64
_ETA_GROUPS: Final = 100
_CHANGE: Final = 12.0
"""F ratio at which a change of pace counts: chance alone reaches it in about one series of a hundred."""


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval."""

    mean: float
    low: float
    high: float
    count: int
    """How many samples, replications or batches it rests on."""

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Cut:
    """The warm-up ends before observation `index`."""

    index: int


@dataclass(frozen=True)
class TooShort:
    """The run is too short: nothing in it can be told from the warm-up."""


TOO_SHORT: Final = TooShort()


@dataclass(frozen=True)
class SteadyRate:
    """The long-run rate [tokens/s] over the completions in (start_s, end_s]."""

    rate: float
    interval: Interval | None
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Eta:
    """Seconds from the last completion to the end of the work.

    `low` and `high` are None while too few completions support an interval.
    """

    seconds: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class NoEstimate:
    """Nothing has completed yet."""


NO_ESTIMATE: Final = NoEstimate()


# ---- intervals ----


@lru_cache(maxsize=256)
def t_quantile(count: int, confidence: float) -> float:
    """Two-sided Student quantile for `count` samples.

    `scipy.special`, imported on first use, loads several times faster than `scipy.stats` and gives the same
    numbers.
    """
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, (1 + confidence) / 2))


def t_interval(samples: Numbers, confidence: float = 0.95) -> Interval | None:
    """Student's interval for the mean of independent samples; None with fewer than two."""
    values = _floats(samples)
    if values.size < 2:
        return None
    mean = float(values.mean())
    half = t_quantile(values.size, confidence) * float(values.std(ddof=1)) / math.sqrt(values.size)
    return Interval(mean, mean - half, mean + half, values.size)


def batch_means_interval(
    series: Numbers, batches: int = BATCHES, confidence: float = 0.95
) -> Interval | None:
    """Interval for the mean of a correlated stationary series by batch means (Law, Simulation Modeling and
    Analysis, section 9.5.3).

    A short series gets fewer batches, of two observations each; None below two batches. What does not fill
    the batches is left out at the front, where a rest of the warm-up would be.
    """
    values = _floats(series)
    count = min(batches, values.size // 2)
    if count < 2:
        return None
    size = values.size // count
    return t_interval(values[-count * size :].reshape(count, size).mean(axis=1), confidence)


# ---- the end of the warm-up ----


def mser5(series: Numbers, group: int = 5, *, noise: float = 0.0) -> Cut | TooShort:
    """Where the warm-up ends, by the marginal standard error rule on means of `group` observations (White,
    Simulation 69(6), 1997; White, Cobb and Spratt, WSC 2000).

    Of all cuts d in the first half of the m means, takes the first that minimises the sum over i >= d of
    (y_i - their mean)^2, divided by (m - d)^2. A minimum at the half itself says that even the second half
    may be warm-up: `TOO_SHORT`. So are fewer than two means. White noise gives it too, in about one run of
    ten with a dozen means and one of thirty with twenty.

    Deviations from the median up to `noise`, or up to a billionth of the median, are rounding and count as
    zero. A rest that fills no group is left out at the end.
    """
    means = _group_means(_floats(series), group)
    if means.size < 2:
        return TOO_SHORT
    half = means.size // 2
    best = int(np.argmin(_marginal_errors(_deviations(means, noise))[: half + 1]))
    if best == half:
        return TOO_SHORT
    return Cut(best * group)


def _group_means(values: Array, group: int) -> Array:
    count = values.size // group
    means: Array = values[: count * group].reshape(count, group).mean(axis=1)
    return means


def _deviations(means: Array, noise: float) -> Array:
    # From the median, not the mean: a spike must not move the origin away from the rest.
    centre = float(np.median(means))
    deviations = means - centre
    deviations[np.abs(deviations) <= max(noise, _SAME * abs(centre))] = 0.0
    return deviations


def _marginal_errors(deviations: Array) -> Array:
    # Summed from the end, so that what a cut removes has never touched the sums it is judged by.
    left = np.arange(deviations.size, 0, -1, dtype=np.float64)
    sums = np.cumsum(deviations[::-1])[::-1]
    squares = np.cumsum(deviations[::-1] ** 2)[::-1]
    return np.maximum(squares - sums**2 / left, 0.0) / left**2


# ---- completions ----


@dataclass(frozen=True)
class _Instants:
    """Completions, those of one instant together: D drafters that finish at once are one observation."""

    times: Array
    """Increasing [s]."""
    done: Array
    """Tokens completed up to and including each instant."""
    tolerance: float
    """Times closer than this [s] are the same."""
    period: int = 1
    """Gaps after which the pattern is known to repeat."""

    @property
    def gaps(self) -> int:
        return self.times.size - 1

    def since(self, start: int) -> "_Instants":
        return _Instants(self.times[start:], self.done[start:], self.tolerance)

    def pace(self) -> float:
        """Seconds per token from the first instant (its tokens left out) to the last (included)."""
        return float((self.times[-1] - self.times[0]) / (self.done[-1] - self.done[0]))


def _instants(times: Array, weights: Array) -> _Instants:
    assert times.size == weights.size, "one weight per completion"
    times, weights = times[weights > 0], weights[weights > 0]
    if not times.size:
        return _Instants(times, weights, 0.0)
    gaps = np.diff(times)
    assert not (gaps < 0).any(), "completions in order of time"
    tolerance = _SAME * float(times[-1] - times[0]) + 4 * float(np.spacing(abs(times[-1])))
    last = np.append(np.flatnonzero(gaps > tolerance), times.size - 1)
    return _Instants(times[last], np.cumsum(weights)[last], tolerance)


def _paces(instants: _Instants, group: int) -> tuple[Array, float]:
    """Seconds per token of consecutive groups of gaps, and the rounding noise in them."""
    edges = np.arange(0, instants.times.size, group)
    tokens = np.diff(instants.done[edges])
    return np.diff(instants.times[edges]) / tokens, instants.tolerance / float(np.median(tokens))


def _whole_periods(instants: _Instants) -> _Instants:
    """Drops the few first instants that exceed a whole number of periods, where the end is periodic.

    A deterministic pipeline repeats itself, and a rate over whole periods is exact. Noise never repeats and
    loses nothing.
    """
    gaps, tokens = np.diff(instants.times), np.diff(instants.done)
    for period in range(1, min(_LONGEST_PERIOD, gaps.size // 3) + 1):
        length = max(period, min(16, gaps.size // 2))
        if _repeats(gaps, period, length, 2 * instants.tolerance) and _repeats(tokens, period, length, 0.0):
            return replace(instants.since(instants.gaps % period), period=period)
    return instants


def _repeats(values: Array, period: int, length: int, tolerance: float) -> bool:
    latest, before = values[-length:], values[-length - period : -period]
    return bool((np.abs(latest - before) <= tolerance + _SAME * before).all())


def _batch_count(gaps: int) -> int:
    """Twenty; fewer in a short run, so that each spans five gaps, or two where that leaves below five."""
    return min(BATCHES, max(gaps // 5, min(5, gaps // 2)))


def _relative_error(instants: _Instants) -> tuple[float, int] | None:
    """Relative standard error of the pace and the batches behind it; None with fewer than two batches.

    Batches hold unequal work, so this is the ratio estimator's error (Cochran, Sampling Techniques, section
    6.4): with r_b = seconds_b - pace * tokens_b it is sqrt(B / (B - 1) * sum(r_b^2)) / seconds. For equal
    work it is that of batch means.
    """
    periods = instants.gaps // instants.period
    batches = min(_batch_count(instants.gaps), periods)
    if batches < 2:
        return None
    edges = np.arange(batches + 1) * periods // batches * instants.period
    seconds, tokens = np.diff(instants.times[edges]), np.diff(instants.done[edges])
    residuals = seconds - instants.pace() * tokens
    variance = batches / (batches - 1) * float(residuals @ residuals)
    return math.sqrt(variance) / float(seconds.sum()), batches


def steady_rate(
    times: Numbers, weights: Numbers, *, end: float | None = None, confidence: float = 0.95
) -> SteadyRate | TooShort:
    """Long-run rate of completions at non-decreasing `times` [s] with `weights` [tokens].

    The warm-up is found by MSER over groups of five gaps (single gaps when there are fewer than fifty) and
    left out; so is what completes after `end` (the feed ran dry). The window runs from one instant to a
    later one, an estimate free of the ends' bias for a renewal process. Fewer than `MIN_INSTANTS` instants,
    or a warm-up that reaches half of the run, are `TOO_SHORT`.
    """
    when, tokens = _floats(times), _floats(weights)
    if end is not None:
        count = int(np.searchsorted(when, end, side="right"))
        when, tokens = when[:count], tokens[:count]
    instants = _instants(when, tokens)
    if instants.times.size < MIN_INSTANTS:
        return TOO_SHORT
    group = 5 if instants.gaps >= 50 else 1
    paces, noise = _paces(instants, group)
    match mser5(paces, group=1, noise=noise):
        case Cut(index):
            return _rate_over(_whole_periods(instants.since(index * group)), confidence)
        case TooShort():
            return TOO_SHORT


def _rate_over(window: _Instants, confidence: float) -> SteadyRate:
    rate = 1 / window.pace()
    interval = None
    if (error := _relative_error(window)) is not None:
        share, batches = error
        half = t_quantile(batches, confidence) * share * rate
        interval = Interval(rate, max(rate - half, 0.0), rate + half, batches)
    return SteadyRate(rate, interval, float(window.times[0]), float(window.times[-1]))


# ---- the time that remains ----


def remaining_time(
    times: Numbers,
    weights: Numbers,
    remaining: float,
    *,
    firsts: Sequence[int] = (),
    confidence: float = 0.95,
) -> Eta | NoEstimate:
    """Seconds from the last completion until `remaining` more tokens are done; the work began at time 0.

    The pace is that of the completions after the warm-up. `firsts` are the indices of each worker's first
    completion: the window starts at the last of them once half of the completions follow it (a worker that
    joins late must not throw all evidence away). The future goes at the latest pace: all completions count
    unless a change is found, then those after it (see `_latest_regime`). While there is one instant only, or
    nothing but first completions, all that is known is the plain mean from time 0, start-up included.

    The interval is one for the time itself, not for its mean: the error of the pace, known from W tokens,
    and the chance in the R tokens to come add up to a variance in proportion to R^2 / W + R.
    """
    when, tokens = _floats(times), _floats(weights)
    done = float(tokens.sum())
    if done <= 0:
        return NO_ESTIMATE
    start = _after_firsts(when.size, firsts)
    instants = _instants(when[start:], tokens[start:])
    if instants.times.size < 2 or len(firsts) == when.size:
        return Eta(remaining * float(when[-1]) / done, None, None)
    return _eta_over(_whole_periods(_latest_regime(instants)), remaining, confidence)


def _after_firsts(count: int, firsts: Sequence[int]) -> int:
    last = max(firsts, default=0)
    return last if count - 1 - last >= count / 2 else 0


def _latest_regime(instants: _Instants) -> _Instants:
    """What follows the last change of pace, a warm-up's end included.

    Not MSER: it weighs what a cut costs in noise, so it keeps the old pace until much of the run has the new
    one. Groups grow with the run, a hundred or two of them, so that a small change shows in a long run.
    """
    while instants.times.size >= MIN_INSTANTS:
        group = max(1, instants.gaps // _ETA_GROUPS)
        change = _change(*_paces(instants, group)).index
        if change == 0:
            break
        instants = instants.since(change * group)
    return instants


def _change(paces: Array, noise: float) -> Cut:
    """Where the mean changes, by the likelihood ratio for one change (Hawkins, JASA 72, 1977); 0 if nowhere.

    Splits the sum of squares into between and within the two sides, at the best place. The last eighth (five
    at least) is never told apart: a single stall there must not pass for a new pace.
    """
    count = paces.size
    deviations = _deviations(paces, noise)
    before = np.arange(1, count - max(5, count // 8) + 1)
    surplus = np.cumsum(deviations)[before - 1] - before * deviations.mean()
    between = surplus**2 * count / (before * (count - before))
    best = int(np.argmax(between))
    within = max(float(((deviations - deviations.mean()) ** 2).sum() - between[best]), 0.0)
    return Cut(int(before[best]) if between[best] > _CHANGE * within / (count - 2) else 0)


def _eta_over(window: _Instants, remaining: float, confidence: float) -> Eta:
    seconds = remaining * window.pace()
    if (error := _relative_error(window)) is None:
        return Eta(seconds, None, None)
    share, batches = error
    known = float(window.done[-1] - window.done[0])
    chance = math.sqrt(remaining**2 + remaining * known)
    half = t_quantile(batches, confidence) * share * window.pace() * chance
    return Eta(seconds, max(seconds - half, 0.0), seconds + half)


def _floats(numbers: Numbers) -> Array:
    return np.asarray(numbers, dtype=np.float64)
