"""Figures of changes: by what factor each side moved between two runs, and the frontier of a plan."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.ticker import MaxNLocator

from reports.draw.style import (
    HALF,
    WIDE,
    Plate,
    axes_of,
    byte_unit,
    colour,
    legend_below,
    new_figure,
    rate_unit,
    short,
    styled,
)
from reports.moved import LOST, Moved
from reports.summaryfile import is_finite
from reports.verdict import ktok


@styled
def factors(changes: Sequence[Moved], before: str, after: str) -> Plate:
    """By what factor each side moved."""
    known = [each for each in changes if each.factor is not None and each.factor > 0]
    figure = new_figure(HALF, 1.0 + 0.32 * max(len(known), 1))
    (axis,) = axes_of(figure)
    for row, each in enumerate(known):
        factor = each.factor or 1.0
        axis.barh(row, factor - 1, left=1, color=colour(1) if each.changed else colour(0), height=0.66)
        down = factor < 0.995
        where, side = ((-4, 0), "right") if down else ((4, 0), "left")
        axis.annotate(f"{factor:.2f}×", (factor, row), where, textcoords="offset points", va="center", ha=side)
    labels = [each.what if each.side in ("run", "topology", LOST) else f"{each.side}: {each.what}" for each in known]
    axis.set_yticks(range(len(known)), labels)
    axis.set_ylim(len(known) - 0.5, -0.5)
    axis.set_xscale("log", base=2)
    low = min([each.factor or 1.0 for each in known], default=1.0)
    high = max([each.factor or 1.0 for each in known], default=1.0)
    axis.set_xlim(min(0.66 * low, 0.75), max(1.5 * high, 1.33))
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    axis.axvline(1, color=colour(4), linewidth=1)
    axis.set_xlabel(f"{short(after)} as a multiple of {short(before)} (log scale)")
    said = ", ".join(f"{label} {each.factor:.2f}" for label, each in zip(labels, known, strict=True))
    return Plate(
        key="diff-factors",
        title="By what factor each side moved",
        alt=f"{after} against {before}: {said}.",
        caption="Seconds are those of work alone, waiting left out; 1× is unchanged. Vermillion: moved by more than "
        "3 %.",
        figure=figure,
    )


@styled
def frontier(candidates: Sequence[Mapping[str, Any]]) -> Plate | None:
    """A plan's candidates: throughput against host memory and against the number of GPUs; None without a rate."""
    points = [point for point in map(_point, candidates) if point is not None]
    if not points:
        return None
    figure = new_figure(WIDE, 3.4)
    left, right = axes_of(figure, 1, 2)
    factor, sign = rate_unit(max(point[0] for point in points))
    policies = sorted({point[3] for point in points})
    scale, size_sign = byte_unit(max((point[1] or 0.0 for point in points), default=0.0))
    markers = "osD^vPX*"
    for number, policy in enumerate(policies):
        mine = [point for point in points if point[3] == policy]
        style: Any = {"color": colour(number), "marker": markers[number % len(markers)], "alpha": 0.75, "s": 26}
        style |= {"label": short(policy)}
        sized = [point for point in mine if point[1] is not None]
        left.scatter([(p[1] or 0.0) / scale for p in sized], [p[0] / factor for p in sized], **style)
        right.scatter([p[2] for p in mine], [p[0] / factor for p in mine], **style)
    for axis, column, divisor in ((left, 1, scale), (right, 2, 1.0)):
        best = _best_of([(point[column], point[0]) for point in points if point[column] is not None])
        line = [pair[0] / divisor for pair in best], [pair[1] / factor for pair in best]
        axis.plot(*line, color=colour(1), linestyle="--", linewidth=1.2, drawstyle="steps-post", label="frontier")
        axis.set_ylabel(f"throughput [{sign}]")
        axis.set_ylim(0, 1.08 * max(point[0] for point in points) / factor)
    left.set_xlabel(f"peak of host memory [{size_sign}]")
    left.set_xlim(0, None)
    right.set_xlabel("GPUs (targets + drafters)")
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_below(figure, right, 5)
    best_rate = max(points, key=lambda point: point[0])
    return Plate(
        key="plan-frontier",
        title="Frontier of the plan",
        alt=f"{len(points)} candidates; the fastest gives {ktok(best_rate[0])} under {best_rate[3]} on "
        f"{best_rate[2]} GPUs.",
        caption=f"{len(points)} candidates. Dashed: the most that so much memory, or so many GPUs, can give.",
        figure=figure,
        wide=True,
    )


def _point(candidate: Mapping[str, Any]) -> tuple[float, float | None, int, str] | None:
    """(rate, host bytes, GPUs, policy) of a candidate; None for one that says no rate."""
    rate: Any = candidate.get("throughput")
    if isinstance(rate, Mapping):
        rate = rate.get("steady_tokens_per_s") or rate.get("tokens_per_s")
    memory: Any = candidate.get("memory")
    if isinstance(memory, Mapping):
        memory = memory.get("host_peak_bytes")
    topology, dispatch = candidate.get("topology"), candidate.get("dispatch")
    if not is_finite(rate) or not isinstance(topology, Mapping):
        return None
    counts = [topology.get(role, 1) for role in ("targets", "drafters")]
    if not all(isinstance(count, int) for count in counts):
        return None
    gpus = sum(counts)
    policy = dispatch.get("policy", "unknown") if isinstance(dispatch, Mapping) else "unknown"
    return float(rate), float(memory) if is_finite(memory) else None, gpus, str(policy)


def _best_of(pairs: Sequence[tuple[Any, float]]) -> list[tuple[float, float]]:
    """The pairs that no other beats with as little of the first and more of the second."""
    found: list[tuple[float, float]] = []
    for cost, rate in sorted(pairs, key=lambda pair: (pair[0], -pair[1])):
        if not found or rate > found[-1][1]:
            found.append((float(cost), rate))
    return found
