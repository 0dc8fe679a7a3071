"""The workers of a training as threads of this process, each on its own stream; slots are plain tensors to all."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch

from dflash_run.crew import Worker
from dflash_run.model.compiled import compile_no_more
from dflash_run.partitions.kernels import Product, launch
from dflash_run.partitions.memory import take
from dflash_run.partitions.multiprocessors import Split
from dflash_run.profiling.loops import ProfiledDrafter, ProfiledTarget
from dflash_run.training.bench import Bench
from dflash_run.training.drafter_loop import DrafterLoop
from dflash_run.training.orders import TrainingOrders
from dflash_run.training.target_loop import TargetLoop
from dflash_run.transport.parcel import Slot
from dflash_run.transport.staging import Mapped
from dflash_run.worker import Mail

Staged = dict[tuple[int, int], torch.Tensor]
"""Slots on the device, by owner and index."""


class LocalMapped(Mapped):
    """Slots that all workers of a process share: nothing is opened, since nothing is another process's."""

    def __init__(self, slot_bytes: int, device: torch.device, staged: Staged) -> None:
        super().__init__(slot_bytes, device)
        self._staged = staged

    def own(self, slot: Slot) -> torch.Tensor:
        key = (slot.owner, slot.index)
        if key not in self._staged:
            self._staged[key] = torch.empty(self._bytes, dtype=torch.uint8, device=self.device)
        return self._staged[key]

    def handle(self, slot: Slot) -> tuple[object, ...] | None:
        return () if (slot.owner, slot.index) in self._staged else None

    def foreign(self, slot: Slot, handle: tuple[object, ...]) -> torch.Tensor:
        return self._staged[slot.owner, slot.index]


class ThreadBench(Bench):
    """A worker's share of a process."""

    poll_s = 0.002  # threads that ask too often keep the interpreter from those that launch

    def __init__(self, mail: Mail, orders: TrainingOrders, staged: Staged) -> None:
        self._staged = staged
        super().__init__(mail, orders)

    def _map(self, slot_bytes: int) -> Mapped:
        return LocalMapped(slot_bytes, self.device, self._staged)

    def _note_peak(self) -> None:
        """What one worker took of a process's memory is not known."""


class Floor:
    """Where the workers of one process are built, one after the other, and run."""

    def __init__(self, split: Split, workers: Iterable[Worker], ahead: Mapping[str, int]) -> None:
        """ahead: bytes of the device that a worker of each role takes before it begins."""
        self._ahead = ahead
        self._streams = dict(zip(workers, split.streams, strict=True))
        self._staged: Staged = {}
        self._building = threading.Lock()
        """Building a model sets the process's default dtype for a while."""

    def work(self) -> Mapping[str, Callable[..., None]]:
        """What threads of each role run; they can also be measured."""
        return {"target": self._target, "drafter": self._drafter}

    def compile(self, orders: TrainingOrders, batches: Iterable[tuple[int, ...]]) -> None:
        """Compile in this thread what drafters need for batches like these, before any other runs.

        Compilations of several threads hang, or end those that meet in a compiled function meanwhile: what would
        have to be compiled later is computed as it is, slowly.
        """
        worker = ("drafter", orders.number)
        if self._streams[worker] is None:
            return  # on a processor nothing is compiled
        compile_no_more(False)
        with self._placed(worker):
            loop = ProfiledDrafter(ThreadBench(_NoMail(), orders, self._staged))
            loop.warm_up(batches)
        compile_no_more()

    def launch(self, worker: Worker, products: Iterable[Product], rows: Iterable[int]) -> None:
        """Launch in this thread, where the worker will, what all would wait for if one launched it later."""
        if (stream := self._streams[worker]) is not None:
            with self._placed(worker):
                launch(products, rows, stream.device)

    def _target(self, mail: Mail, orders: TrainingOrders) -> None:
        self._run(("target", orders.number), lambda: ProfiledTarget(ThreadBench(mail, orders, self._staged)))

    def _drafter(self, mail: Mail, orders: TrainingOrders) -> None:
        self._run(("drafter", orders.number), lambda: ProfiledDrafter(ThreadBench(mail, orders, self._staged)))

    def _run(self, worker: Worker, build: Callable[[], TargetLoop | DrafterLoop]) -> None:
        with self._placed(worker):
            with self._building:
                loop = build()
                if (stream := self._streams[worker]) is not None:
                    take(self._ahead[worker[0]], stream.device)
            loop.run()

    @contextlib.contextmanager
    def _placed(self, worker: Worker) -> Iterator[None]:
        """On the worker's stream."""
        stream = self._streams[worker]
        if stream is None:
            yield
            return
        with torch.cuda.device(stream.device), torch.cuda.stream(stream):
            yield


class _NoMail:
    """Of a worker that nobody talks to."""

    def get(self, timeout: float | None) -> object | None:
        return None

    def send(self, message: object) -> None:
        """Nobody hears it."""
