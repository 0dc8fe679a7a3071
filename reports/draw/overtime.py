"""Figures over time: depth of the lanes, throughput, the estimated end, memory against its limits."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from reports.draw.style import (
    GRID,
    HALF,
    WIDE,
    Plate,
    axes_of,
    byte_unit,
    colour,
    dash,
    legend_below,
    new_figure,
    rate_unit,
    short,
    short_worker,
    styled,
    time_unit,
)
from reports.flow import EtaHistory, Rate
from reports.levels import Level
from reports.table import counted, duration, size
from reports.verdict import ktok

_BINS: Final = 300
_PANELS: Final = 6


@styled
def lanes(key: str, name: str, levels: Sequence[Level], end_s: float) -> Plate:
    """Depth of each lane against its capacity; the fullest ones where there are many."""
    shown = sorted(levels, key=lambda level: -(level.mean or 0.0))[:_PANELS] if len(levels) > _PANELS else levels
    figure = new_figure(WIDE, 1.0 + 1.1 * len(shown) if len(shown) > 1 else 2.6)
    axes = axes_of(figure, max(len(shown), 1), sharex=True)
    seconds, unit = time_unit(end_s)
    edges = np.linspace(0.0, end_s, _BINS + 1)
    for axis, level in zip(axes, shown, strict=False):
        binned, x = level.binned(edges), edges / seconds
        band: dict[str, Any] = {"fill": True, "color": colour(5), "alpha": 0.45}
        axis.stairs(binned.most, x, baseline=binned.least, label="least to most", **band)
        axis.stairs(binned.mean, x, baseline=None, color=colour(0), linewidth=1.3, label="mean")
        if level.capacity is not None:
            axis.axhline(level.capacity, color=colour(1), linestyle="--", linewidth=1.2, label="capacity")
        axis.set_ylim(0, 1.12 * max(level.capacity or 0, level.most, 1))
        axis.set_title(f"{short(level.name, 40)}: mean {level.mean or 0:.1f} of {level.capacity}, at most {level.most}")
        axis.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    figure.supylabel("waiting batches", fontsize=9)
    legend_below(figure, axes[0])
    axes[-1].set_xlabel(f"time [{unit}]")
    axes[-1].set_xlim(0, end_s / seconds)
    left = f" The {len(shown)} fullest of {len(levels)} lanes are shown." if len(shown) < len(levels) else ""
    said = "; ".join(f"{each.name} {each.mean or 0:.1f} of {each.capacity}, at most {each.most}" for each in shown)
    return Plate(
        key=key,
        title="How full the lanes were",
        alt=f"{name}: mean depth {said}.",
        caption=f"{_BINS} bins of {duration(end_s / _BINS)}: the line is the exact mean in each, the band reaches from "
        f"the least to the most in it, handovers within an instant included.{left}",
        figure=figure,
        wide=True,
    )


@styled
def throughput(key: str, name: str, rate: Rate, summary: Mapping[str, Any]) -> Plate:
    """Trained tokens per second over time, warm-up shaded, with the steady rate and its interval."""
    figure = new_figure(HALF, 3.0)
    (axis,) = axes_of(figure)
    figures, end_s = summary["throughput"], float(summary["makespan_s"])
    seconds, unit = time_unit(end_s)
    steady, start, stop = (figures[f"steady_{what}"] for what in ("tokens_per_s", "from_s", "to_s"))
    factor, sign = rate_unit(max(float(rate.tokens_per_s.max(initial=0.0)), steady or 0.0))
    axis.stairs(rate.tokens_per_s / factor, rate.edges / seconds, color=colour(0), label="trained", baseline=None)
    if steady is not None:
        axis.axhline(steady / factor, color=colour(1), linestyle="--", linewidth=1.2, label=f"steady {ktok(steady)}")
        if figures["steady_ci95"]:
            low, high = (bound / factor for bound in figures["steady_ci95"])
            axis.axhspan(low, high, color=colour(1), alpha=0.25, linewidth=0, label="its 95 % interval")
    shade: dict[str, Any] = {"color": GRID, "alpha": 0.7, "linewidth": 0}
    if start is not None and start > 0:
        axis.axvspan(0, start / seconds, label="warm-up", **shade)
    if stop is not None and stop < end_s:
        axis.axvspan(stop / seconds, end_s / seconds, label="last batches", hatch="///", **shade)
    axis.set_ylim(0, 1.12 * max(float(rate.tokens_per_s.max(initial=0.0)), steady or 0.0, 1e-9) / factor)
    axis.set_xlim(0, end_s / seconds)
    axis.set_xlabel(f"time [{unit}]")
    axis.set_ylabel(f"throughput [{sign}]")
    legend_below(figure, axis)
    left_out = " The steady rate leaves out the warm-up, and what was trained after the last batch had been given out."
    left_out = left_out if steady is not None else " The run is too short for a steady rate."
    said = f"steady rate {ktok(steady)}" if steady is not None else "too short for a steady rate"
    return Plate(
        key=key,
        title="Throughput over time",
        alt=f"{name}: {said}; warm-up until {duration(start)}." if start is not None else f"{name}: {said}.",
        caption=f"Tokens trained in {counted(len(rate.tokens_per_s), 'stretch', 'stretches')}, each from one commit to "
        f"that {rate.instants} instants later.{left_out}",
        figure=figure,
    )


@styled
def eta(key: str, name: str, history: EtaHistory) -> Plate:
    """The total time as it was estimated while the run went on, against the truth."""
    figure = new_figure(HALF, 3.0)
    (axis,) = axes_of(figure)
    shown = _without_first_guesses(history)
    last = float(history.at_s[-1]) if len(history.at_s) else 1.0
    seconds, unit = time_unit(max(last, history.truth_s or 0.0))
    x = history.at_s[shown] / seconds
    low, high = history.low_s[shown] / seconds, history.high_s[shown] / seconds
    axis.fill_between(x, low, high, color=colour(5), alpha=0.45, linewidth=0, label="95 % interval")
    axis.plot(x, history.total_s[shown] / seconds, color=colour(0), marker="o", markersize=2.5, label="estimated total")
    said = "the run did not train all of its data"
    if history.truth_s is not None:
        axis.axhline(history.truth_s / seconds, color=colour(1), linestyle="--", linewidth=1.2, label="truth")
        said = f"truth {duration(history.truth_s)}"
    axis.set_xlabel(f"time of the estimate [{unit}]")
    axis.set_ylabel(f"total time [{unit}]")
    axis.set_xlim(0, None)
    _widen(axis)
    legend_below(figure, axis)
    cut = len(history.at_s) - int(shown.sum())
    first = f" The first {cut}, off by more than half, are outside the axis." if cut else ""
    return Plate(
        key=key,
        title="When the end was expected",
        alt=f"{name}: {len(history.at_s)} estimates of the total time; {said}.",
        caption=f"{len(history.at_s)} estimates spread over the run, each from what was known then"
        f"{'; the axis does not begin at 0' if axis.get_ylim()[0] > 0 else ''}.{first}",
        figure=figure,
    )


@styled
def memory(key: str, name: str, levels: Sequence[Level], end_s: float, model_bytes: int) -> Plate:
    """Hidden states in each memory over time, against the limits."""
    groups = {"host memory": [each for each in levels if each.name == "host"]}
    groups["devices"] = [each for each in levels if each.name != "host"]
    groups = {what: mine for what, mine in groups.items() if mine}
    figure = new_figure(WIDE, 2.9)
    axes = axes_of(figure, 1, max(len(groups), 1))
    seconds, unit = time_unit(end_s)
    edges = np.linspace(0.0, end_s, _BINS + 1)
    for axis, (what, mine) in zip(axes, groups.items(), strict=True):
        fullest = sorted(mine, key=lambda each: -each.most)[:4]
        limits = {each.capacity for each in mine if each.capacity is not None}
        base = model_bytes if what == "devices" else 0
        scale, sign = byte_unit(base + max(each.most for each in mine))
        for number, each in enumerate(fullest):
            own = base if each.name.startswith("drafter") else 0
            label = f"{short_worker(each.name)}, at most {size(each.most + own)}"
            most = (each.binned(edges).most + own) / scale
            axis.stairs(most, edges / seconds, baseline=None, color=colour(number), linestyle=dash(number), label=label)
        for limit in limits:
            axis.axhline(limit / scale, color=colour(1), linestyle="--", linewidth=1.2, label=f"limit {size(limit)}")
        axis.set_ylim(0, 1.12 * max([base + max(each.most for each in mine), *limits]) / scale)
        axis.set_xlim(0, end_s / seconds)
        axis.set_xlabel(f"time [{unit}]")
        axis.set_ylabel(f"{what} [{sign}]")
        axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    said = ", ".join(f"{each.name} {size(each.most)}" for each in levels)
    few = " The four fullest devices are shown." if len(groups.get("devices", ())) > 4 else ""
    with_model = f" A drafter's model counts {size(model_bytes)}." if model_bytes else ""
    return Plate(
        key=key,
        title="Memory of hidden states",
        alt=f"{name}: at most {said}.",
        caption=f"The most that lay there within each of {_BINS} bins of {duration(end_s / _BINS)}, computed from the "
        f"trace and the sizes of the file.{with_model}{few}",
        figure=figure,
        wide=True,
    )


def _without_first_guesses(history: EtaHistory) -> NDArray[np.bool_]:
    """Leaves out what is off by more than half of the last word: it would flatten everything else."""
    if not len(history.total_s):
        return np.zeros(0, np.bool_)
    last = history.truth_s or float(history.total_s[-1])
    good = np.abs(history.total_s - last) <= 0.5 * last
    return good if good.any() else np.ones(len(good), np.bool_)


def _widen(axis: Axes) -> None:
    """No axis so narrow that rounding looks like a change: at least 4 % of the value."""
    low, high = axis.get_ylim()
    middle = (low + high) / 2
    half = max((high - low) / 2, 0.02 * abs(middle))
    axis.set_ylim(max(middle - half, 0.0), middle + half)


