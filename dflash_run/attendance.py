"""Who lives, when each said something last, and which answers are owed; the only way from the launcher to the crew."""

import time
from collections.abc import Callable, Iterable
from typing import Final

from dflash_run.crew import Crew, Worker
from dflash_run.messages import Answer, Gone, Question

TICK_S: Final = 0.1
"""Longest wait for a message: how soon a signal or the watchdog is heard."""


class Attendance:
    """Every worker owes an answer for having been started. `heard` is told of all that is said while waiting."""

    def __init__(self, crew: Crew, workers: Iterable[Worker], heard: Callable[[Worker, object], None]) -> None:
        self._crew = crew
        self._heard = heard
        self._owing: dict[Worker, int] = dict.fromkeys(workers, 1)
        self._awake = time.monotonic()
        """When the launcher was last seen to run."""
        self.present: dict[Worker, float] = {}
        """The live workers, and when each said something last, by the wall."""
        self.gone: dict[Worker, str] = {}
        """Workers that went, or did not come, while they were waited for, and why."""

    def drafters(self) -> list[int]:
        """Those that live."""
        return sorted(number for role, number in self.present if role == "drafter")

    def alone(self, role: str) -> bool:
        """Whether nobody of this role lives."""
        return not any(role == other for other, _ in self.present)

    def owes(self, worker: Worker) -> bool:
        """Whether the worker owes an answer."""
        return worker in self._owing

    def send(self, worker: Worker, message: object) -> None:
        """Post a message; a question is owed an answer from now on."""
        if isinstance(message, Question):
            self._owing[worker] = self._owing.get(worker, 0) + 1
        self._crew.post(worker, message)

    def note(self, worker: Worker, message: object) -> None:
        """A worker said this."""
        self.present[worker] = time.monotonic()
        if isinstance(message, Answer) and worker in self._owing:
            self._owing[worker] -= 1
            if not self._owing[worker]:
                del self._owing[worker]

    def busy(self, worker: Worker) -> None:
        """It has work from now on: its silence counts from here."""
        if worker in self.present:
            self.present[worker] = time.monotonic()

    def receive(self, timeout: float) -> list[tuple[Worker, object]]:
        """What workers said, waiting at most `timeout` seconds."""
        self._excuse()
        said = self._crew.receive(timeout)
        self._excuse(timeout)
        return said

    def silent(self, limit_s: float) -> list[Worker]:
        """Those that said nothing for so long, though the launcher was there to hear it."""
        self._excuse()
        limit = time.monotonic() - limit_s
        return [worker for worker, heard in self.present.items() if heard < limit]

    def _excuse(self, meant: float = 0.0) -> None:
        """Where the launcher itself stood still (suspended, or on a busy machine), nobody was silent meanwhile."""
        now = time.monotonic()
        stood, self._awake = now - self._awake - meant, now
        if stood > TICK_S:
            self.present = {worker: min(heard + stood, now) for worker, heard in self.present.items()}

    def strike(self, worker: Worker) -> None:
        """It is gone: it owes nothing."""
        del self.present[worker]
        self._owing.pop(worker, None)

    def abandon(self, worker: Worker) -> None:
        """Give up a worker that hangs."""
        self._crew.abandon(worker)

    def wait(
        self, until: float, interrupted: Callable[[], bool] = lambda: False, silent_s: float | None = None
    ) -> list[Worker]:
        """Wait for all answers; returns the workers that are late. An interrupt ends the waiting: nobody is.

        `silent_s`: who owes an answer and says nothing for so long is given up.
        """
        while self._owing and time.monotonic() < until:
            if interrupted():
                self._owing = {}
            for worker, message in self.receive(TICK_S):
                if worker in self.present or worker in self._owing:
                    self.note(worker, message)
                    self._heard(worker, message)
                    if isinstance(message, Gone):
                        self._gone(worker, message.why)
            for worker in [] if silent_s is None else self.silent(silent_s):
                if worker in self._owing:
                    self.abandon(worker)
                    self._gone(worker, f"silent for {silent_s:g} s")
        return list(self._owing)

    def _gone(self, worker: Worker, why: str) -> None:
        self.gone[worker] = why
        self._owing.pop(worker, None)

    def forget_absent(self) -> list[Worker]:
        """Let go of what workers owe that are gone; returns the others that owe something."""
        self._owing = {worker: owed for worker, owed in self._owing.items() if worker in self.present}
        self.gone.clear()
        return list(self._owing)
