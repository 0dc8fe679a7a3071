"""Says that a worker is alive while its only thread computes for long: loading, compiling, a batch on a CPU."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dflash_run.messages import Alive
from dflash_run.worker import Mail

BATCH_S: Final = 600.0
"""More than a batch, a step or a new group takes, what is compiled for it included."""
LONG_S: Final = 3600.0
"""More than loading, saving or evaluating a large model takes from and to a slow disk."""


class Pulse:
    """Beats from a thread of its own, but only inside `busy`: a worker that hangs elsewhere falls silent.

    The thread would beat for one that hangs inside it, too: so a worker is busy for a limited time only.
    """

    def __init__(self, mail: Mail, every_s: float) -> None:
        self._mail = mail
        self._every_s = every_s
        self._busy = threading.Event()
        self._until = 0.0
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()

    @contextmanager
    def busy(self, limit_s: float = BATCH_S) -> Iterator[None]:
        """The worker computes; what takes longer than `limit_s` hangs, and the watchdog's time begins."""
        self._until = time.monotonic() + limit_s
        self._busy.set()
        try:
            yield
        finally:
            self._busy.clear()

    def _beat(self) -> None:
        pause = threading.Event()
        while True:
            self._busy.wait()
            pause.wait(self._every_s)
            if self._busy.is_set() and time.monotonic() < self._until:
                try:
                    self._mail.send(Alive())
                except OSError:  # nobody listens any more
                    return
