"""Figures of several runs: rates with their intervals, time by role, progress over each other."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from reports.compared import interval_of, rate_of
from reports.difference import mean_share
from reports.draw.style import (
    HALF,
    MUTED,
    STATE_COLOURS,
    WIDE,
    Plate,
    axes_of,
    colour,
    dash,
    legend_below,
    new_figure,
    rate_unit,
    short,
    state_legend,
    styled,
    time_unit,
)
from reports.flow import commits
from reports.levels import lane_levels
from reports.metrics import STATES
from reports.runs import Run
from reports.verdict import ktok

F64 = NDArray[np.float64]

_POINTS = 600


@styled
def rates(runs: Sequence[Run]) -> Plate:
    """The rate of every run with its interval, and its gain with the paired one where policies were compared."""
    gains = any(run.gain is not None for run in runs)
    figure = new_figure(HALF, 0.9 + 0.34 * max(len(runs), 3))
    axes = axes_of(figure, 1, 1 + gains, sharey=True)
    factor, sign = rate_unit(max((rate_of(run) or 0.0 for run in runs), default=0.0))
    said = []
    for row, run in enumerate(runs):
        rate = rate_of(run)
        if rate is None:
            said.append(f"{run.name} unknown")
            continue
        axes[0].barh(row, rate / factor, color=colour(0), height=0.7)
        end = rate
        if interval := interval_of(run):
            end = max(end, interval[1])
            _whiskers(axes[0], row, rate / factor, [bound / factor for bound in interval])
        place = (end / factor, row)
        axes[0].annotate(f"{rate / factor:.4g}", place, (4, 0), textcoords="offset points", va="center")
        said.append(f"{run.name} {ktok(rate)}")
        if run.gain is not None:
            axes[1].plot([100 * run.gain], [row], marker="o", markersize=5, color=colour(0))
            if run.gain_ci95 is not None:
                _whiskers(axes[1], row, 100 * run.gain, [100 * bound for bound in run.gain_ci95])
            said.append(f"gain {run.gain:+.1%}")
    axes[0].set_yticks(range(len(runs)), [short(run.name) for run in runs])
    axes[0].set_ylim(len(runs) - 0.5, -0.5)
    axes[0].set_xlim(0, 1.28 * axes[0].get_xlim()[1])
    axes[0].set_xlabel(f"throughput [{sign}]")
    if gains:
        _label_gains(axes[1], next(run.gain_over for run in runs if run.gain is not None))
    paired = " Right: the gain with its paired 95 % interval: the same work and draws under both policies."
    return Plate(
        key="compare-rates",
        title="Throughput side by side",
        alt=f"Throughput: {'; '.join(said)}.",
        caption="Steady rate (that of the whole run where none is known) with its 95 % interval: over replications, "
        "where there are some, else within the run."
        f"{paired if gains else ''}",
        figure=figure,
    )


@styled
def roles(runs: Sequence[Run]) -> Plate:
    """How targets and drafters of every run spent their time."""
    figure = new_figure(HALF, 1.1 + 0.34 * len(runs))
    axes = axes_of(figure, 1, 2, sharey=True)
    used = set()
    for axis, role in zip(axes, ("target", "drafter"), strict=True):
        for row, run in enumerate(runs):
            left = 0.0
            for state in STATES:
                share = 100 * (mean_share(run.summary, role, state) or 0.0)
                if share > 0:
                    used.add(state)
                    axis.barh(row, share, left=left, color=STATE_COLOURS[state], height=0.74)
                left += share
        axis.set_xlim(0, 100)
        axis.set_title(f"{role}s")
        axis.set_xlabel("share of their time [%]")
    axes[0].set_yticks(range(len(runs)), [short(run.name) for run in runs])
    axes[0].set_ylim(len(runs) - 0.5, -0.5)
    state_legend(figure, [state for state in STATES if state in used])
    said = "; ".join(
        f"{run.name}: targets blocked {mean_share(run.summary, 'target', 'blocked') or 0:.0%}, "
        f"drafters starved {mean_share(run.summary, 'drafter', 'starved') or 0:.0%}"
        for run in runs
    )
    remade = [run.name for run in runs if run.remade]
    counted = f" Counted from the trace: {', '.join(remade)}." if remade else ""
    return Plate(
        key="compare-roles",
        title="Where the time went",
        alt=f"{said}.",
        caption=f"All workers of a role together, from the summaries.{counted}",
        figure=figure,
    )


@styled
def overlay(runs: Sequence[Run]) -> Plate | None:
    """Progress and waiting batches of every run with a trace, over each other."""
    known = [run for run in runs if run.recorded is not None and run.recorded.end_s > 0]
    if len(known) < 2:
        return None
    figure = new_figure(WIDE, 3.2)
    left, right = axes_of(figure, 1, 2)
    seconds, unit = time_unit(max(run.recorded.end_s for run in known if run.recorded is not None))
    for number, run in enumerate(known):
        assert run.recorded is not None
        style: Any = {"color": colour(number), "linestyle": dash(number), "label": short(run.name)}
        done = commits(run.recorded)
        planned = max(int(run.summary["tokens"]["planned"]), 1)
        pick = _thinned(len(done.time_s))
        left.plot(done.time_s[pick] / seconds, 100 * np.cumsum(done.tokens)[pick] / planned, **style)
        edges = np.linspace(0.0, run.recorded.end_s, 201)
        depth = np.sum([level.binned(edges).mean for level in lane_levels(run.recorded)], axis=0)
        right.stairs(depth, edges / seconds, baseline=None, **style)
    left.set_ylabel("trained [% of the tokens]")
    left.set_ylim(0, 102)
    right.set_ylabel("waiting batches, all lanes")
    right.set_ylim(0, None)
    for axis in (left, right):
        axis.set_xlim(0, None)
        axis.set_xlabel(f"time [{unit}]")
        axis.grid(axis="y")
    legend_below(figure, left, 4)
    return Plate(
        key="compare-overlay",
        title="Runs over each other",
        alt=f"Progress and waiting batches over time of {', '.join(run.name for run in known)}.",
        caption="Left: trained share of the planned tokens. Right: mean number of waiting batches in each of 200 bins "
        "of a run. A slope says the rate: where the lines part, the runs do.",
        figure=figure,
        wide=True,
    )


def _label_gains(axis: Axes, over: str) -> None:
    axis.axvline(0, color=MUTED, linewidth=1)
    axis.set_xlabel(f"gain over {short(over, 14)} [%]")
    axis.margins(x=0.12)


def _whiskers(axis: Axes, row: int, middle: float, bounds: Sequence[float]) -> None:
    reach = [[max(middle - bounds[0], 0.0)], [max(bounds[1] - middle, 0.0)]]
    axis.errorbar(middle, row, xerr=np.array(reach), color=colour(1), capsize=3, linewidth=1.5)


def _thinned(count: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, max(count - 1, 0), min(count, _POINTS)).astype(np.int64))
