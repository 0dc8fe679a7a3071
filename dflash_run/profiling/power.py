"""What a GPU draws while something is measured: read from its driver, by a thread."""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from dflash_run.training.handles import handle_of

_EVERY_S: Final = 0.1
_SETTLED_S: Final = 1.2
"""The driver tells the mean of the last second: before this, something of what was drawn before is in it."""


class PowerMeter:
    """Of the GPU that this process calls by `name` (`cuda:0`). Tells nothing where there is none, or no driver."""

    def __init__(self, name: str) -> None:
        self._nvml: Any = None
        self._gpu: Any = None
        if not name.startswith("cuda"):
            return
        with contextlib.suppress(Exception):  # without library or driver nothing is known, which costs nothing else
            import pynvml

            pynvml.nvmlInit()
            self._gpu = handle_of(pynvml, int(name.partition(":")[2] or 0))
            self._nvml = None if self._gpu is None else pynvml

    def room(self) -> dict[str, float] | None:
        """Its limit and its idle draw in watts, read now that nothing runs; None: not known."""
        if self._nvml is None:
            return None
        time.sleep(_SETTLED_S)
        with contextlib.suppress(Exception):
            limit = self._nvml.nvmlDeviceGetEnforcedPowerLimit(self._gpu) / 1e3
            idle = self._draw()
            return {"limit_watts": limit, "idle_watts": idle} if idle < limit else None
        return None

    @contextlib.contextmanager
    def watching(self) -> Iterator[list[float]]:
        """Collects readings in watts meanwhile; the largest is what was drawn while all were busy.

        There are none of what is over too soon.
        """
        readings: list[float] = []
        if self._nvml is None:
            yield readings
            return
        over = threading.Event()

        def read() -> None:
            with contextlib.suppress(Exception):
                over.wait(_SETTLED_S)
                while not over.wait(_EVERY_S):
                    readings.append(self._draw())

        thread = threading.Thread(target=read, name="power", daemon=True)
        thread.start()
        try:
            yield readings
        finally:
            over.set()
            thread.join(5.0)

    def _draw(self) -> float:
        return float(self._nvml.nvmlDeviceGetPowerUsage(self._gpu) / 1e3)
