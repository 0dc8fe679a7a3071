"""Says that a worker is alive while its only thread computes for long: loading, compiling, a batch on a CPU."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dflash_run.messages import Alive
from dflash_run.worker import Mail


class Pulse:
    """Beats from a thread of its own, but only inside `busy`: a worker that hangs elsewhere falls silent."""

    def __init__(self, mail: Mail, every_s: float) -> None:
        self._mail = mail
        self._every_s = every_s
        self._busy = threading.Event()
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """The worker computes."""
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
            if self._busy.is_set():
                try:
                    self._mail.send(Alive())
                except OSError:  # nobody listens any more
                    return
