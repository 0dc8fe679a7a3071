"""The script's side of the workers: it posts what a launcher would post, and times the answers."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from dflash_run.crew import Crew, Worker
from dflash_run.messages import Alive, Gone
from policies.faults import ABSENT, Fault, PipelineError
from reports import entry

Said = TypeVar("Said")

_TICK_S: Final = 1.0


@dataclass(frozen=True)
class Phase:
    """What a worker does between two messages."""

    name: str
    until: type
    """The message that ends it."""
    message: object = None
    """What begins it; None: the end of the phase before."""


class _Turn:
    """Where a worker is in its phases, and what they took."""

    def __init__(self, phases: Sequence[Phase]) -> None:
        self._phases = phases
        self._taken: list[dict[str, float]] = []
        self._cycle: dict[str, float] = {}
        self.at = 0
        self.since = 0.0

    @property
    def phase(self) -> Phase:
        return self._phases[self.at]

    @property
    def cycles(self) -> int:
        return len(self._taken)

    def end(self, now: float, *, counted: bool) -> None:
        """The phase is over."""
        self._cycle[self.phase.name] = now - self.since
        self.at = (self.at + 1) % len(self._phases)
        if self.at == 0:
            if counted:
                self._taken.append(self._cycle)
            self._cycle = {}

    def taken(self) -> dict[str, list[float]]:
        """Seconds of each phase, a number for each whole cycle."""
        return {phase.name: [cycle[phase.name] for cycle in self._taken] for phase in self._phases}


class Stage:
    """The workers of a profile. Whoever is gone ends it: there is nothing to measure without them."""

    def __init__(self, crew: Crew, patience_s: float) -> None:
        """`patience_s`: how long anything that a worker is asked may take."""
        self._crew = crew
        self._patience_s = patience_s
        self.silence_s = math.inf
        """How long it may say nothing meanwhile, not even that it is alive."""
        self._heard: dict[Worker, float] = {}
        """When each said something last."""
        self._awake = -math.inf
        """When this process went on after it had stood still: nobody was silent before."""
        self._kept: list[tuple[Worker, object]] = []
        """What was said and not asked for yet."""

    def post(self, worker: Worker, message: object) -> None:
        self._crew.post(worker, message)

    def await_(self, worker: Worker, kind: type[Said]) -> tuple[Said, float]:
        """The worker's next message of this kind, and when it came. Raises PipelineError."""
        since = time.perf_counter()
        while True:
            for at, (who, message) in enumerate(self._kept):
                if who == worker and isinstance(message, kind):
                    del self._kept[at]
                    return message, time.perf_counter()
            self._check(worker, since)
            self._kept += self._hear()

    def ask(self, worker: Worker, message: object, kind: type[Said]) -> tuple[Said, float]:
        """Post, and wait for the answer of this kind; returns it, and the seconds from the one to the other."""
        start = time.perf_counter()
        self.post(worker, message)
        answer, end = self.await_(worker, kind)
        return answer, end - start

    def flow(
        self, cycles: Mapping[Worker, Sequence[Phase]], seconds: float, least: int = 3
    ) -> dict[Worker, dict[str, list[float]]]:
        """Keep these workers busy at once for so long, each with its phases over and over.

        Returns the seconds of each worker's phases in the cycles that were done before the first worker was let go.
        Raises PipelineError.
        """
        self._kept.clear()
        start = time.perf_counter()
        turns = {worker: _Turn(phases) for worker, phases in cycles.items()}
        for worker in turns:
            self._begin(worker, turns[worker])
        busy, over = set(turns), False
        while busy:
            for worker in busy:
                self._check(worker, turns[worker].since)
            for worker, said in self._hear():
                turn = turns.get(worker)
                if turn is None or worker not in busy or not isinstance(said, turn.phase.until):
                    continue
                turn.end(time.perf_counter(), counted=not over)
                enough = time.perf_counter() - start >= seconds and min(each.cycles for each in turns.values()) >= least
                over = over or enough
                if over and turn.at == 0:
                    busy.discard(worker)
                else:
                    self._begin(worker, turn)
        return {worker: turn.taken() for worker, turn in turns.items()}

    def _begin(self, worker: Worker, turn: "_Turn") -> None:
        turn.since = time.perf_counter()
        if turn.phase.message is not None:
            self.post(worker, turn.phase.message)

    def _check(self, worker: Worker, since: float) -> None:
        """Raises PipelineError where the worker, asked at `since`, is given up."""
        now = time.perf_counter()
        heard = max(since, self._heard.get(worker, since), self._awake)
        for begin, limit_s in ((since, self._patience_s), (heard, self.silence_s)):
            if now - begin > limit_s:
                raise _gone(worker, f"did not answer within {limit_s:g} s")

    def _hear(self) -> list[tuple[Worker, object]]:
        """What workers said, but that they are alive; waits a little for something."""
        entry.check()
        begin = time.perf_counter()
        said = self._crew.receive(_TICK_S)
        now = time.perf_counter()
        if now - begin > 2 * _TICK_S:
            self._awake = now
        self._heard |= dict.fromkeys((worker for worker, _ in said), now)
        for worker, message in said:
            if isinstance(message, Gone):
                raise _gone(worker, message.why)
        return [(worker, message) for worker, message in said if not isinstance(message, Alive)]


def _gone(worker: Worker, why: str) -> PipelineError:
    return PipelineError([Fault(f"{worker[0]}/{worker[1]}", ABSENT, f"could not be measured: {why}")])
