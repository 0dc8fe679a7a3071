"""Staging memory: which hidden states lie where, followed through the event stream or forecast before a run.

A batch's hidden states exist from `offer` (computed) to `computed` (trained on). `staging: host` keeps them in host
memory until their drafter has received them. `staging: device` keeps them with their target while it holds them, then,
packed by the target, on a drafter's device: that of the lane's only reader, else of drafter (target mod D); with
`placement: taker` they stay with the target. Received, they are on the device of the drafter that took them. A device's
memory outlives its worker in these books, as the lane of a lost drafter does. Not counted: what a target needs
while it computes. All figures are whole bytes.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from policies.effects import Admit, Deliver, Effect, PutBack, Recompute
from policies.ledger import HELD, PLACES, RECEIVED, STAGED, TAKEN
from policies.sections.limits import Memory
from reports.observer import Exchange

__all__ = [
    "MemoryMeter",
    "MemoryReport",
    "Peaks",
    "ReadLane",
    "Store",
    "Terms",
    "batch_bytes",
    "forecast",
    "pinned_bytes",
    "unknown_memory",
]

I64 = NDArray[np.int64]
Terms = dict[str, int]
"""Bytes by what they are there for: a key of `TERMS` each."""

TERMS: Final = {
    "model": "the drafter's model",
    "held": "held by targets",
    "staged": "waiting in lanes",
    "taken": "on the way to drafters",
    "received": "in the drafter's hand",
}
TAKER: Final = "taker"


class Peaks(TypedDict):
    """What made up each peak, by term; host terms are those of `host_pinned_peak_bytes`."""

    host: Terms
    drafters: list[Terms]
    targets: list[Terms]


class MemoryReport(TypedDict):
    """The summary's `memory`, in bytes; every figure is None where the file gives no hidden-state size."""

    host_peak_bytes: int | None
    """Exact sizes, in lanes and in hand."""
    host_pinned_peak_bytes: int | None
    """The same as the pinned allocator rounds it (`pinned: true`); else equal: registered memory is exact."""
    host_staged_peak_bytes: int | None
    """Exact sizes, waiting in lanes only."""
    drafter_peak_bytes: list[int | None]
    """Per drafter: its model, batches staged on its device, batches in its hand."""
    target_peak_bytes: list[int | None]
    """Per target: hidden states that wait on its device; without its model."""
    fits: bool | None
    """None without a size, or without any limit."""
    over: list[str]
    """A sentence for every memory over its limit, its terms in falling order."""
    notes: list[str]
    """What was assumed."""
    at_peak: Peaks | None


class ReadLane(Protocol):
    """What the forecast needs of a lane; `policies.policy.LaneSpec` and `policies.hop.Lane` both fit."""

    @property
    def capacity(self) -> int: ...
    @property
    def reader(self) -> int | None: ...


def batch_bytes(memory: Memory, slots: Sequence[int] | I64) -> I64 | None:
    """int64[N]: bytes of the hidden states of N batches with these padded slots; None without a size."""
    if memory.bytes_per_token is None:
        return None
    return np.asarray(slots, dtype=np.int64) * memory.bytes_per_token


def pinned_bytes(sizes: I64) -> I64:
    """int64[N]: what torch's pinned allocator takes for buffers of these sizes: the next power of two."""
    exponents = np.frexp(np.maximum(sizes - 1, 0).astype(np.float64))[1]
    return np.where(sizes > 0, np.left_shift(np.int64(1), exponents.astype(np.int64)), 0)


class Store:
    """One memory: the host's or a device's. A batch is in one term at a time, named by its place in the ledger."""

    __slots__ = ("_risen", "_sizes", "at_peak", "level", "peak", "staged_peak", "terms")

    def __init__(self, sizes: Sequence[int], risen: list["Store"]) -> None:
        self.level = self.peak = self.staged_peak = 0
        self.terms = [0] * len(PLACES)
        """Bytes now, by place."""
        self.at_peak = self.terms.copy()
        """`terms` when the level first stood at its peak."""
        self._sizes = sizes
        self._risen = risen

    def put(self, batch: int, term: int) -> None:
        """The batch's bytes come to lie here."""
        size = self._sizes[batch]
        terms = self.terms
        terms[term] = placed = terms[term] + size
        if term == STAGED and placed > self.staged_peak:
            self.staged_peak = placed
        self.level = level = self.level + size
        if level > self.peak:
            self.peak = level
            self.at_peak = terms.copy()
            self._risen.append(self)

    def shift(self, batch: int, source: int, to: int) -> None:
        """The batch stays here, for another reason."""
        size = self._sizes[batch]
        terms = self.terms
        terms[source] -= size
        terms[to] = moved = terms[to] + size
        if to == STAGED and moved > self.staged_peak:
            self.staged_peak = moved

    def drop(self, batch: int, term: int) -> None:
        """The batch's bytes are free again."""
        size = self._sizes[batch]
        self.terms[term] -= size
        self.level -= size

    def settle(self) -> None:
        """An input has been answered: a batch that came and was admitted at once was never held."""
        if self.level == self.peak:
            self.at_peak = self.terms.copy()


class PinnedStore:
    """Host memory counted twice: in exact sizes, and in the blocks that the pinned allocator takes."""

    def __init__(self, exact: Store, blocks: Store) -> None:
        self.exact, self.blocks = exact, blocks

    def put(self, batch: int, term: int) -> None:
        self.exact.put(batch, term)
        self.blocks.put(batch, term)

    def shift(self, batch: int, source: int, to: int) -> None:
        self.exact.shift(batch, source, to)
        self.blocks.shift(batch, source, to)

    def drop(self, batch: int, term: int) -> None:
        self.exact.drop(batch, term)
        self.blocks.drop(batch, term)


class MemoryMeter:
    """Follows one run.

    `slots`: the padded slots of each batch. `readers`: the only reader of each hidden-state lane, None where all read.
    """

    def __init__(
        self,
        *,
        memory: Memory,
        slots: Sequence[int] | I64,
        targets: int,
        drafters: int,
        readers: Sequence[int | None],
        placement: str | None = None,
    ) -> None:
        exact = batch_bytes(memory, slots)
        self._known = exact is not None
        exact = np.zeros(len(slots), dtype=np.int64) if exact is None else exact
        sizes = exact.tolist()  # Python's integers: sums of them neither round nor overflow
        self._memory = memory
        self._risen: list[Store] = []
        self.host = Store(sizes, self._risen)
        """Host memory in exact sizes; `level` is what lies there now."""
        self.blocks = Store(pinned_bytes(exact).tolist(), self._risen) if memory.pinned else self.host
        """The same as allocated."""
        self.drafters = [Store(sizes, self._risen) for _ in range(drafters)]
        """Each drafter's device, without its model."""
        self.targets = [Store(sizes, self._risen) for _ in range(targets)]
        """Each target's device, without its model."""
        self._at: dict[int, Store | PinnedStore] = {}
        """Where the hidden states of each batch that has some lie."""
        self._held_at, self._staged_at = self._layout(readers, placement)

    def report(self) -> MemoryReport:
        """The figures so far."""
        if not self._known:
            return unknown_memory(len(self.drafters), len(self.targets))
        return _report(
            self._memory,
            host_exact=self.host.peak,
            host_staged=self.host.staged_peak,
            peaks=Peaks(
                host=_terms(self.blocks, HELD, STAGED, TAKEN),
                drafters=[_model(self._memory) | _terms(s, STAGED, TAKEN, RECEIVED) for s in self.drafters],
                targets=[_terms(s, HELD, STAGED, TAKEN) for s in self.targets],
            ),
        )

    def observe(self, exchanges: list[Exchange]) -> None:
        """The next exchanges, in order. Peaks are judged after each, not between two effects of one answer."""
        for _, name, arguments, answer in exchanges:
            if name == "offer":
                target, batch = arguments
                self._at[batch] = store = self._held_at[target]
                store.put(batch, HELD)
            elif name == "received":
                drafter, batch = arguments
                self._move(batch, self.drafters[drafter], TAKEN, RECEIVED)
            elif name == "computed":
                self._at.pop(arguments[1]).drop(arguments[1], RECEIVED)
            for effect in answer:
                self._effect(effect)
            if self._risen:
                for risen in self._risen:
                    risen.settle()
                self._risen.clear()

    # Inside ---------------------------------------------------------------------------------------------------

    def _effect(self, effect: Effect) -> None:
        match effect:
            case Admit():
                self._move(effect.batch, self._staged_at[effect.lane][effect.target], HELD, STAGED)
            case Deliver():
                self._at[effect.batch].shift(effect.batch, STAGED, TAKEN)
            case PutBack():
                self._at[effect.batch].shift(effect.batch, TAKEN, STAGED)
            case Recompute():
                self._free(effect.batch, effect.place)

    def _free(self, batch: int, place: int) -> None:
        """Only a batch that was being computed, or that was trained on already, has no hidden states to lose."""
        store = self._at.pop(batch, None)
        if store is not None:
            store.drop(batch, place)

    def _move(self, batch: int, to: Store | PinnedStore, source: int, term: int) -> None:
        store = self._at[batch]
        if store is to:
            store.shift(batch, source, term)
        else:
            store.drop(batch, source)
            to.put(batch, term)
            self._at[batch] = to

    def _layout(
        self, readers: Sequence[int | None], placement: str | None
    ) -> tuple[Sequence[Store | PinnedStore], Sequence[Sequence[Store | PinnedStore]]]:
        """Where a batch lies while held, by target, and while staged, by lane and target."""
        if self._memory.staging == "host":
            host = PinnedStore(self.host, self.blocks) if self._memory.pinned else self.host
            everywhere = [host] * len(self.targets)
            return everywhere, [everywhere] * len(readers)
        if placement == TAKER:
            return self.targets, [self.targets] * len(readers)
        count = len(self.targets)
        homes = ([_home(reader, t, len(self.drafters)) for t in range(count)] for reader in readers)
        return self.targets, [[self.drafters[d] for d in lane] for lane in homes]


def forecast(
    memory: Memory,
    *,
    targets: int,
    drafters: int,
    lanes: Sequence[ReadLane],
    largest: int | None,
    bound: int | None = None,
    prefetch: int = 0,
    placement: str | None = None,
) -> MemoryReport:
    """The most a run can need: every lane full, every target holding, every drafter with 1 + prefetch batches.

    `lanes` and `bound` are those of the hidden-state hop's layout; `largest` is the largest batch in bytes, None if
    not known. No run exceeds a figure, whatever is lost on the way: what goes back to a lane was in a hand before.
    Only `host_staged_peak_bytes` leaves the hands out, and may be exceeded by what went back.
    """
    if largest is None:
        return unknown_memory(drafters, targets)
    waiting = _capacity(lanes, bound)
    hands = drafters * (1 + prefetch)
    none = {"held": 0, "staged": 0, "taken": 0}
    host, at_target, at_drafters = none, none, [{"staged": 0, "taken": 0}] * drafters
    handed_over = 0
    if memory.staging == "host":
        handed_over = int(any(lane.capacity == 0 for lane in lanes))  # a held batch, in its lane for an instant
        host = {"held": targets, "staged": waiting, "taken": hands}
    elif placement == TAKER:
        at_target = {"held": 1, "staged": waiting, "taken": hands}
    else:
        at_target = none | {"held": 1}
        at_drafters = [_packed(d, targets, drafters, lanes, bound, hands) for d in range(drafters)]
    block = int(pinned_bytes(np.array([largest], dtype=np.int64))[0]) if memory.pinned else largest
    return _report(
        memory,
        host_exact=sum(host.values()) * largest,
        host_staged=(host["staged"] + handed_over) * largest,
        peaks=Peaks(
            host=_times(block, host),
            drafters=[_model(memory) | _times(largest, at | {"received": 1 + prefetch}) for at in at_drafters],
            targets=[_times(largest, at_target) for _ in range(targets)],
        ),
    )


def _packed(
    drafter: int, targets: int, drafters: int, lanes: Sequence[ReadLane], bound: int | None, hands: int
) -> Terms:
    """The most batches that wait on the drafter's device, or lie there while other drafters fetch them."""
    def lies_here(lane: ReadLane) -> bool:
        return any(_home(lane.reader, t, drafters) == drafter for t in range(targets))

    here = [lane for lane in lanes if lies_here(lane)]
    shared = any(lane.reader is None for lane in here)
    return {"staged": _capacity(here, bound), "taken": hands - hands // drafters if shared else 0}


def _home(reader: int | None, target: int, drafters: int) -> int:
    """The drafter onto whose device the target packs a batch for a lane with this reader."""
    return target % drafters if reader is None else reader


def _capacity(lanes: Sequence[ReadLane], bound: int | None) -> int:
    total = sum(lane.capacity for lane in lanes)
    return total if bound is None else min(total, bound)


def _terms(store: Store, *places: int) -> Terms:
    return {PLACES[place]: store.at_peak[place] for place in places}


def _times(size: int, counts: Terms) -> Terms:
    return {name: size * count for name, count in counts.items()}


def _model(memory: Memory) -> Terms:
    return {"model": memory.drafter_model_bytes or 0}


def unknown_memory(drafters: int, targets: int) -> MemoryReport:
    return MemoryReport(
        host_peak_bytes=None,
        host_pinned_peak_bytes=None,
        host_staged_peak_bytes=None,
        drafter_peak_bytes=[None] * drafters,
        target_peak_bytes=[None] * targets,
        fits=None,
        over=[],
        notes=["the size of a hidden state is not given (memory.hidden_bytes_per_token, or hidden_size and taps)"],
        at_peak=None,
    )


def _report(memory: Memory, *, host_exact: int, host_staged: int, peaks: Peaks) -> MemoryReport:
    limited = memory.host_limit is not None or memory.device_limit is not None
    over = list(_over(memory, peaks))
    lacking = "memory.drafter_model_bytes is not given: a drafter's model, optimizer and activations count as 0"
    return MemoryReport(
        host_peak_bytes=host_exact,
        host_pinned_peak_bytes=sum(peaks["host"].values()),
        host_staged_peak_bytes=host_staged,
        drafter_peak_bytes=[sum(terms.values()) for terms in peaks["drafters"]],
        target_peak_bytes=[sum(terms.values()) for terms in peaks["targets"]],
        fits=not over if limited else None,
        over=over,
        notes=[lacking] if memory.drafter_model_bytes is None else [],
        at_peak=peaks,
    )


def _over(memory: Memory, peaks: Peaks) -> Iterator[str]:
    if memory.host_limit is not None:
        yield from _sentence("host memory", peaks["host"], "memory.host_limit", memory.host_limit)
    if memory.device_limit is None:
        return
    for role in ("drafter", "target"):
        devices = peaks["drafters"] if role == "drafter" else peaks["targets"]
        for number, terms in enumerate(devices):
            yield from _sentence(f"{role}/{number}", terms, "memory.device_limit", memory.device_limit)


def _sentence(where: str, terms: Terms, key: str, limit: int) -> Iterator[str]:
    total = sum(terms.values())
    if total > limit:
        largest_first = sorted((item for item in terms.items() if item[1]), key=lambda item: -item[1])
        parts = ", ".join(f"{_size(count)} {TERMS[name]}" for name, count in largest_first)
        yield f"{where} needs {_size(total)} ({parts}): {_size(total - limit)} over {key} ({_size(limit)})"


def _size(count: int) -> str:
    for unit, scale in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count} B"
