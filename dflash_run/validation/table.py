"""The table of a validation: each quantity as predicted and as measured, their difference and its limit."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, stdev
from typing import Any, Final

from reports.metrics import STATES

RELATIVE: Final = "relative"
POINTS: Final = "points"
LANE_LIMIT: Final = 0.10
"""Of a lane's mean depth, in shares of its capacity."""


COPY_LIMIT: Final = 0.10
"""Of the copies that computing hides, in points."""
MEMORY_LIMIT: Final = 0.05
"""Relative, of the most memory that workers of a role allocate on a GPU."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One quantity. `difference` and `limit` are both in `measure`."""

    quantity: str
    predicted: float | None
    measured: float | None
    difference: float | None
    limit: float
    unit: str
    measure: str
    """`relative`: predicted / measured − 1. `points`: predicted − measured."""
    chance: float | None = None
    """Standard deviation among predictions that differ in their random draws only, of which `predicted` is the mean;
    None: it is of one."""

    @property
    def holds(self) -> bool | None:
        """Whether the difference is within its limit; None where there is none."""
        return None if self.difference is None else abs(self.difference) <= self.limit


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What is allowed."""

    rate: float
    share: float
    end: float


def rows(
    draws: Sequence[Mapping[str, Any]],
    measured: Mapping[str, Any],
    *,
    foreseen_end: float | None,
    own_rate: float | None,
    solo_rate: float,
    copy_s: float | None,
    limits: Limits,
) -> list[Row]:
    """The table of a prediction and a run, by their summaries.

    `draws`: the prediction, and others that differ from it in their random draws only. Which of several workers waits,
    and which lane is deep, is much a matter of chance: their mean is what is predicted. All else is the first's.
    `foreseen_end`: the time to finish as foreseen after a tenth of the run. `own_rate`: the throughput that the
    simulator gives with times fitted to the run itself. `solo_rate`: the smaller of the rates of all targets and of all
    drafters, each alone. `copy_s`: seconds of all copies to drafters, if none were hidden;
    None: none can be.
    """
    predicted = draws[0]
    found = [
        _relative(name, predicted["throughput"][key], measured["throughput"][key], limits.rate, "tokens/s")
        for name, key in (("throughput", "tokens_per_s"), ("steady throughput", "steady_tokens_per_s"))
    ]
    rate, span = measured["throughput"]["tokens_per_s"], measured["makespan_s"]
    found.append(_relative("throughput, by the run's own times", own_rate, rate, limits.rate, "tokens/s"))
    found.append(_relative("time to finish", predicted["makespan_s"], span, limits.rate, "s"))
    found.append(_relative("time to finish, after a tenth of the run", foreseen_end, span, limits.end, "s"))
    steady = (each["throughput"]["steady_tokens_per_s"] for each in (predicted, measured))
    a, b = (None if each is None else each / solo_rate for each in steady)
    found.append(_points("efficiency", a, b, limits.rate, "steady throughput / the smaller of summed solo rates"))
    if copy_s is not None:
        # A copy that took longer than alone, and that nothing hid, hid no less than nothing.
        shown = (sum(worker["transfer_s"] for worker in each["workers"]) for each in (predicted, measured))
        a, b = (max(1 - seconds / copy_s, 0.0) for seconds in shown)
        found.append(_points("copies hidden", a, b, COPY_LIMIT, "share of their time, behind computing"))
    found += _shares(draws, measured, limits.share)
    return [*found, *_lanes(draws, measured), *_memory(measured)]


def as_json(table: list[Row]) -> list[dict[str, Any]]:
    """Strictly JSON-able."""
    return [asdict(row) for row in table]


def text(table: list[Row]) -> str:
    """For people."""
    lines = [f"{'quantity':<42}{'predicted':>12}{'measured':>12}{'difference':>12}{'limit':>8}"]
    for row in table:
        mark = {True: "", False: "  beyond", None: ""}[row.holds]
        difference = "–" if row.difference is None else f"{row.difference:+.1%}"
        a, b = (_number(value, row.unit) for value in (row.predicted, row.measured))
        cells = f"{a:>12}{b:>12}{difference:>12}{row.limit:>8.0%}"
        lines.append(f"{row.quantity:<42}{cells}{mark}")
    return "\n".join(lines)


def _shares(draws: Sequence[Mapping[str, Any]], measured: Mapping[str, Any], limit: float) -> Iterator[Row]:
    for at, theirs in enumerate(measured["workers"]):
        for state in STATES:
            ours, share = [_share(each["workers"][at], state) for each in draws], _share(theirs, state)
            if any(ours) or share:
                yield _mean_points(f"{theirs['name']} {state}", ours, share, limit, "share of its life")


def _lanes(draws: Sequence[Mapping[str, Any]], measured: Mapping[str, Any]) -> Iterator[Row]:
    for at, theirs in enumerate(measured["lanes"]):
        ours = [_depth(each["lanes"][at]) for each in draws]
        name = f"{theirs['name']} mean depth"
        yield _mean_points(name, ours, _depth(theirs), LANE_LIMIT, "share of its capacity")


def _depth(lane: Mapping[str, Any]) -> float | None:
    return None if lane["mean"] is None else float(lane["mean"]) / max(lane["capacity"], 1)


def _memory(measured: Mapping[str, Any]) -> Iterator[Row]:
    """Of the GPUs: the forecast, which was made before the run, beside what workers took at most."""
    told = measured.get("training", {})
    peaks = told.get("peaks", {})
    for role, forecast in told.get("forecast", {}).items():
        taken = [
            peak["allocated"]
            for worker, peak in peaks.items()
            if worker.startswith(role) and peak["device"].startswith("cuda")
        ]
        if taken:
            yield _relative(f"memory of a {role}", float(forecast["total"]), float(max(taken)), MEMORY_LIMIT, "bytes")


def _share(worker: Mapping[str, Any], state: str) -> float | None:
    life = worker["lifetime_s"]
    return worker[f"{state}_s"] / life if life else None


def apart(a: float | None, b: float | None, measure: str) -> float | None:
    """The difference of what was predicted to what was measured; None where one is not known."""
    if a is None or b is None:
        return None
    if measure == POINTS:
        return a - b
    return a / b - 1 if b else None


def _relative(name: str, a: float | None, b: float | None, limit: float, unit: str) -> Row:
    return _told(name, a, b, limit, unit, RELATIVE)


def _points(name: str, a: float | None, b: float | None, limit: float, unit: str) -> Row:
    return _told(name, a, b, limit, unit, POINTS)


def _told(name: str, a: float | None, b: float | None, limit: float, unit: str, measure: str) -> Row:
    difference = apart(a, b, measure)
    return Row(quantity=name, predicted=a, measured=b, difference=difference, limit=limit, unit=unit, measure=measure)


def _mean_points(
    name: str, draws: Sequence[float | None], b: float | None, limit: float, unit: str
) -> Row:
    known = [each for each in draws if each is not None]
    row = _points(name, fmean(known) if known else None, b, limit, unit)
    return replace(row, chance=stdev(known) if len(known) > 1 else None)


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    if unit == "bytes":
        return f"{value / 1e9:.2f} GB"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3f}"
