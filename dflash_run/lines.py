"""What a run says in plain lines where no terminal shows the live view: a log file, a batch job, nohup."""

import time
from collections.abc import Callable, Mapping
from typing import Final

from dflash_sim.prediction import Run
from reports.metrics import Metrics
from reports.statistics import Eta, NoEstimate, SteadyRate, remaining_time, steady_rate
from reports.table import duration
from reports.verdict import judge, ktok

FIRST_S: Final = 10.0
"""Wall seconds to the first line of progress."""
LEAST_S: Final = 30.0
MOST_S: Final = 300.0
_GROWTH: Final = 0.1
"""Between two lines passes this part of the time so far, at least `LEAST_S` and at most `MOST_S`."""
SAVED: Final = "saved_step"
"""The figure that tells of the newest checkpoint."""
EVALUATED: Final = "held_out_expected_accepted_length"


class Lines:
    """Says now and then how far a run is, and at once what happens seldom. `look` may be called at any time."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._start: float | None = None
        """Of the run, not of loading models: when it is looked at first."""
        self._due = 0.0
        self._lost: set[str] = set()
        self._saved: float | None = None
        self._evaluated: str | None = None

    def look(self, now: float, run: Run, figures: Mapping[str, float]) -> None:
        """The run as of model time `now`."""
        for news in (*self._losses(run.metrics), *self._results(figures)):
            self._say(f"at {duration(now)}: {news}")
        wall = self._clock()
        if self._start is None:
            self._start, self._due = wall, wall + FIRST_S
        elif wall >= self._due:
            self._say(progress(now, run, figures))
            self._due = wall + min(max((wall - self._start) * _GROWTH, LEAST_S), MOST_S)

    def _losses(self, metrics: Metrics) -> list[str]:
        lost = [each.name for each in (*metrics.targets, *metrics.drafters) if each.lost]
        news = [f"{name} is lost" for name in lost if name not in self._lost]
        self._lost.update(lost)
        return news

    def _results(self, figures: Mapping[str, float]) -> list[str]:
        news = []
        if EVALUATED in figures:
            told = f"held-out expected accepted length {figures[EVALUATED]:.3f}"
            # By its text, which is the same for one that is no number.
            if told != self._evaluated:
                news.append(told)
            self._evaluated = told
        if SAVED in figures and figures[SAVED] != self._saved:
            self._saved = figures[SAVED]
            news.append(f"checkpoint of step {self._saved:,.0f} saved")
        return news


def progress(now: float, run: Run, figures: Mapping[str, float]) -> str:
    """One line: what is trained, how fast, when it will end, what is learnt, how full lanes are, and the verdict."""
    metrics, steady = run.metrics, steady_now(run.metrics)
    done = sum(by[0] for by in metrics.trained_by)
    whole = f" ({done / run.plan.count:.0%})" if run.plan.count else ""
    parts = [
        f"{done:,} of {run.plan.count:,} batches{whole}",
        "no steady rate yet" if steady is None else ktok(steady.rate),
    ]
    left = time_left(now, run)
    if isinstance(left, Eta) and left.seconds > 0:  # nobody knows how long a run that stands still will take
        parts.append(f"{duration(left.seconds)} left")
    if "loss" in figures:
        parts.append(f"loss {figures['loss']:.2f}")
    parts.append("lanes " + " ".join(f"{lane.depth}/{lane.capacity}" for lane in metrics.lanes))
    if steady is not None:
        parts.append(judge(metrics, steady, now=now).text)
    return f"at {duration(now)}: {', '.join(parts)}"


def steady_now(metrics: Metrics) -> SteadyRate | None:
    """None before it can be said."""
    rate = steady_rate(metrics.times, metrics.trained_tokens, end=metrics.fed_at)
    return rate if isinstance(rate, SteadyRate) else None


def time_left(now: float, run: Run) -> Eta | NoEstimate:
    """Model seconds from `now` to the end of the work, warm-up left out."""
    metrics = run.metrics
    tokens = int(run.plan.tokens.sum()) - sum(by[1] for by in metrics.trained_by)
    eta = remaining_time(metrics.times, metrics.trained_tokens, tokens, firsts=metrics.firsts)
    if not isinstance(eta, Eta):
        return eta
    passed = now - metrics.times[-1]
    low, high = (None if bound is None else max(bound - passed, 0.0) for bound in (eta.low, eta.high))
    return Eta(max(eta.seconds - passed, 0.0), low, high)
