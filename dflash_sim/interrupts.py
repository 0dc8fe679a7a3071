"""SIGINT and SIGTERM: the first asks the run to end in order, a second one ends it at once."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STATUS = 130
"""Exit status after an interrupt."""


class Interrupt:
    """Whether somebody asked for the end."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self) -> bool:
        return self.requested

    def note(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Signals are noted while the context lasts, in the main thread."""
    interrupt = Interrupt()
    before = {number: signal.signal(number, interrupt.note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
