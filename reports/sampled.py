"""What a training sampled while it ran: `scalars.jsonl` (loss and the like) and `devices.jsonl` (utilisation).

Each line is a JSON object; a line that a kill cut off, or that is not one, is left out and counted. They are read one
by one into arrays: a run of weeks may have left millions.
"""

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from reports.summaryfile import is_finite

F64 = NDArray[np.float64]

SCALARS: Final = "scalars.jsonl"
DEVICES: Final = "devices.jsonl"
_NAMED: Final = 8
"""Steps that a sentence names."""
_MOST: Final = 1 << 14
"""Points that are kept of a device: more than any figure shows."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Series by name: (x, values), each float64, in order of x; x are steps of scalars and seconds of devices.

    A value that is no finite number is NaN, so that curves have a gap there.
    """

    series: dict[str, tuple[F64, F64]]

    def __getitem__(self, name: str) -> tuple[F64, F64]:
        """An empty series where nothing was sampled under the name."""
        return self.series.get(name, (np.zeros(0), np.zeros(0)))


def read_scalars(folder: Path, missing: list[str]) -> Samples | None:
    """The scalars of a training by optimizer step; None where there is no file. Says what was left out."""
    path = folder / SCALARS
    if not path.is_file():
        return None
    found: dict[str, _Series] = {}
    for line in _lines(path, missing):
        if not is_finite(line.get("step")):
            continue
        for name, value in line.items():
            if name != "step" and (is_finite(value) or _is_gap(value)):
                known = float(value) if is_finite(value) else np.nan
                found.setdefault(str(name), _Series()).add(float(line["step"]), known)
    series = Samples({name: each.sorted() for name, each in found.items()})
    missing += _gaps(series)
    return series


def _is_gap(value: object) -> bool:
    """Whether a number should stand here: a trainer writes null for one that is not finite."""
    return value is None or isinstance(value, float)


def _gaps(samples: Samples) -> list[str]:
    """The steps at which a series has no finite value, a sentence for each series."""
    said = []
    for name, (steps, values) in samples.series.items():
        bad = steps[np.isnan(values)]
        if len(bad):
            named = ", ".join(f"{step:,.0f}" for step in bad[:_NAMED])
            rest = f" and {len(bad) - _NAMED:,} more" if len(bad) > _NAMED else ""
            plural = "" if len(bad) == 1 else "s"
            said.append(f"{SCALARS}: {name} is not finite at step{plural} {named}{rest}: a gap in its curve")
    return said


def read_devices(folder: Path, missing: list[str]) -> Samples | None:
    """Series `utilization/DEVICE` and `memory_bytes/DEVICE` over seconds; None where there is no file.

    A value stands for the time since the one before. Of very long series neighbours become their mean over time.
    """
    path = folder / DEVICES
    if not path.is_file():
        return None
    found: dict[str, _Series] = {}
    for line in _lines(path, missing):
        if not is_finite(line.get("time_s")):
            continue
        for name in ("utilization", "memory_bytes"):
            if is_finite(line.get(name)):
                series = found.setdefault(f"{name}/{line.get('device', 'device')}", _Series())
                series.add(float(line["time_s"]), float(line[name]))
                series.shorten()
    return Samples({name: each.sorted() for name, each in found.items()})


def spans(times: F64) -> F64:
    """The time [s] that each sample stands for: since the one before; never quite nothing, so that there is a mean."""
    since = np.diff(times)
    first = since[:1] if len(since) else np.ones(len(times))
    weights: F64 = np.maximum(np.concatenate([first, since]), 1e-9)
    return weights


class _Series:
    """One series while it is read."""

    def __init__(self) -> None:
        self._x, self._values = array("d"), array("d")

    def add(self, x: float, value: float) -> None:
        self._x.append(x)
        self._values.append(value)

    def shorten(self) -> None:
        """Make pairs of neighbours one, where there are too many."""
        if len(self._x) < 2 * _MOST:
            return
        x, values = self.sorted()
        weights = spans(x)
        sums = (weights * values).reshape(-1, 2).sum(axis=1)
        self._x = array("d", x[1::2].tobytes())
        self._values = array("d", (sums / weights.reshape(-1, 2).sum(axis=1)).tobytes())

    def sorted(self) -> tuple[F64, F64]:
        """By x, and of one x as they came."""
        x, values = np.array(self._x), np.array(self._values)
        order = np.argsort(x, kind="stable")
        return x[order], values[order]


def _lines(path: Path, missing: list[str]) -> Iterator[dict[str, Any]]:
    """The lines that can be read; at the end `missing` is told of the others."""
    good = bad = 0
    for line in _parsed(path):
        if line is None:
            bad += 1
        else:
            good += 1
            yield line
    if bad:
        missing.append(f"{path.name}: {bad} of {bad + good} lines cannot be read and are left out")


def _parsed(path: Path) -> Iterator[dict[str, Any] | None]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            if not text.strip():
                continue
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                line = None
            yield line if isinstance(line, dict) else None
