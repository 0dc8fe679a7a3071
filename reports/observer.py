"""The event stream: what a driver told the dispatcher and what it answered, handed on to whoever watches the run.

A driver appends one `Exchange` for every input to `Log.pending` and flushes now and then; observers take them in order.
Metrics, memory and traces are observers; a trace file is the same stream, stored.
"""

from typing import Any, Protocol

from policies.effects import Effect

Exchange = tuple[float, str, tuple[Any, ...], list[Effect]]
"""(seconds from the start, name of the dispatcher's method, its arguments, its answer); a plain tuple because several
are made for every batch. The answer must not be changed afterwards."""


class Observer(Protocol):
    """Whoever watches a run."""

    def observe(self, exchanges: list[Exchange]) -> None:
        """The next exchanges, in the order they happened; their times never fall."""
        ...


class Log:
    """Collects exchanges and hands them to the observers, in the order given."""

    def __init__(self, *observers: Observer) -> None:
        self.pending: list[Exchange] = []
        """What happened since the last flush; the driver appends."""
        self._observers = observers

    def flush(self) -> None:
        """Hand on what is pending."""
        if self.pending:
            for observer in self._observers:
                observer.observe(self.pending)
            self.pending.clear()
