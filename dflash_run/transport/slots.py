"""The launcher's table of slots: which are free, and which batch lies where. It decides and never touches memory."""

import heapq
from collections.abc import Callable
from typing import Final

from dflash_run.transport.parcel import HOST, Parcel, Slot


class SlotTable:
    """Slots by owner; a new one is opened only when no free one is left.

    So there are as many as batches were outstanding at a time. `new_path(index)` makes a host slot's memory.
    """

    def __init__(self, new_path: Callable[[int], str] | None = None) -> None:
        self.nowhere: Final = Slot(HOST, -1)
        """A slot that stands for none."""
        self._new_path: Final = new_path
        self._opened: dict[int, int] = {}
        self._free: dict[int, list[int]] = {}
        self._paths: dict[int, str] = {}
        self._slots: dict[int, Slot] = {}
        """The slot of each batch that has one."""
        self._parcels: dict[int, Parcel] = {}

    def take(self, batch: int, owner: int) -> Slot:
        """A slot for a batch that is to be computed: the lowest free one, which stays warm."""
        assert batch not in self._slots, f"batch {batch} lies in {self._slots[batch]}"
        free = self._free.setdefault(owner, [])
        if free:
            index = heapq.heappop(free)
        else:
            index = self._opened.get(owner, 0)
            self._opened[owner] = index + 1
            if owner == HOST and self._new_path is not None:
                self._paths[index] = self._new_path(index)
        slot = Slot(owner, index, self._paths.get(index, "") if owner == HOST else "")
        self._slots[batch] = slot
        return slot

    def put(self, parcel: Parcel) -> None:
        """The batch is computed."""
        self._parcels[parcel.batch] = parcel

    def parcel(self, batch: int) -> Parcel:
        """The parcel of a batch that is delivered."""
        return self._parcels[batch]

    def free(self, batch: int) -> None:
        """Nobody needs the batch's hidden states any more, or they are lost; harmless where it has no slot."""
        slot = self._slots.pop(batch, None)
        self._parcels.pop(batch, None)
        if slot is not None:
            heapq.heappush(self._free.setdefault(slot.owner, []), slot.index)

    def opened(self, owner: int) -> int:
        """How many slots of this owner there are."""
        return self._opened.get(owner, 0)
