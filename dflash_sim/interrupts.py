"""SIGINT, SIGTERM and SIGHUP: the first asks the run to end in order, a second one ends it at once."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from reports import entry

STATUS = entry.INTERRUPTED
"""Exit status after an interrupt."""
HANGUP: Final = getattr(signal, "SIGHUP", None)
"""Not on every system."""
SIGNALS: Final = frozenset({signal.SIGINT, signal.SIGTERM} | ({HANGUP} if HANGUP is not None else set()))
"""What a terminal, a scheduler or a hung-up line sends, to all processes of the group."""
_SAME_S: Final = 1.0
"""`timeout` and schedulers send SIGTERM to the process and to its group: so soon after the first it is the same."""


class Interrupt:
    """Whether somebody asked for the end."""

    def __init__(self) -> None:
        self.requested = False
        self._at = 0.0

    def __call__(self) -> bool:
        return self.requested

    def note(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        if not self.requested:
            self._at, self.requested = time.monotonic(), True
        elif number == signal.SIGINT or (number == signal.SIGTERM and time.monotonic() - self._at > _SAME_S):
            entry.interrupt(number, frame)  # not for SIGHUP, which a shell and the kernel both send


@contextmanager
def held() -> Iterator[None]:
    """What is done inside is done whole: signals that come meanwhile are heard when it ends.

    Other threads than the main one hear none anyway.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in SIGNALS}
    callers = {number: handler for number, handler in before.items() if handler not in (None, signal.SIG_IGN)}
    for number in callers:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in callers.items():
            signal.signal(number, handler)
    for number in came:
        signal.raise_signal(number)


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Signals are noted while the context lasts, in the main thread. Under nohup SIGHUP stays ignored."""
    entry.check()
    interrupt = Interrupt()
    nohup = HANGUP is not None and signal.getsignal(HANGUP) == signal.SIG_IGN
    noted = SIGNALS - {HANGUP} if nohup else SIGNALS
    before = {number: signal.signal(number, interrupt.note) for number in noted}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
