"""Figures about batches: how long they took, how long their samples are, and how optimizer steps mix them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from reports.draw.style import (
    GRID,
    HALF,
    MUTED,
    Plate,
    axes_of,
    colour,
    legend_below,
    new_figure,
    rows_height,
    short_worker,
    some,
    styled,
)
from reports.durations import Durations
from reports.shapes import Mixing, Shapes

F64 = NDArray[np.float64]

_BINS: Final = 60
_SHOWN: Final = 8
"""Buckets that get a colour of their own."""


@styled
def step_times(key: str, name: str, found: Sequence[Durations], steps: F64) -> Plate:
    """Distribution of the seconds that a batch took, for each role, and of the optimizer steps where they took time."""
    panels = {}
    for role in ("target", "drafter"):
        mine = [each.busy_s for each in found if each.name.startswith(role) and len(each.busy_s)]
        if mine:
            panels[f"{role}: computing a batch"] = np.concatenate(mine)
    if steps.max(initial=0.0) > 0:
        panels["optimizer step"] = steps
    figure = new_figure(HALF, 0.5 + 1.35 * len(panels))
    said, left_out = [], 0
    for number, (axis, (what, values)) in enumerate(zip(axes_of(figure, len(panels)), panels.items(), strict=True)):
        left_out += _histogram(axis, values, colour(number))
        middle, high = np.percentile(values, (50, 95))
        axis.axvline(float(middle), color=colour(1), linestyle="--", linewidth=1.2)
        axis.axvline(float(high), color=colour(1), linestyle=":", linewidth=1.2)
        axis.set_title(f"{what}: median {middle:.3g} s, 95 % below {high:.3g} s")
        axis.set_ylabel("batches" if "batch" in what else "steps")
        said.append(f"{what} median {middle:.3g} s, 95 % below {high:.3g} s")
        axis.set_xlabel("seconds")
    tail = f" {left_out:,} values beyond three times the 95 % mark are outside the axes." if left_out else ""
    return Plate(
        key=key,
        title="How long batches took",
        alt=f"{name}: {'; '.join(said)}.",
        caption=f"All workers of a role together; waiting and copying left out. Dashed: median; dotted: 95 % are below."
        f"{tail}",
        figure=figure,
    )


@styled
def worker_times(key: str, name: str, found: Sequence[Durations]) -> Plate:
    """Seconds per batch of every worker: median, quartiles and the middle nine tenths."""
    known = [each for each in found if len(each.busy_s)]
    figure = new_figure(HALF, 0.8 + rows_height(max(len(known), 3), 0.27))
    (axis,) = axes_of(figure)
    said = []
    for row, each in enumerate(known):
        low, first, middle, third, high = np.percentile(each.busy_s, (5, 25, 50, 75, 95)).tolist()
        tint = colour(0) if each.name.startswith("target") else colour(1)
        axis.plot([low, high], [row, row], color=tint, linewidth=1.2)
        axis.plot([first, third], [row, row], color=tint, linewidth=5, solid_capstyle="butt")
        axis.plot([middle], [row], marker="o", markersize=5, markerfacecolor="white", markeredgecolor=tint)
        said.append(f"{each.name} {middle:.3g} s")
    rows = some(len(known), 30)
    axis.set_yticks(rows, [short_worker(known[row].name) for row in rows])
    axis.set_ylim(len(known) - 0.5, -0.5)
    axis.set_xlim(0, 1.08 * axis.get_xlim()[1])
    axis.set_xlabel("seconds of computing per batch")
    axis.grid(axis="x")
    return Plate(
        key=key,
        title="How long batches took each worker",
        alt=f"{name}: median seconds per batch: {', '.join(said)}.",
        caption="Dot: median; thick: the middle half; thin: the middle nine tenths. A slow worker stands apart.",
        figure=figure,
    )


@styled
def lengths(key: str, name: str, shapes: Shapes) -> Plate:
    """Longest samples of the batches by bucket, and the padding of every bucket."""
    figure = new_figure(HALF, 3.6)
    top, bottom = axes_of(figure, 2, height_ratios=[3, 2])
    edges = np.linspace(0, float(shapes.length.max()) * 1.0001, _BINS // 2 + 1)
    shown = range(len(shapes.buckets)) if len(shapes.buckets) <= _SHOWN else []
    groups = [shapes.length[shapes.bucket == number] for number in shown] or [shapes.length]
    names = [shapes.buckets[number] for number in shown] or ["all buckets"]
    tints = [colour(number) for number in range(len(groups))]
    hatches = ["", "//", "..", "\\\\", "xx", "--", "++", "oo"][: len(groups)]
    top.hist(groups, bins=list(edges), stacked=True, color=tints, hatch=hatches, label=names, linewidth=0)
    top.set_xlabel("longest sample of a batch [tokens]")
    top.set_ylabel("batches")
    top.set_xlim(0, None)
    padding = 100 * shapes.padding
    bottom.bar(range(len(padding)), padding.tolist(), color=colour(0), width=0.7)
    rows = some(len(shapes.buckets), 10)
    bottom.set_xticks(rows, [shapes.buckets[row] for row in rows])
    bottom.set_xlabel("bucket [tokens]")
    bottom.set_ylabel("padding [%]")
    bottom.set_ylim(0, max(1.15 * float(padding.max(initial=0.0)), 1.0))
    overall = shapes.padding_share or 0.0
    bottom.axhline(100 * overall, color=colour(1), linestyle="--", linewidth=1.2)
    bottom.set_title(f"padding: {overall:.1%} of all slots (dashed)")
    legend_below(figure, top, 4)
    return Plate(
        key=key,
        title="Lengths and padding",
        alt=f"{name}: longest samples from {shapes.length.min():,} to {shapes.length.max():,} tokens in "
        f"{len(shapes.buckets)} buckets; {overall:.1%} of the slots are padding.",
        caption="Above: batches by their longest sample, stacked by bucket. Below: the share of a bucket's slots that "
        "holds no token.",
        figure=figure,
    )


@styled
def mixing(key: str, name: str, found: Mixing, summary: Mapping[str, Any]) -> Plate:
    """How many buckets a step holds, and whether neighbouring steps see like lengths."""
    figure = new_figure(HALF, 3.0)
    left, right = axes_of(figure, 1, 2)
    counts = found.steps_by_buckets
    total = max(int(counts.sum()), 1)
    left.bar(range(1, len(counts)), (100 * counts[1:] / total).tolist(), color=colour(0), width=0.7)
    left.set_xticks(range(1, len(counts)))
    left.set_xlabel("buckets in a step")
    left.set_ylabel("share of the steps [%]")
    left.set_ylim(0, 105)
    left.set_title(f"{found.mixed / total:.0%} of the steps mix")
    shade = 0.85 if len(found.length) < 500 else 0.35
    right.scatter(found.length, found.next_length, s=7, alpha=shade, color=colour(0), linewidths=0)
    ends = [float(found.length.min()), float(found.length.max())]
    right.plot(ends, ends, color=MUTED, linestyle=":", linewidth=1)
    right.set_xlabel("mean length of a step [tokens]")
    right.set_ylabel("of the next step [tokens]")
    correlation = summary["mixing"]["lag1_length_correlation"]
    right.set_title("no correlation" if correlation is None else f"correlation {correlation:+.2f}")
    some_of = f" One step in {found.every:,} is drawn." if found.every > 1 else ""
    return Plate(
        key=key,
        title="How steps mix lengths",
        alt=f"{name}: {found.mixed:,} of {total:,} steps hold more than one bucket; correlation of the lengths of "
        f"neighbouring steps {'unknown' if correlation is None else f'{correlation:.2f}'}.",
        caption="Left: different buckets in one optimizer step. Right: each step's mean length against that of the "
        f"next; near the dotted diagonal neighbours are alike, and gradients lean to one length.{some_of}",
        figure=figure,
    )


def _histogram(axis: Axes, values: F64, tint: str) -> int:
    """Draws it; returns how many values are outside the axis."""
    low, high = float(values.min()), min(float(values.max()), 3 * float(np.percentile(values, 95)))
    pad = max(0.05 * high, 1e-9) if high - low < 0.02 * high else 0.0
    axis.hist(values, bins=_BINS if not pad else 21, range=(max(low - pad, 0.0), high + pad), color=tint)
    axis.set_xlim(0, None)
    axis.grid(axis="y", color=GRID)
    return int((values > high + pad).sum())
