"""The script's side of the workers: it posts what a launcher would post, and times the answers."""

import time
from collections.abc import Mapping
from typing import Final, TypeVar

from dflash_run.crew import Crew, Worker
from dflash_run.messages import Gone
from policies.faults import ABSENT, Fault, PipelineError

Said = TypeVar("Said")

_TICK_S: Final = 1.0


class Stage:
    """The workers of a profile. Whoever is gone ends it: there is nothing to measure without them."""

    def __init__(self, crew: Crew, patience_s: float) -> None:
        self._crew = crew
        self._patience_s = patience_s
        self._kept: list[tuple[Worker, object]] = []
        """What was said and not asked for yet."""

    def post(self, worker: Worker, message: object) -> None:
        self._crew.post(worker, message)

    def await_(self, worker: Worker, kind: type[Said]) -> tuple[Said, float]:
        """The worker's next message of this kind, and when it came. Raises PipelineError."""
        until = time.perf_counter() + self._patience_s
        while True:
            for at, (who, message) in enumerate(self._kept):
                if who == worker and isinstance(message, kind):
                    del self._kept[at]
                    return message, time.perf_counter()
            self._listen(until, worker)

    def ask(self, worker: Worker, message: object, kind: type[Said]) -> tuple[Said, float]:
        """Post, and wait for the answer of this kind; returns it, and the seconds from the one to the other."""
        start = time.perf_counter()
        self.post(worker, message)
        answer, end = self.await_(worker, kind)
        return answer, end - start

    def flow(
        self, messages: Mapping[Worker, object], done: type, seconds: float, least: int = 3
    ) -> dict[Worker, float]:
        """Keep these workers busy at once for so long, each with its message over and over.

        Returns each worker's mean seconds a message, over those that were done before the time was over (and before
        another worker was let go).
        """
        self._kept.clear()
        start = time.perf_counter()
        counts, last = dict.fromkeys(messages, 0), dict.fromkeys(messages, start)
        for worker, message in messages.items():
            self.post(worker, message)
        busy = set(messages)
        over = False
        while busy:
            for worker, said in self._hear(start + seconds + self._patience_s):
                if worker not in busy or not isinstance(said, done):
                    continue
                now = time.perf_counter()
                if not over:
                    counts[worker] += 1
                    last[worker] = now
                over = over or (now - start >= seconds and min(counts.values()) >= least)
                if over:
                    busy.discard(worker)
                else:
                    self.post(worker, messages[worker])
        return {worker: (last[worker] - start) / counts[worker] for worker in messages}

    def _listen(self, until: float, worker: Worker) -> None:
        self._kept += self._hear(until)
        if time.perf_counter() > until:
            raise _gone(worker, f"did not answer within {self._patience_s:g} s")

    def _hear(self, until: float) -> list[tuple[Worker, object]]:
        said = self._crew.receive(min(_TICK_S, max(until - time.perf_counter(), 0.0)))
        for worker, message in said:
            if isinstance(message, Gone):
                raise _gone(worker, message.why)
        return said


def _gone(worker: Worker, why: str) -> PipelineError:
    return PipelineError([Fault(f"{worker[0]}/{worker[1]}", ABSENT, f"could not be measured: {why}")])
