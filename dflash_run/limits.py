"""When a run ends before its data do, and how long its start and its end may take."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """In seconds."""

    at_s: float | None = None
    """Model seconds."""
    watchdog_s: float = 600.0
    """Wall seconds after which a worker that should compute, and is silent, is given up."""
    start_s: float = 60.0
    """Wall seconds that workers may take to start."""
    close_s: float = 0.0
    """Wall seconds that a step being applied, and the last checkpoint, may take when the run is stopped."""
