"""The beat of a worker whose only thread computes for long."""

import time

from dflash_run.messages import Alive
from dflash_run.training.pulse import Pulse


class Heard:
    """Counts beats."""

    beats = 0

    def get(self, timeout: float | None) -> object | None:
        return None

    def send(self, message: object) -> None:
        self.beats += isinstance(message, Alive)

    def within(self, seconds: float) -> int:
        """How many come in this time."""
        before = self.beats
        time.sleep(seconds)
        return self.beats - before


def test_a_worker_that_hangs_while_it_computes_falls_silent_in_the_end() -> None:
    heard = Heard()
    pulse = Pulse(heard, every_s=0.01)
    with pulse.busy(limit_s=0.15):
        assert heard.within(0.25) >= 1
        assert heard.within(0.2) == 0
    with pulse.busy(limit_s=30.0):
        assert heard.within(0.2) >= 1
    heard.within(0.05)  # a beat may be on its way
    assert heard.within(0.1) == 0
