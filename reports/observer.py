"""Who watches a run: the events a driver reports, in the order they happen.

A driver calls the method named after each input of the dispatcher before it gives the input, then `effects` with the
answer. Metrics, memory and traces are observers; `Observers` passes everything on to several.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from policies.effects import Effect


class Observer(Protocol):
    """What every observer must take; times are seconds from the start of the run and never fall."""

    def load(self, now: float, batch: int) -> None: ...

    def loader_done(self, now: float) -> None: ...

    def ask(self, now: float, target: int) -> None: ...

    def offer(self, now: float, target: int, batch: int) -> None: ...

    def target_lost(self, now: float, target: int) -> None: ...

    def take(self, now: float, drafter: int) -> None: ...

    def received(self, now: float, drafter: int, batch: int) -> None: ...

    def computed(self, now: float, drafter: int, batch: int) -> None: ...

    def commit(self, now: float, step: int, batches: Sequence[int]) -> None: ...

    def abandon(self, now: float, step: int) -> None: ...

    def drafter_lost(self, now: float, drafter: int) -> None: ...

    def stop(self, now: float, reason: str) -> None: ...

    def effects(self, now: float, effects: Sequence[Effect]) -> None: ...


class Silent:
    """An observer that ignores everything: the base of those that need only some events."""

    def load(self, now: float, batch: int) -> None:
        pass

    def loader_done(self, now: float) -> None:
        pass

    def ask(self, now: float, target: int) -> None:
        pass

    def offer(self, now: float, target: int, batch: int) -> None:
        pass

    def target_lost(self, now: float, target: int) -> None:
        pass

    def take(self, now: float, drafter: int) -> None:
        pass

    def received(self, now: float, drafter: int, batch: int) -> None:
        pass

    def computed(self, now: float, drafter: int, batch: int) -> None:
        pass

    def commit(self, now: float, step: int, batches: Sequence[int]) -> None:
        pass

    def abandon(self, now: float, step: int) -> None:
        pass

    def drafter_lost(self, now: float, drafter: int) -> None:
        pass

    def stop(self, now: float, reason: str) -> None:
        pass

    def effects(self, now: float, effects: Sequence[Effect]) -> None:
        pass


class Funnel:
    """An observer that hands every input to its one method `input`; its subclasses add `input` and `effects`."""

    def input(self, now: float, name: str, args: tuple[Any, ...]) -> None:
        """The driver is about to call the dispatcher's method `name` with `args`."""
        raise NotImplementedError

    def load(self, now: float, batch: int) -> None:
        self.input(now, "load", (batch,))

    def loader_done(self, now: float) -> None:
        self.input(now, "loader_done", ())

    def ask(self, now: float, target: int) -> None:
        self.input(now, "ask", (target,))

    def offer(self, now: float, target: int, batch: int) -> None:
        self.input(now, "offer", (target, batch))

    def target_lost(self, now: float, target: int) -> None:
        self.input(now, "target_lost", (target,))

    def take(self, now: float, drafter: int) -> None:
        self.input(now, "take", (drafter,))

    def received(self, now: float, drafter: int, batch: int) -> None:
        self.input(now, "received", (drafter, batch))

    def computed(self, now: float, drafter: int, batch: int) -> None:
        self.input(now, "computed", (drafter, batch))

    def commit(self, now: float, step: int, batches: Sequence[int]) -> None:
        self.input(now, "commit", (step, tuple(batches)))

    def abandon(self, now: float, step: int) -> None:
        self.input(now, "abandon", (step,))

    def drafter_lost(self, now: float, drafter: int) -> None:
        self.input(now, "drafter_lost", (drafter,))

    def stop(self, now: float, reason: str) -> None:
        self.input(now, "stop", (reason,))


class Observers(Funnel):
    """Passes every event on to several observers, in the order given."""

    def __init__(self, *observers: Observer) -> None:
        self._inputs = {
            name: [getattr(observer, name) for observer in observers]
            for name in vars(Funnel)
            if name != "input" and not name.startswith("_")
        }
        self._effects = [observer.effects for observer in observers]

    def input(self, now: float, name: str, args: tuple[Any, ...]) -> None:
        for call in self._inputs[name]:
            call(now, *args)

    def effects(self, now: float, effects: Sequence[Effect]) -> None:
        for call in self._effects:
            call(now, effects)
