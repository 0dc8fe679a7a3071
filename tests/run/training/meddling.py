"""A crew in which something happens at a chosen message: a worker is killed, or stopped."""

import os
import signal
from collections.abc import Callable, Mapping

from dflash_run.crew import Crew, ProcessCrew, Worker
from dflash_run.training.orders import TrainingOrders
from dflash_run.training.train import Hire
from tests.run.training.cases import HIRED

Meddle = Callable[[ProcessCrew, Worker, object], bool]
"""Told of each message before it is sent; whether it is to be sent."""


class Meddling:
    """A crew of processes, as the launcher sees it."""

    def __init__(self, crew: ProcessCrew, meddle: Meddle) -> None:
        self._crew = crew
        self._meddle = meddle
        self.receive = crew.receive
        self.abandon = crew.abandon
        self.close = crew.close

    def post(self, worker: Worker, message: object) -> None:
        if self._meddle(self._crew, worker, message):
            self._crew.post(worker, message)


def meddled(meddle: Meddle) -> Hire:
    def hire(orders: Mapping[Worker, TrainingOrders]) -> Crew:
        crew = HIRED(orders)
        assert isinstance(crew, ProcessCrew)
        return Meddling(crew, meddle)

    return hire


def at(kind: type, number: signal.Signals, role: str, *numbers: int) -> Hire:
    """These workers get a signal instead of their first message of this kind."""
    left = {(role, each) for each in numbers}

    def meddle(crew: ProcessCrew, worker: Worker, message: object) -> bool:
        if not isinstance(message, kind) or worker not in left:
            return True
        left.remove(worker)
        pid = crew.process(worker).pid
        assert pid is not None
        os.kill(pid, number)
        return False

    return meddled(meddle)
