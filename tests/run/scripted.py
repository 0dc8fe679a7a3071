"""Launchers whose workers are a script: what they say is chosen message by message, what they are told is kept."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dflash_run.crew import Worker
from dflash_run.launcher import Launcher
from dflash_run.limits import Limits
from dflash_run.messages import (
    Applied,
    Apply,
    Compute,
    Computed,
    Fence,
    Fenced,
    Forget,
    Group,
    Grouped,
    Quiesce,
    Quiet,
    Ready,
    Received,
    Refused,
    Train,
)
from dflash_sim.prediction import Run, prepare
from policies.effects import Deliver, Step
from reports.observer import Exchange, Log
from tests.helpers import pipeline_of

Said = list[tuple[Worker, object]]
Scene = Callable[["Scripted"], Iterator[Said]]
"""Yields what the launcher receives next; the run is cut off where it ends."""


class Plain:
    """Messages of a rehearsal that takes no time."""

    def assign(self, target: int, batch: int) -> object:
        return Compute(batch, 0)

    def deliver(self, effect: Deliver) -> object:
        return Train(effect.batch, effect.step, 0, 0)

    def apply(self, effect: Step) -> object:
        return Apply(effect.step)

    def forget(self, batch: int) -> object:
        return Forget(batch)

    def gone(self, batch: int) -> None: ...
    def heard(self, worker: Worker, message: object) -> None: ...

    def loader(self, batch: int) -> float:
        return 0.0

    def openers(self, targets: tuple[int, ...], drafters: tuple[int, ...]) -> Any:
        return ()

    def committed(self, step: int, batches: tuple[int, ...], drafters: tuple[int, ...]) -> Any:
        return ()

    def closers(self, drafters: tuple[int, ...], settled: bool) -> Any:
        return ()


class CutError(Exception):
    """The scene is over."""


class Scripted:
    """The crew, and what a scene asks of it."""

    def __init__(self, scene: Scene) -> None:
        self.posts: Said = []
        self.given_up: list[Worker] = []
        self._scene = scene(self)

    def post(self, worker: Worker, message: object) -> None:
        self.posts.append((worker, message))

    def receive(self, timeout: float) -> Said:
        try:
            return next(self._scene)
        except StopIteration:
            raise CutError from None

    def abandon(self, worker: Worker) -> None:
        self.given_up.append(worker)

    def close(self) -> None: ...

    def told(self, worker: Worker, kind: type | None = None, since: int = 0) -> list[Any]:
        """The messages to this worker, of one kind where one is given, from the `since`-th post on."""
        return [told for to, told in self.posts[since:] if to == worker and (kind is None or isinstance(told, kind))]

    def answers(self, target: int) -> Said:
        """The target computes the batch it was given last."""
        return [(("target", target), Computed(self.told(("target", target), Compute)[-1].batch))]

    def arrive(self, drafter: int) -> Said:
        """The drafter receives all that it was given."""
        worker = ("drafter", drafter)
        return [(worker, Received(train.batch)) for train in self.told(worker, Train)]

    def trains(self, drafter: int, index: int = 0) -> Said:
        """The drafter computes one of the batches that it was given."""
        worker = ("drafter", drafter)
        return [(worker, Computed(self.told(worker, Train)[index].batch))]


def launched(crew: Any, limits: Limits | None = None, **sections: Any) -> tuple[Launcher, Run, list[Exchange]]:
    """A launcher of this crew, its run, and the list that its exchanges go to."""
    run = prepare(pipeline_of(**sections))
    seen: list[Exchange] = []

    class Seen:
        def observe(self, exchanges: list[Exchange]) -> None:
            seen.extend(exchanges)

    launcher = Launcher(
        dispatcher=run.dispatcher,
        briefing=Plain(),
        log=Log(Seen()),
        batches=run.dispatcher.ledger.count(0),
        crew=crew,
        stores=Path("nowhere"),
        limits=limits,
    )
    return launcher, run, seen


class Prompt:
    """A crew that does everything at once, but refuses what is spoilt on its way."""

    def __init__(self, workers: list[Worker], spoilt: Callable[[int, int, int], bool]) -> None:
        """spoilt: whether a batch of this target arrives spoilt at this drafter (batch, target, drafter)."""
        self.given_up: list[Worker] = []
        self._box: Said = [(worker, Ready()) for worker in workers]
        self._spoilt = spoilt
        self._computed_by: dict[int, int] = {}
        self._applied = -1

    def post(self, worker: Worker, message: object) -> None:
        self._box += [(worker, answer) for answer in self._answers(worker[1], message)]

    def _answers(self, number: int, message: object) -> list[object]:
        match message:
            case Compute(batch=batch):
                self._computed_by[batch] = number
                return [Computed(batch)]
            case Train(batch=batch) if self._spoilt(batch, self._computed_by[batch], number):
                return [Refused(batch, "checksum")]
            case Train(batch=batch):
                return [Received(batch), Computed(batch)]
            case Apply(step=step):
                self._applied = step
                return [Applied(step)]
            case Fence(target=target):
                return [Fenced(target)]
            case Quiesce(epoch=epoch):
                return [Quiet(epoch, self._applied)]
            case Group(epoch=epoch):
                return [Grouped(epoch)]
        return []

    def receive(self, timeout: float) -> Said:
        said, self._box = self._box, []
        return [(worker, message) for worker, message in said if worker not in self.given_up]

    def abandon(self, worker: Worker) -> None:
        self.given_up.append(worker)

    def close(self) -> None: ...
