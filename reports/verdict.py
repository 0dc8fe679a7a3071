"""What bounds a run, in a word and in a sentence that a person can act on."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from reports.metrics import BLOCKED, BUSY, STARVED, SYNC, TRANSFER, Life, Metrics, WorkerMeter
from reports.statistics import SteadyRate

NEAR: Final = 0.97
"""A run within 3 % of the smallest solo rate uses it; two rates within 3 % are balanced."""
_EXPLAINS: Final = 0.5
"""Share of what a run gave less than its workers could that drafters' waiting must explain to be told as the cause.

If drafters had waited for none of it, they computed all the time, and slower than their mean in the steady time.
"""
_LISTED: Final = 8
"""More workers than these are counted and not named."""
_INFINITE: Final = float("inf")
_TRY: Final = "compare the policies: `dflash-sim compare`"
_ONLY: Final = "with one target and one drafter no policy gives more"


@dataclass(frozen=True)
class Verdict:
    """`bottleneck` is None without a steady rate; `text` says why then, too."""

    bottleneck: str | None
    text: str


@dataclass(frozen=True)
class SoloRates:
    """Tokens per second of each role if nothing ever made it wait; infinite where it took no time."""

    targets: float
    drafters: float
    feed: float

    def lowest(self) -> float:
        return min(self.targets, self.drafters, self.feed)


@dataclass(frozen=True)
class Rates:
    """What a run or a simulation gave, in tokens/s."""

    whole: float
    steady: float | None


@dataclass(frozen=True)
class Alternative:
    """What another policy would bring for the same work, from a simulation."""

    policy: str
    tokens_per_s: float
    gain: float
    """Relative to the run, see `cautious`: 0.115 is 11.5 % more."""


@dataclass(frozen=True)
class _Crew:
    """The workers' times as of one moment, the same for every sentence."""

    targets: Sequence[Life]
    drafters: Sequence[Life]


def solo_rates(metrics: Metrics, steady: SteadyRate) -> SoloRates:
    """The summed solo rates, warm-up left out; of a worker that was lost for its part of the steady time only."""
    feed = metrics.loaded_tokens / metrics.loader_busy if metrics.loader_busy > 0 else _INFINITE
    stands = metrics.ended in (None, "deadlock")  # who was at work then hung, although nobody says that it is lost

    def summed(meters: Iterable[WorkerMeter]) -> float:
        return _summed([(_solo(each), _presence(each, steady, stands or each.lost)) for each in meters])

    return SoloRates(summed(metrics.targets), summed(metrics.drafters), feed)


def judge(
    metrics: Metrics,
    steady: SteadyRate | None,
    alternatives: Sequence[Alternative] = (),
    *,
    now: float | None = None,
) -> Verdict:
    """The verdict by the contract's rule. `now`: the time of a run that goes on; None: it is over."""
    if steady is None:
        return Verdict(None, "no verdict: the run is too short to tell its steady rate from its warm-up")
    crew, rates = _crew(metrics, metrics.now if now is None else now), solo_rates(metrics, steady)
    if steady.rate < NEAR * rates.lowest():
        idle = _idle(crew)
        if rates.drafters < _INFINITE and idle < _EXPLAINS * (1 - steady.rate / rates.lowest()):
            return Verdict("dispatch", _slower_then(steady.rate, rates, idle))
        return _lost_time(crew, steady.rate, rates, alternatives)
    ranked = sorted([(rates.targets, "targets"), (rates.drafters, "drafters"), (rates.feed, "feed")])
    (low, name), (next_low, next_name) = ranked[0], ranked[1]
    if next_low <= low / NEAR:
        both = f"{name} ({ktok(low)}) and {next_name} ({ktok(next_low)})"
        return Verdict("balanced", f"balanced: {both} could both do no more; add to both or to neither")
    return Verdict(name, _BOUND[name](crew, rates))


def cautious(base: Rates, changed: Rates) -> float:
    """The gain of a change: the smaller of what the steady and the whole run's rate say, 0 where they disagree.

    A quick simulation is short: its steady rate depends on where its warm-up is cut, its whole rate on its ends.
    """
    if base.whole <= 0:
        return 0.0
    gains = [changed.whole / base.whole - 1]
    if base.steady and changed.steady:
        gains.append(changed.steady / base.steady - 1)
    return min(gains, key=abs) if min(gains) * max(gains) > 0 else 0.0


def ktok(rate: float) -> str:
    """A rate as people say it; below 10 tokens/s (batches of one token) the plain number."""
    if rate == _INFINITE:
        return "no limit"
    if rate >= 1e6:
        return f"{rate / 1e6:.2f} Mtok/s"
    return f"{rate / 1e3:.2f} Ktok/s" if rate >= 1e3 else f"{rate:.3g} tok/s"


def _crew(metrics: Metrics, now: float) -> _Crew:
    targets, drafters = ([metrics.life(each, now) for each in role] for role in (metrics.targets, metrics.drafters))
    return _Crew(targets, drafters)


def _summed(rates: Sequence[tuple[float | None, float]]) -> float:
    """Of (rate, presence); without a batch of its own a worker counts as the mean of the others."""
    known = [rate for rate, _ in rates if rate is not None]
    if not known or not any(there for _, there in rates):
        return _INFINITE
    mean = sum(known) / len(known)
    return sum(there * (mean if rate is None else rate) for rate, there in rates if there > 0)


def _presence(meter: WorkerMeter, steady: SteadyRate, gone: bool) -> float:
    """Share of the steady time in which the worker was there; one that hung was not there any more."""
    whole = steady.end_s - steady.start_s
    if not gone or meter.end is None or whole <= 0:
        return 1.0
    return min(max((meter.end - meter.unfinished - steady.start_s) / whole, 0.0), 1.0)


def _solo(meter: WorkerMeter) -> float | None:
    """One worker's rate over its working time after its first batch; None if it never had a batch.

    What it did not finish is left out, and what a drafter that was then lost held up: both may last as long as the
    watchdog waits, and say nothing of how fast a worker is. So is a drafter's time after the last batch was given
    out, as in the steady rate: alone on a machine that it shared it would be faster.
    """
    if not meter.batches:
        return None
    seconds = meter.seconds[BUSY] + meter.seconds[TRANSFER] - meter.unfinished - meter.awaited_busy
    tokens, batches = meter.tokens, meter.batches
    if 1 < meter.fed_batches < batches and not meter.awaited_busy:
        seconds, tokens, batches = meter.fed_working, meter.fed_tokens, meter.fed_batches
    if batches > 1:
        tokens, seconds = tokens - meter.first_tokens, seconds - meter.first_working
    return tokens / seconds if seconds > 0 else _INFINITE


def _lost_time(crew: _Crew, steady: float, rates: SoloRates, alternatives: Sequence[Alternative]) -> Verdict:
    drafters = _living(crew.drafters)
    sync, starved = (sum(each(life) * life.length for life in drafters) for each in (_waits, _starves))
    hung = sum(_awaits(life) * life.length for life in drafters)
    could = f"{ktok(steady)} of the {ktok(rates.lowest())} that the workers could do"
    if hung > max(sync, starved):
        worst = max(drafters, key=_awaits)
        waits = f"{worst.meter.name} waited {_awaits(worst):.0%} of the time for drafters that were lost"
        return Verdict("sync", f"sync: {could}; {waits}; a shorter `stop.watchdog_s` gives up sooner one that hangs")
    if sync > starved:
        worst = max(drafters, key=_waits)
        text = f"sync: {could}; {worst.meter.name} waits {_waits(worst):.0%} of the time for the others at steps"
        return Verdict("sync", text + _advice(alternatives, "drafters of equal speed would help"))
    worst = max(drafters, key=_starves)
    text = f"dispatch: {worst.meter.name} is idle {_starves(worst):.0%} of the time"
    blocked = [life for life in _living(crew.targets) if life.share(BLOCKED) >= 0.01]
    if blocked:
        mean = sum(life.share(BLOCKED) for life in blocked) / len(blocked)
        names = _named([life.meter for life in blocked])
        text += f" while {names} {'is' if len(blocked) == 1 else 'are'} blocked {mean:.0%}"
    if len(crew.targets) == len(crew.drafters) == 1:
        return Verdict("dispatch", f"{text}: {could}; {_ONLY}")
    otherwise = "no policy tried gives more" if alternatives else _TRY
    return Verdict("dispatch", f"{text}: {could}" + _advice(alternatives, otherwise))


def _starves(life: Life) -> float:
    return life.share(STARVED)


def _waits(life: Life) -> float:
    """Share of its life in which it waited at steps for drafters that lived."""
    return life.share(SYNC) - life.meter.awaited_sync / life.length if life.length > 0 else 0.0


def _awaits(life: Life) -> float:
    """Share of its life in which it waited for drafters that were then lost."""
    awaited = life.meter.awaited_sync + life.meter.awaited_busy
    return awaited / life.length if life.length > 0 else 0.0


def _idle(crew: _Crew) -> float:
    """Share of the living drafters' time in which they waited: for batches, at steps, for those that were lost."""
    drafters = _living(crew.drafters)
    whole = sum(life.length for life in drafters)
    waited = sum((_starves(life) + _waits(life) + _awaits(life)) * life.length for life in drafters)
    return waited / whole if whole > 0 else 0.0


def _slower_then(steady: float, rates: SoloRates, idle: float) -> str:
    return (
        f"dispatch, by the rates alone: drafters wait {idle:.0%} of the time only, and gave {ktok(steady)} in the "
        f"steady time where all their batches tell {ktok(rates.drafters)}: "
        "they computed slower then, and no policy helps"
    )


def _advice(alternatives: Sequence[Alternative], otherwise: str) -> str:
    best = max(alternatives, key=lambda other: other.gain, default=None)
    if best is None or best.gain < 0.005:
        return f"; {otherwise}"
    return f"; `{best.policy}` would give {best.gain:+.1%}"


def _named(meters: Sequence[WorkerMeter]) -> str:
    if len(meters) > _LISTED:
        return f"{len(meters)} {meters[0].role}s"
    numbers = [meter.name.partition("/")[2] for meter in meters]
    if len(numbers) == 1:
        return f"{meters[0].role} {numbers[0]}"
    return f"{meters[0].role}s {', '.join(numbers[:-1])} and {numbers[-1]}"


def _living(lives: Sequence[Life]) -> Sequence[Life]:
    """Without the lost, if others are left: until a hung worker is given up, its time in its last state is no work."""
    return [life for life in lives if not life.meter.lost] or lives


def _mean(lives: Sequence[Life], state: int) -> float:
    """Share of the living workers' summed lifetimes in a state."""
    living = _living(lives)
    whole = sum(life.length for life in living)
    return sum(life.seconds[state] for life in living) / whole if whole else 0.0


def _targets_bound(crew: _Crew, rates: SoloRates) -> str:
    return (
        f"targets: they give {ktok(rates.targets)}, the drafters could take {ktok(rates.drafters)} "
        f"and are starved {_mean(crew.drafters, STARVED):.0%} of the time; another target would help, "
        "another drafter would not"
    )


def _drafters_bound(crew: _Crew, rates: SoloRates) -> str:
    copying = _mean(crew.drafters, TRANSFER)
    copies = f", {copying:.0%} of their time is exposed copying" if copying >= 0.02 else ""
    return (
        f"drafters: they take {ktok(rates.drafters)}{copies}, the targets could give {ktok(rates.targets)} "
        f"and are blocked {_mean(crew.targets, BLOCKED):.0%} of the time; another or a faster drafter would "
        "help, another target or a deeper queue would not"
    )


def _feed_bound(crew: _Crew, rates: SoloRates) -> str:
    return (
        f"feed: the loader gives {ktok(rates.feed)}, the targets could take {ktok(rates.targets)} and are "
        f"starved {_mean(crew.targets, STARVED):.0%} of the time; a faster loader would help"
    )


_BOUND: Final[dict[str, Callable[[_Crew, SoloRates], str]]] = {
    "targets": _targets_bound,
    "drafters": _drafters_bound,
    "feed": _feed_bound,
}
