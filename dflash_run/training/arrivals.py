"""The drafter's side of the transport: copies parcels into buffers of its own, in order, and checks what arrived."""

import contextlib
from collections import deque
from dataclasses import dataclass, field

import torch

from dflash_run.training.messages import TrainOn
from dflash_run.transport.parcel import HEAD_NUMBERS, HOST, Parcel, ParcelError, check_head
from dflash_run.transport.staging import Mapped, checksum, head_of, states


class Moment:
    """A point in a GPU's stream; on a CPU it has always passed."""

    def __init__(self, device: torch.device, stream: "torch.cuda.Stream | None" = None) -> None:
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event()
            self._event.record(stream or torch.cuda.current_stream(device))

    def passed(self) -> bool:
        return self._event is None or self._event.query()

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()


@dataclass(eq=False)
class Arrival:
    """A batch on its way into, or in, a buffer of this drafter."""

    order: TrainOn
    buffer: torch.Tensor
    """uint8[slot bytes] on the drafter's device."""
    head: torch.Tensor
    """int64[8] on the host."""
    copied: Moment

    @property
    def states(self) -> torch.Tensor:
        """[samples, positions, width]."""
        return states(self.buffer, self.order.parcel.shape, self.order.parcel.dtype)


@dataclass
class Arrivals:
    """Buffers and copies under way. A copy has a stream of its own, so that it goes on beside the training."""

    mapped: Mapped
    slot_bytes: int
    count: int
    """Buffers: batches that may be here at a time."""
    verify: bool
    waiting: deque[TrainOn] = field(default_factory=deque)
    """Delivered; no buffer is free, or the source is dead."""
    copying: deque[Arrival] = field(default_factory=deque)

    def __post_init__(self) -> None:
        device = self.mapped.device
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        self._free: list[torch.Tensor] = []
        self._made = 0
        self._dead: set[int] = set()

    def order(self, order: TrainOn) -> None:
        """Fetch this batch as soon as there is room. Raises ParcelError where its slot cannot be opened."""
        self.waiting.append(order)
        self.go_on()

    def go_on(self) -> None:
        """Start what can be started. Raises ParcelError; the batch is then forgotten."""
        while self.waiting and self.waiting[0].source not in self._dead and (buffer := self._buffer()) is not None:
            order = self.waiting.popleft()
            try:
                self.copying.append(self._start(order, buffer))
            except RuntimeError as error:
                self._free.append(buffer)
                raise ParcelError(f"batch {order.batch}: its slot cannot be opened: {error}") from error

    def arrived(self) -> Arrival | None:
        """The next batch that is here, if it is; copies end in order. Raises ParcelError where it is spoilt."""
        if not self.copying or not self.copying[0].copied.passed():
            return None
        arrival = self.copying.popleft()
        try:
            self._check(arrival)
        except ParcelError:
            self.release(arrival)
            raise
        return arrival

    def probe(self, parcel: Parcel, source: int) -> None:
        """Copy and compare a parcel, whatever it takes. Raises ParcelError."""
        self.order(TrainOn(-1, parcel, source, (), 0))
        self.copying[-1].copied.wait()
        arrival = self.arrived()
        assert arrival is not None
        self.release(arrival)

    def forget(self, batch: int) -> None:
        """The batch will not be trained here: its copy, if one runs, is waited for and let go."""
        self.waiting = deque(order for order in self.waiting if order.batch != batch)
        for arrival in [each for each in self.copying if each.order.batch == batch]:
            arrival.copied.wait()
            self.copying.remove(arrival)
            self.release(arrival)

    def bury(self, target: int) -> None:
        """A target is gone: nothing more arrives from it, and what it was sending is let go."""
        self._dead.add(target)
        for arrival in [each for each in self.copying if each.order.source == target]:
            with contextlib.suppress(RuntimeError):
                arrival.copied.wait()
            self.copying.remove(arrival)
            self.release(arrival)
        self.mapped.forget(target)

    def drain(self) -> None:
        """Wait for copies that nobody wants any more, before their buffers are let go of."""
        for arrival in self.copying:
            arrival.copied.wait()
        self.copying.clear()

    def release(self, arrival: Arrival) -> None:
        """Its buffer may be used again."""
        self._free.append(arrival.buffer)

    def _buffer(self) -> torch.Tensor | None:
        if self._free:
            return self._free.pop()
        if self._made == self.count:
            return None
        self._made += 1
        buffer = torch.empty(self.slot_bytes, dtype=torch.uint8, device=self.mapped.device)
        if self._stream is not None:
            # It may be memory that launched work of the training has let go of, and has yet to read or write.
            self._stream.wait_stream(torch.cuda.current_stream(self.mapped.device))
        return buffer

    def _start(self, order: TrainOn, buffer: torch.Tensor) -> Arrival:
        parcel = order.parcel
        source = self._source(parcel)
        used = HEAD_NUMBERS * 8 + parcel.nbytes
        device = self.mapped.device
        if self._stream is None:
            buffer[:used].copy_(source[:used])
            return Arrival(order, buffer, head_of(buffer).clone(), Moment(device))
        with torch.cuda.stream(self._stream):
            buffer[:used].copy_(source[:used], non_blocking=True)
            head = torch.empty(HEAD_NUMBERS, dtype=torch.int64, pin_memory=True)
            head.copy_(head_of(buffer), non_blocking=True)
            return Arrival(order, buffer, head, Moment(device, self._stream))

    def _source(self, parcel: Parcel) -> torch.Tensor:
        if parcel.slot.owner == HOST:
            return self.mapped.host(parcel.slot)
        assert parcel.handle is not None, "a slot on a device comes with its handle"
        return self.mapped.foreign(parcel.slot, parcel.handle)

    def _check(self, arrival: Arrival) -> None:
        parcel = arrival.order.parcel
        check_head(parcel, arrival.head.tolist())
        if parcel.checksum is not None and (self.verify or parcel.batch < 0):
            found = int(checksum(arrival.states))
            if found != parcel.checksum:
                raise ParcelError(f"batch {parcel.batch} arrived with checksum {found} instead of {parcel.checksum}")
