"""A training's trace. Where it cannot be written any more the training ends in order, instead of being lost with it."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dflash_sim.folders import unwritable
from dflash_sim.prediction import Run, trace_of
from policies.faults import PipelineError
from reports.observer import Exchange
from reports.tracewriter import TraceWriter

_EVERY_S = 2.0
"""How often the trace is flushed: a run may be killed."""


class Recording:
    """An observer."""

    def __init__(self, writer: TraceWriter) -> None:
        self.failure = ""
        """Why nothing is recorded any more; empty: all is. What was flushed before stays readable."""
        self._writer = writer

    def observe(self, exchanges: list[Exchange]) -> None:
        """The next exchanges."""
        if not self.failure:
            try:
                self._writer.observe(exchanges)
            except OSError as error:
                self._fail(error)

    def finish(self, now: float) -> None:
        """The run is over at this time [s]."""
        if not self.failure:
            self._writer.finish(now)

    def close(self) -> None:
        """No more events."""
        if not self.failure:
            try:
                self._writer.close()
            except OSError as error:
                self._fail(error)
                with suppress(OSError):
                    self._writer.path.with_name(f"{self._writer.path.name}.tmp").unlink(missing_ok=True)

    def _fail(self, error: OSError) -> None:
        self.failure = f"{self._writer.path}: the trace could not be written ({error.strerror or error})"


@contextmanager
def recorded(folder: Path, kind: str, run: Run) -> Iterator[Recording]:
    """A recorder of this run. Raises PipelineError where it cannot begin."""
    try:
        recording = Recording(trace_of(folder, kind, run, _EVERY_S))
    except OSError as error:
        raise PipelineError([unwritable(folder, error)]) from None
    try:
        yield recording
    finally:
        recording.close()
