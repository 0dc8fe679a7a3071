"""What bounds a run, in a word and in a sentence that a person can act on."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from reports.metrics import BLOCKED, BUSY, STARVED, SYNC, TRANSFER, Metrics, WorkerMeter

NEAR: Final = 0.97
"""A run within 3 % of the smallest solo rate uses it; two rates within 3 % are balanced."""
_LISTED: Final = 8
"""More workers than these are counted and not named."""
_INFINITE: Final = float("inf")
_TRY: Final = "compare the policies: `dflash-sim compare`"


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
class Alternative:
    """What another policy would bring for the same work, from a simulation."""

    policy: str
    tokens_per_s: float
    gain: float
    """Relative to the run: 0.115 is 11.5 % more."""


def solo_rates(metrics: Metrics) -> SoloRates:
    """The summed solo rates of the workers that lived to the end, warm-up left out."""
    feed = metrics.loaded_tokens / metrics.loader_busy if metrics.loader_busy > 0 else _INFINITE
    return SoloRates(_summed(metrics.targets), _summed(metrics.drafters), feed)


def judge(metrics: Metrics, steady: float | None, alternatives: Sequence[Alternative] = ()) -> Verdict:
    """The verdict by the contract's rule; `steady` in tokens/s."""
    if steady is None:
        return Verdict(None, "no verdict: the run is too short to tell its steady rate from its warm-up")
    rates = solo_rates(metrics)
    if steady < NEAR * rates.lowest():
        return _lost_time(metrics, steady, rates, alternatives)
    ranked = sorted([(rates.targets, "targets"), (rates.drafters, "drafters"), (rates.feed, "feed")])
    (low, name), (next_low, next_name) = ranked[0], ranked[1]
    if next_low <= low / NEAR:
        both = f"{name} ({ktok(low)}) and {next_name} ({ktok(next_low)})"
        return Verdict("balanced", f"balanced: {both} could both do no more; add to both or to neither")
    return Verdict(name, _BOUND[name](metrics, steady, rates))


def ktok(rate: float) -> str:
    """A rate as people say it; below 10 tokens/s (batches of one token) the plain number."""
    if rate == _INFINITE:
        return "no limit"
    if rate >= 1e6:
        return f"{rate / 1e6:.2f} Mtok/s"
    return f"{rate / 1e3:.2f} Ktok/s" if rate >= 1e3 else f"{rate:.3g} tok/s"


def share(meter: WorkerMeter, state: int) -> float:
    """Share of the worker's lifetime in a state, 0 for one that never lived."""
    return meter.seconds[state] / meter.end if meter.end else 0.0


def _summed(meters: Iterable[WorkerMeter]) -> float:
    rates = [_solo(meter) for meter in meters if not meter.lost]
    known = [rate for rate in rates if rate is not None]
    if not known:
        return _INFINITE
    return sum(known) + (len(rates) - len(known)) * sum(known) / len(known)


def _solo(meter: WorkerMeter) -> float | None:
    """One worker's rate over its working time after its first batch; None if it never had a batch."""
    if not meter.batches:
        return None
    tokens, seconds = meter.tokens, meter.seconds[BUSY] + meter.seconds[TRANSFER]
    if meter.batches > 1:
        tokens, seconds = tokens - meter.first_tokens, seconds - meter.first_working
    return tokens / seconds if seconds > 0 else _INFINITE


def _lost_time(metrics: Metrics, steady: float, rates: SoloRates, alternatives: Sequence[Alternative]) -> Verdict:
    drafters = _living(metrics.drafters)
    sync = sum(meter.seconds[SYNC] for meter in drafters)
    starved = sum(meter.seconds[STARVED] for meter in drafters)
    could = f"{ktok(steady)} of the {ktok(rates.lowest())} that the workers could do"
    if sync > starved:
        worst = max(drafters, key=lambda meter: share(meter, SYNC))
        text = f"sync: {could}; {worst.name} waits {share(worst, SYNC):.0%} of the time for the others at steps"
        return Verdict("sync", text + _advice(alternatives, "drafters of equal speed would help"))
    worst = max(drafters, key=lambda meter: share(meter, STARVED))
    text = f"dispatch: {worst.name} is idle {share(worst, STARVED):.0%} of the time"
    blocked = [meter for meter in _living(metrics.targets) if share(meter, BLOCKED) >= 0.01]
    if blocked:
        mean = sum(share(meter, BLOCKED) for meter in blocked) / len(blocked)
        text += f" while {_named(blocked)} {'is' if len(blocked) == 1 else 'are'} blocked {mean:.0%}"
    otherwise = "no policy tried gives more" if alternatives else _TRY
    return Verdict("dispatch", f"{text}: {could}" + _advice(alternatives, otherwise))


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


def _living(meters: Sequence[WorkerMeter]) -> Sequence[WorkerMeter]:
    """Without the lost, if others are left: until a hung worker is given up, its time in its last state is no work."""
    return [meter for meter in meters if not meter.lost] or meters


def _mean(meters: Sequence[WorkerMeter], state: int) -> float:
    """Share of the living workers' summed lifetimes in a state."""
    living = _living(meters)
    whole = sum(meter.end or 0.0 for meter in living)
    return sum(meter.seconds[state] for meter in living) / whole if whole else 0.0


def _targets_bound(metrics: Metrics, steady: float, rates: SoloRates) -> str:
    return (
        f"targets: they give {ktok(rates.targets)}, the drafters could take {ktok(rates.drafters)} "
        f"and are starved {_mean(metrics.drafters, STARVED):.0%} of the time; another target would help, "
        "another drafter would not"
    )


def _drafters_bound(metrics: Metrics, steady: float, rates: SoloRates) -> str:
    copying = _mean(metrics.drafters, TRANSFER)
    copies = f", {copying:.0%} of their time is exposed copying" if copying >= 0.02 else ""
    return (
        f"drafters: they take {ktok(rates.drafters)}{copies}, the targets could give {ktok(rates.targets)} "
        f"and are blocked {_mean(metrics.targets, BLOCKED):.0%} of the time; another or a faster drafter would "
        "help, another target or a deeper queue would not"
    )


def _feed_bound(metrics: Metrics, steady: float, rates: SoloRates) -> str:
    return (
        f"feed: the loader gives {ktok(rates.feed)}, the targets could take {ktok(rates.targets)} and are "
        f"starved {_mean(metrics.targets, STARVED):.0%} of the time; a faster loader would help"
    )


_BOUND: Final[dict[str, Callable[[Metrics, float, SoloRates], str]]] = {
    "targets": _targets_bound,
    "drafters": _drafters_bound,
    "feed": _feed_bound,
}
