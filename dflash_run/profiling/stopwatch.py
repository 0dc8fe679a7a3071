"""Seconds between points of a device's work: events on a GPU, the processor's clock on a CPU."""

import time
from itertools import pairwise

import torch


class Stopwatch:
    """Started when made; `mark` ends a part."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._names: list[str] = []
        self._clock: list[float] = []
        self._events: list[torch.cuda.Event] = []
        self._point()

    def mark(self, name: str) -> None:
        """What was launched since the last mark is a part of this name."""
        self._names.append(name)
        self._point()

    def seconds(self) -> dict[str, float]:
        """Of each part, however often it came; waits for the device."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            taken = [a.elapsed_time(b) / 1e3 for a, b in pairwise(self._events)]
        else:
            taken = [b - a for a, b in pairwise(self._clock)]
        parts = dict.fromkeys(self._names, 0.0)
        for name, spent in zip(self._names, taken, strict=True):
            parts[name] += spent
        return parts

    def _point(self) -> None:
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._events.append(event)
        else:
            self._clock.append(time.perf_counter())


def peak_bytes(device: torch.device) -> int:
    """The most memory that this process took so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
