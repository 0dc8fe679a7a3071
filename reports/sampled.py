"""What a training sampled while it ran: `scalars.jsonl` (loss and the like) and `devices.jsonl` (utilisation).

Each line is a JSON object; a line that a kill cut off, or that is not one, is left out and counted.
"""

import json
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
    lines = _lines(folder / SCALARS, missing)
    if lines is None:
        return None
    found: dict[str, list[tuple[float, float]]] = {}
    for line in lines:
        if not is_finite(line.get("step")):
            continue
        for name, value in line.items():
            if name != "step" and (is_finite(value) or _is_gap(value)):
                known = float(value) if is_finite(value) else np.nan
                found.setdefault(str(name), []).append((float(line["step"]), known))
    series = _samples(found)
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
    """Series `utilization/DEVICE` and `memory_bytes/DEVICE` over seconds; None where there is no file."""
    lines = _lines(folder / DEVICES, missing)
    if lines is None:
        return None
    found: dict[str, list[tuple[float, float]]] = {}
    for line in lines:
        if not is_finite(line.get("time_s")):
            continue
        for name in ("utilization", "memory_bytes"):
            if is_finite(line.get(name)):
                key = f"{name}/{line.get('device', 'device')}"
                found.setdefault(key, []).append((float(line["time_s"]), float(line[name])))
    return _samples(found)


def _samples(found: dict[str, list[tuple[float, float]]]) -> Samples:
    series = {}
    for name, pairs in found.items():
        pairs.sort(key=lambda pair: pair[0])
        x, values = np.array(pairs, np.float64).T
        series[name] = (x, values)
    return Samples(series)


def _lines(path: Path, missing: list[str]) -> list[dict[str, Any]] | None:
    if not path.is_file():
        return None
    good, bad = [], 0
    for line in _parsed(path):
        if line is None:
            bad += 1
        else:
            good.append(line)
    if bad:
        missing.append(f"{path.name}: {bad} of {bad + len(good)} lines cannot be read and are left out")
    return good


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
