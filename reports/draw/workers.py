"""Figures about workers: what each did with its time, as bars and over time, and how evenly the work was spread."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from numpy.typing import NDArray

from reports.draw.style import (
    HALF,
    STATE_COLOURS,
    WIDE,
    Plate,
    axes_of,
    colour,
    legend_below,
    new_figure,
    rows_height,
    short_worker,
    some,
    state_legend,
    styled,
    time_unit,
)
from reports.metrics import STATES
from reports.spans import WorkerSpans
from reports.table import duration

F64 = NDArray[np.float64]

_BINS: Final = 1200
_EXACT: Final = 250
"""A timeline of at most so many spans a worker is drawn span by span: more of them are lines, not bars."""
_ROW: Final = 24
"""Pixels of a worker's row in a binned timeline."""
_LABELLED: Final = 0.055
"""Shares from here on carry their number."""


@styled
def worker_bars(
    key: str, name: str, workers: Sequence[Mapping[str, Any]], source: str = "From the summary."
) -> Plate:
    """Shares of each worker's lifetime by state; `source`: where they come from."""
    figure = new_figure(HALF, 0.9 + rows_height(len(workers), 0.3))
    (axis,) = axes_of(figure)
    labelled = some(len(workers), 30)
    used = [state for state in STATES if any(worker[f"{state}_s"] > 0 for worker in workers)]
    for row, worker in enumerate(workers):
        left = 0.0
        for state in used:
            share = 100 * worker[f"{state}_s"] / worker["lifetime_s"] if worker["lifetime_s"] > 0 else 0.0
            axis.barh(row, share, left=left, color=STATE_COLOURS[state], height=0.78)
            if share >= 100 * _LABELLED and len(labelled) == len(workers):
                shade = "black" if state in ("starved", "transfer", "sync") else "white"
                axis.text(left + share / 2, row, f"{share:.0f}", ha="center", va="center", color=shade, fontsize=9)
            left += share
    axis.set_yticks(labelled, [_worker_label(workers[row]) for row in labelled])
    axis.set_ylim(len(workers) - 0.5, -0.5)
    axis.set_xlim(0, 100)
    axis.set_xlabel("share of the worker's lifetime [%]")
    state_legend(figure, used)
    said = "; ".join(f"{worker['name']} {_shares(worker)}" for worker in workers)
    over = [each["name"] for each in workers if sum(each[f"{s}_s"] for s in STATES) > 1.001 * each["lifetime_s"]]
    clipped = f" Clipped at 100 %, since the numbers say more than the lifetime: {', '.join(over)}." if over else ""
    return Plate(
        key=key,
        title="What each worker did with its time",
        alt=f"{name}: {said}.",
        caption=f"{source} busy: computing; blocked: holding a finished batch that no lane admits; starved: "
        f"waiting for a batch; sync: waiting for other drafters at a step; transfer: exposed copying.{clipped}",
        figure=figure,
    )


@styled
def timeline(key: str, name: str, spans: Sequence[WorkerSpans], end_s: float) -> Plate:
    """The whole run: every span where there are few, else the shares of each state in bins of equal time."""
    figure = new_figure(WIDE, 0.9 + rows_height(len(spans), 0.26))
    (axis,) = axes_of(figure)
    count = sum(len(each.state) for each in spans)
    if _few(spans):
        _draw_spans(axis, spans, 0.0, end_s)
        how = f"Every one of the {count:,} spans is drawn."
    else:
        _draw_shares(axis, spans, end_s)
        how = (
            f"{count:,} spans are too many to draw: each of the {_BINS:,} columns is {duration(end_s / _BINS)} of the "
            "run, and its colours fill a worker's row in proportion to the time spent in each state. Nothing is left "
            "out. The details below draw every span of a part."
        )
    _label(axis, spans, 0.0, end_s)
    state_legend(figure, _used(spans))
    return Plate(
        key=key,
        title="Timeline",
        alt=f"{name}: timeline of {len(spans)} workers over {duration(end_s)}.",
        caption=how,
        figure=figure,
        wide=True,
    )


@styled
def details(key: str, name: str, spans: Sequence[WorkerSpans], end_s: float) -> list[Plate]:
    """Beginning, middle and end of a long run, span by span; empty where the timeline shows every span."""
    if _few(spans) or end_s <= 0:
        return []
    densest = max(len(each.state) for each in spans) / end_s
    width = min(60 / densest, end_s)
    parts = {"the first": 0.0, "the middle": (end_s - width) / 2, "the last": end_s - width}
    plates = []
    for number, (which, start) in enumerate(parts.items()):
        figure = new_figure(WIDE, 0.9 + rows_height(len(spans), 0.26))
        (axis,) = axes_of(figure)
        _draw_spans(axis, spans, start, start + width)
        _label(axis, spans, start, start + width)
        state_legend(figure, _used(spans))
        plates.append(
            Plate(
                key=f"{key}-{number + 1}",
                title=f"Timeline, {which} {duration(width)}",
                alt=f"{name}: every span of {len(spans)} workers in {which} {duration(width)}.",
                caption="Every span is drawn; a lighter edge parts two batches that follow each other without a wait.",
                figure=figure,
                wide=True,
                detail=True,
            )
        )
    return plates


@styled
def balance(key: str, name: str, shares: Mapping[str, Sequence[int]]) -> Plate:
    """How many batches and tokens each drafter trained."""
    figure = new_figure(HALF, 2.9)
    axes = axes_of(figure, 1, 2)
    said = []
    for axis, (what, counts) in zip(axes, shares.items(), strict=True):
        total = sum(counts)
        percent = [100 * count / total if total else 0.0 for count in counts]
        axis.bar(range(len(counts)), percent, color=colour(0), width=0.7)
        axis.axhline(100 / max(len(counts), 1), color=colour(1), linestyle="--", linewidth=1, label="even")
        axis.set_ylabel(f"share of the trained {what} [%]")
        axis.set_xticks(some(len(counts), 8))
        axis.set_xlabel("drafter")
        axis.set_ylim(0, max([*percent, 100 / max(len(counts), 1)]) * 1.18)
        if len(counts) <= 8:
            for row, share in enumerate(percent):
                axis.annotate(f"{share:.1f}", (row, share), (0, 2), textcoords="offset points", ha="center", fontsize=9)
        said.append(f"{what} {', '.join(f'{share:.1f} %' for share in percent)}")
    legend_below(figure, axes[0])
    return Plate(
        key=key,
        title="Balance between drafters",
        alt=f"{name}: share of each drafter of the trained {'; '.join(said)}.",
        caption="Of what was trained; the dashed line is an even share.",
        figure=figure,
    )


def share_image(spans: Sequence[WorkerSpans], end_s: float, bins: int = _BINS, row: int = _ROW) -> NDArray[np.uint8]:
    """uint8[W * row, bins, 4]: each worker's states stacked in a row of pixels; transparent where it did not live."""
    edges = np.linspace(0.0, end_s, bins + 1)
    colours = np.array([[*(255 * np.array(to_rgb(STATE_COLOURS[state]))), 255] for state in STATES] + [[0] * 4])
    gap = 3
    at = (np.arange(row - gap) + 0.5) / (row - gap)
    image = np.zeros((len(spans) * row, bins, 4), np.uint8)
    for number, each in enumerate(spans):
        filled = np.cumsum(each.shares(edges), axis=0)
        state = (at[:, None, None] > filled[None] + 1e-9).sum(axis=1)
        image[number * row : (number + 1) * row - gap] = colours[state]
    return image


def _few(spans: Sequence[WorkerSpans]) -> bool:
    return max((len(each.state) for each in spans), default=0) <= _EXACT


def _draw_shares(axis: Axes, spans: Sequence[WorkerSpans], end_s: float) -> None:
    seconds, _ = time_unit(end_s)
    extent = (0.0, end_s / seconds, len(spans) - 0.5, -0.5)
    axis.imshow(share_image(spans, end_s), aspect="auto", interpolation="none", extent=extent)


def _draw_spans(axis: Axes, spans: Sequence[WorkerSpans], start_s: float, end_s: float) -> None:
    seconds, _ = time_unit(end_s - start_s)
    for row, each in enumerate(spans):
        part = each.between(start_s, end_s)
        edges = (part.edges - start_s) / seconds
        width = np.diff(edges)
        for state, name in enumerate(STATES):
            mine = part.state == state
            bars = list(zip(edges[:-1][mine].tolist(), width[mine].tolist(), strict=True))
            if bars:
                axis.broken_barh(
                    bars, (row - 0.4, 0.8), facecolors=STATE_COLOURS[name], edgecolors="#ffffff80", linewidth=0.4
                )


def _label(axis: Axes, spans: Sequence[WorkerSpans], start_s: float, end_s: float) -> None:
    seconds, unit = time_unit(end_s - start_s)
    rows = some(len(spans), 30)
    axis.set_yticks(rows, [short_worker(spans[row].name) for row in rows])
    axis.set_ylim(len(spans) - 0.5, -0.5)
    axis.set_xlim(0, (end_s - start_s) / seconds)
    axis.set_xlabel(f"time after {duration(start_s)} [{unit}]" if start_s else f"time [{unit}]")


def _used(spans: Sequence[WorkerSpans]) -> list[str]:
    seen = {int(state) for each in spans for state in np.unique(each.state)}
    return [name for state, name in enumerate(STATES) if state in seen]


def _worker_label(worker: Mapping[str, Any]) -> str:
    return short_worker(worker["name"]) + (" (lost)" if worker["lost"] else "")


def _shares(worker: Mapping[str, Any]) -> str:
    life = worker["lifetime_s"]
    if life <= 0:
        return "never worked"
    return ", ".join(f"{worker[f'{s}_s'] / life:.0%} {s}" for s in STATES if worker[f"{s}_s"] > 0.0005 * life)
