"""What a worker of a rehearsal does: real messages and payloads, with timed sleeps for the computing.

A worker is one loop over its mail and its deadlines, the same in a thread and in a process. A drafter copies the next
batch while it trains on the present one, as a real one does.
"""

import contextlib
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from dflash_run.messages import (
    Alive,
    Applied,
    Apply,
    Compute,
    Computed,
    Fence,
    Fenced,
    Finish,
    Forget,
    Group,
    Grouped,
    Open,
    Quiesce,
    Quiet,
    Ready,
    Received,
    Train,
)
from dflash_run.payload import PayloadMissing, PayloadStore

BLOCK_BYTES: Final = 256
"""Size of a rehearsal's hidden states."""
_RECALL_S: Final = 5.0
"""How long a block may be missing before its recall arrives."""
_NEVER: Final = float("inf")


class InjectedCrash(RuntimeError):
    """The failure that the file asked for."""


class Mail(Protocol):
    """A worker's connection to the launcher."""

    def get(self, timeout: float | None) -> object | None:
        """The next message; None when `timeout` seconds have passed without one (None waits for ever)."""
        ...

    def send(self, message: object) -> None: ...


class Records:
    """What this worker itself says it did: a line for each batch, kept apart from the launcher's trace.

    Each line is on its way to the disk before the launcher hears of it, so that a killed worker's file misses nothing.
    Where the disk is full lines are kept for later; a run does not end for them.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="ascii", buffering=1)

    def add(self, did: str, batch: int) -> None:
        """`computed` by a target, `taken` by a drafter."""
        with contextlib.suppress(OSError):
            self._file.write(f"{did},{batch}\n")

    @property
    def closed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


@dataclass(frozen=True, kw_only=True)
class Orders:
    """What a worker is told once, before it starts."""

    folder: Path
    """Where payloads lie."""
    records: Path
    """The file of the worker's own records."""
    heartbeat_s: float = 1.0
    """While it computes it says so at least this often."""
    fails_at: int | None = None
    """Fail on taking this batch of its own, counted from 1."""
    failure: str = "crash"
    """`crash`, `hang` or `hang_in_step`."""


class _Loop:
    """Mail and deadlines: what targets and drafters share."""

    def __init__(self, mail: Mail, store: PayloadStore, orders: Orders) -> None:
        self.mail = mail
        self.store = store
        self.records = Records(orders.records)
        self._orders = orders
        self._taken = 0

    def run(self) -> None:
        """Work until told to finish."""
        self.mail.send(Ready())
        try:
            while not isinstance(message := self.mail.get(self._patience()), Finish):
                if message is not None:
                    self.handle(message)
                self._due()
        finally:
            self.records.close()

    def handle(self, message: object) -> None:
        raise NotImplementedError

    def deadline(self) -> float:
        """When something is done next, on the monotonic clock."""
        raise NotImplementedError

    def done(self, now: float) -> None:
        """Deal with what is done by now."""
        raise NotImplementedError

    def take(self) -> None:
        """Fail here if the file says so."""
        self._taken += 1
        orders = self._orders
        if self._taken != orders.fails_at:
            return
        if orders.failure == "crash":
            raise InjectedCrash(f"crash on taking its batch number {self._taken}, as the file asks")
        if orders.failure == "hang":
            self.hang()

    def apply(self) -> None:
        """Hang in this step if the file says so."""
        orders = self._orders
        if orders.failure == "hang_in_step" and orders.fails_at is not None and self._taken >= orders.fails_at:
            self.hang()

    def hang(self) -> None:
        """Hear nothing but the end."""
        while not isinstance(self.mail.get(None), Finish):
            pass
        raise SystemExit

    def _patience(self) -> float | None:
        deadline = self.deadline()
        if deadline == _NEVER:
            return None
        return min(max(deadline - time.monotonic(), 0.0), self._orders.heartbeat_s)

    def _due(self) -> None:
        now = time.monotonic()
        if self.deadline() <= now:
            self.done(now)
        elif self.deadline() != _NEVER:
            self.mail.send(Alive())


class Target(_Loop):
    """Computes one batch at a time."""

    def __init__(self, mail: Mail, store: PayloadStore, orders: Orders) -> None:
        super().__init__(mail, store, orders)
        self._batch = -1
        self._until = _NEVER

    def handle(self, message: object) -> None:
        match message:
            case Compute(batch=batch, seconds=seconds):
                self.take()
                self._batch, self._until = batch, time.monotonic() + seconds
            case Forget(batch=batch):
                self.store.drop(batch)

    def deadline(self) -> float:
        return self._until

    def done(self, now: float) -> None:
        self._until = _NEVER
        self.store.put(self._batch, BLOCK_BYTES)
        self.records.add("computed", self._batch)
        self.mail.send(Computed(self._batch))


class Drafter(_Loop):
    """Copies, trains and applies steps; copying goes on beside training."""

    def __init__(self, mail: Mail, store: PayloadStore, orders: Orders) -> None:
        super().__init__(mail, store, orders)
        self._step = -1
        self._incoming: deque[Train] = deque()
        self._copied = _NEVER
        """When the first of `_incoming` has arrived."""
        self._missing: dict[int, float] = {}
        """Batches without a block, and until when the launcher may say that they are recalled."""
        self._ready: list[Train] = []
        self._training: Train | None = None
        self._trained = _NEVER
        self._applying = -1
        self._applied = _NEVER
        self._last = -1
        """The step that it applied last."""

    def handle(self, message: object) -> None:
        match message:
            case Train(batch=batch):
                self.take()
                self.records.add("taken", batch)
                self._incoming.append(message)
                self._copy()
            case Open(step=step):
                self._step = step
                self._applied = _NEVER
                self._train()
            case Apply(step=step, seconds=seconds):
                self.apply()
                self._applying, self._applied = step, time.monotonic() + seconds
            case Forget(batch=batch):
                self._forget(batch)
            case Fence(target=target):
                self.mail.send(Fenced(target))
            case Quiesce(epoch=epoch):
                self._applied = _NEVER
                self.mail.send(Quiet(epoch, self._last))
            case Group(epoch=epoch, step=step):
                self._last = max(self._last, step)
                self.mail.send(Grouped(epoch))

    def deadline(self) -> float:
        return min(self._copied, self._trained, self._applied, *self._missing.values())

    def done(self, now: float) -> None:
        if self._copied <= now:
            self._arrive()
        if self._trained <= now:
            self._finish_batch()
        if self._applied <= now:
            self._applied, self._last = _NEVER, self._applying
            self.mail.send(Applied(self._applying))
        for batch, until in self._missing.items():
            if until <= now:
                raise PayloadMissing(f"batch {batch} was delivered, but there is no block of it")

    def _copy(self) -> None:
        """Start copying the next batch, unless one is being copied."""
        while self._incoming and self._copied == _NEVER:
            if self._incoming[0].copy_s > 0:
                self._copied = time.monotonic() + self._incoming[0].copy_s
            else:
                self._arrive()

    def _arrive(self) -> None:
        item = self._incoming.popleft()
        self._copied = _NEVER
        try:
            self.store.get(item.batch)
        except PayloadMissing:
            self._missing[item.batch] = time.monotonic() + _RECALL_S
        else:
            self.mail.send(Received(item.batch))
            self._ready.append(item)
            self._train()
        self._copy()

    def _train(self) -> None:
        """Start the next micro-batch of the open step; what was taken ahead waits for its own."""
        if self._training is not None:
            return
        item = next((each for each in self._ready if each.step == self._step), None)
        if item is not None:
            self._ready.remove(item)
            self._training, self._trained = item, time.monotonic() + item.seconds

    def _finish_batch(self) -> None:
        assert self._training is not None
        batch, self._training, self._trained = self._training.batch, None, _NEVER
        self.mail.send(Computed(batch))
        self._train()

    def _forget(self, batch: int) -> None:
        self._missing.pop(batch, None)
        copying = bool(self._incoming) and self._incoming[0].batch == batch
        self._incoming = deque(item for item in self._incoming if item.batch != batch)
        self._ready = [item for item in self._ready if item.batch != batch]
        if self._training is not None and self._training.batch == batch:  # it had just arrived when its source died
            self._training, self._trained = None, _NEVER
            self._train()
        if copying:
            self._copied = _NEVER
            self._copy()


def work(role: str, mail: Mail, orders: Orders) -> None:
    """Be a worker of this role until told to finish."""
    store = PayloadStore(orders.folder)
    loop = Target(mail, store, orders) if role == "target" else Drafter(mail, store, orders)
    loop.run()
