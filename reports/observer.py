"""Who watches a run: the events a driver reports, in the order they happen.

A driver calls the method named after each input of the dispatcher before it gives the input, then `effects` with the
answer. Metrics, memory and traces are observers; `Observers` passes everything on to several.
"""

from collections.abc import Sequence
from typing import Protocol

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
