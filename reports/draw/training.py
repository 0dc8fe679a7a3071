"""Figures of what a training sampled: loss, expected accepted length, utilisation and memory of the devices."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from reports.draw.style import (
    HALF,
    Plate,
    axes_of,
    byte_unit,
    colour,
    dash,
    legend_below,
    new_figure,
    short,
    styled,
    time_unit,
)
from reports.sampled import Samples, spans

F64 = NDArray[np.float64]

_CURVES: Final = {
    "loss": ("loss", "held_out_loss"),
    "expected accepted length": ("expected_accepted_length", "held_out_expected_accepted_length"),
    "learning rate": ("lr",),
}
_UNITS: Final = {"expected accepted length": "tokens", "learning rate": "rate"}
_POINTS: Final = 1_000
_SAMPLES: Final = 100
"""Points of a device's line: more of them, of several devices, hide each other."""
_DEVICES: Final = 8


@styled
def learning(key: str, name: str, scalars: Samples) -> Plate | None:
    """Loss, expected accepted length and learning rate by step; None where none of them was written."""
    panels = {what: names for what, names in _CURVES.items() if any(len(scalars[each][0]) for each in names)}
    if not panels:
        return None
    figure = new_figure(HALF, 0.6 + 1.5 * len(panels))
    axes = axes_of(figure, len(panels), sharex=True)
    said, thinned = [], False
    for axis, (what, names) in zip(axes, panels.items(), strict=True):
        for number, each in enumerate(names):
            steps, values = scalars[each]
            if not len(steps):
                continue
            thinned |= len(steps) > _POINTS
            label = "held out" if each.startswith("held_out") else "training"
            gaps = bool(np.isnan(values).any())  # what stands alone between two gaps is no line
            style: Any = {"marker": "." if len(steps) < 60 or gaps else ""}
            if number:
                style = {"marker": "o", "markersize": 4}
            axis.plot(*thin(steps, values), color=colour(number), linestyle=dash(number), label=label, **style)
            said.append(_course(each.replace("_", " "), values))
        axis.set_title(what)
        axis.set_ylabel(_UNITS.get(what, "loss"))
        axis.grid(axis="y")
    axes[-1].set_xlabel("optimizer step")
    figure.align_ylabels()
    legend_below(figure, axes[0])
    how = f" Long series are drawn by the means of {_POINTS:,} groups of neighbouring steps." if thinned else ""
    if len(scalars["drafter"][0]):
        how += " The drafters trained apart (sync: none): a training curve goes through the steps of all of them."
    return Plate(
        key=key,
        title="What was learnt",
        alt=f"{name}: {'; '.join(said)}.",
        caption="From scalars.jsonl. Expected accepted length: draft tokens that the target would take in one round; "
        f"held-out points come from evaluations.{how}",
        figure=figure,
    )


@styled
def devices(key: str, name: str, sampled: Samples) -> Plate | None:
    """Utilisation and memory of each device over time; None where nothing was sampled."""
    known = sorted(each.partition("/")[2] for each in sampled.series if each.startswith("utilization/"))
    found = known[:_DEVICES]
    if not found:
        return None
    memory = any(len(sampled[f"memory_bytes/{device}"][0]) for device in found)
    figure = new_figure(HALF, 0.6 + (3.2 if memory else 2.0))
    axes = axes_of(figure, 1 + memory, sharex=True)
    end_s = max(float(sampled[f"utilization/{device}"][0].max(initial=0.0)) for device in found)
    seconds, unit = time_unit(end_s)
    said, over = [], False
    for number, device in enumerate(found):
        times, values = sampled[f"utilization/{device}"]
        over |= bool((values > 1).any())
        values = np.clip(values, 0.0, 1.0)
        mean = float(np.average(values, weights=spans(times)))
        line: Any = {"color": colour(number), "linestyle": dash(number), "linewidth": 1.2}
        shown_s, shown = thin_by_time(times, values, _SAMPLES)
        axes[0].plot(shown_s / seconds, 100 * shown, label=f"{short(device)}, mean {mean:.0%}", **line)
        said.append(f"{device} {mean:.0%}")
    axes[0].set_ylim(0, 105)
    axes[0].set_ylabel("utilisation [%]")
    if memory:
        scale, sign = byte_unit(max(float(sampled[f"memory_bytes/{d}"][1].max(initial=0.0)) for d in found))
        for number, device in enumerate(found):
            times, values = thin_by_time(*sampled[f"memory_bytes/{device}"], _SAMPLES)
            axes[1].plot(times / seconds, values / scale, color=colour(number), linestyle=dash(number), linewidth=1.2)
        axes[1].set_ylim(0, None)
        axes[1].set_ylabel(f"memory [{sign}]")
    axes[-1].set_xlabel(f"time [{unit}]")
    legend_below(figure, axes[0], 2)
    clipped = " Samples above 100 % are clipped to it." if over else ""
    few = f" The first {_DEVICES} of {len(known)} devices are shown." if len(known) > _DEVICES else ""
    return Plate(
        key=key,
        title="Devices",
        alt=f"{name}: mean utilisation {', '.join(said)}.",
        caption=f"From devices.jsonl, drawn by the means over at most {_SAMPLES} equal parts of the time. A device may "
        f"be busy and still wait: the workers' bars say what for.{few}{clipped}",
        figure=figure,
    )


def thin(x: F64, values: F64, most: int = _POINTS) -> tuple[F64, F64]:
    """The series itself, or the means of `most` groups of neighbours; a group that holds a NaN is a gap."""
    if len(x) <= most:
        return x, values
    edges = np.linspace(0, len(x), most + 1).astype(np.int64)
    sizes = np.diff(edges)
    return _means(x, edges, sizes), _means(values, edges, sizes)


def thin_by_time(times: F64, values: F64, most: int) -> tuple[F64, F64]:
    """The series itself, or its means over `most` equal parts of the time: samples may lie ever further apart."""
    if len(times) <= most:
        return times, values
    begin, length = float(times[0]), max(float(times[-1] - times[0]), 1e-9)
    part = np.minimum(((times - begin) / length * most).astype(np.int64), most - 1)
    weights = spans(times)
    total = np.bincount(part, weights)
    known = total > 0
    shown_s, shown = (np.bincount(part, weights * each)[known] / total[known] for each in (times, values))
    return shown_s, shown


def _course(what: str, values: F64) -> str:
    """The first and the last known value, in words."""
    known = values[~np.isnan(values)]
    if not len(known):
        return f"{what} never finite"
    gaps = len(values) - len(known)
    return f"{what} from {known[0]:.3g} to {known[-1]:.3g}" + (f", not finite {gaps} times" if gaps else "")


def _means(values: F64, edges: "Sequence[int] | NDArray[np.int64]", sizes: NDArray[np.int64]) -> F64:
    means: F64 = np.add.reduceat(values, np.asarray(edges)[:-1]) / sizes
    return means
