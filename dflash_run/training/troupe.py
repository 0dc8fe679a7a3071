"""Workers that outlive a run: models stay loaded and kernels compiled while one run after the other is played."""

import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from dflash_run.crew import Crew, GrowingCrew, Worker
from dflash_run.messages import Finish, Gone
from dflash_run.training.messages import Renew, Rest, Rested
from dflash_run.training.orders import TrainingOrders
from dflash_run.training.train import Work

_REST_S: Final = 60.0
"""How long a worker may take to let go of a run."""
_FREE: Final = ("accumulate", "sync", "save_every", "evaluate_every", "keep", "log_every", "tracker")
"""Settings of `training` that the launcher alone obeys."""


class Troupe:
    """`engage` is what `train` and `profile` take as `hire`; a worker that fits the new orders is not started again."""

    def __init__(self, crew: GrowingCrew, work: Work) -> None:
        """crew: an empty one, whose end this is too. work: by role, the function of (mail, orders) of a new worker."""
        self.crew = crew
        self._work = work
        self._lasting: dict[Worker, object] = {}
        """The workers that rest or play, and what of their orders cannot change."""

    def engage(self, orders: Mapping[Worker, TrainingOrders]) -> Crew:
        """These workers, for one run; closing what is returned lets them rest."""
        for worker, told in orders.items():
            if self._lasting.get(worker) == lasting(told):
                self.crew.post(worker, Renew(told))
                continue
            self.dismiss(worker)
            self.crew.add(worker, partial(self._work[worker[0]], orders=told))
            self._lasting[worker] = lasting(told)
        return _Engaged(self, list(orders))

    def dismiss(self, worker: Worker) -> None:
        """It is not needed any more."""
        if self._lasting.pop(worker, None) is not None:
            self.crew.post(worker, Finish())

    def forget(self, worker: Worker) -> None:
        """It is gone."""
        self._lasting.pop(worker, None)

    def close(self) -> None:
        """End everyone."""
        self.crew.close()


class _Engaged:
    """The crew of one run."""

    def __init__(self, troupe: Troupe, workers: list[Worker]) -> None:
        self._troupe = troupe
        self._crew = troupe.crew
        self._playing = set(workers)

    def post(self, worker: Worker, message: object) -> None:
        if worker in self._playing:
            self._crew.post(worker, message)

    def receive(self, timeout: float) -> list[tuple[Worker, object]]:
        said = self._crew.receive(timeout)
        for worker, message in said:
            if isinstance(message, Gone):
                self._forget(worker)
        return [(worker, message) for worker, message in said if worker in self._playing or isinstance(message, Gone)]

    def abandon(self, worker: Worker) -> None:
        self._crew.abandon(worker)
        self._forget(worker)

    def close(self) -> None:
        """Drafters first: they have opened what is the targets'."""
        for role in ("drafter", "target"):
            resting = {worker for worker in self._playing if worker[0] == role}
            for worker in resting:
                self._crew.post(worker, Rest())
            until = time.monotonic() + _REST_S
            while resting & self._playing and time.monotonic() < until:
                for worker, message in self.receive(0.1):
                    if isinstance(message, Rested):
                        resting.discard(worker)
            for worker in resting & self._playing:
                self.abandon(worker)
        self._playing.clear()

    def _forget(self, worker: Worker) -> None:
        self._playing.discard(worker)
        self._troupe.forget(worker)


def lasting(orders: TrainingOrders) -> object:
    """What a worker is built for; it can play every run whose orders share this."""
    config: Mapping[str, Any] = orders.config
    training = {key: value for key, value in config["training"].items() if key not in _FREE}
    memory = config["memory"]["staging"], orders.slot_bytes
    return orders.devices, config["seed"], config["model"], training, memory, orders.mask_token_id, orders.resume
