"""Slots as the workers see them: host memory that is mapped (and pinned for GPUs), or memory of a target's GPU.

A slot is a flat uint8 tensor: the head, then the hidden states (see `parcel`). The target's side writes, the drafter's
side copies to a buffer of its own; both order their copies by streams and events.
"""

import warnings
from typing import Final

import torch

from dflash_run.transport.parcel import DTYPES, HEAD_BYTES, HEAD_NUMBERS, HOST, Parcel, Slot

_REGISTERED: Final = 0
"""cudaHostRegisterDefault."""


class Mapped:
    """The slots of this process, opened on first use and kept."""

    def __init__(self, slot_bytes: int, device: torch.device) -> None:
        self.device = device
        self._bytes = slot_bytes
        self._slots: dict[tuple[int, int], torch.Tensor] = {}
        self._handles: dict[tuple[int, int], tuple[object, ...]] = {}
        """Of slots of its own: what others open them with."""
        self._opened: dict[tuple[int, int], tuple[object, ...]] = {}
        """Of slots of others: what they were opened with."""

    def host(self, slot: Slot) -> torch.Tensor:
        """A slot of host memory, uint8[slot bytes], pinned where this process computes on a GPU."""
        key = (HOST, slot.index)
        if key not in self._slots:
            memory = torch.from_file(slot.path, shared=True, size=self._bytes, dtype=torch.uint8)
            if self.device.type == "cuda":
                _register(memory)
            self._slots[key] = memory
        return self._slots[key]

    def own(self, slot: Slot) -> torch.Tensor:
        """A slot on this process's device, uint8[slot bytes]."""
        key = (slot.owner, slot.index)
        if key not in self._slots:
            memory = torch.empty(self._bytes, dtype=torch.uint8, device=self.device)
            self._slots[key] = memory
            if self.device.type == "cuda":
                self._handles[key] = tuple(memory.untyped_storage()._share_cuda_())
        return self._slots[key]

    def handle(self, slot: Slot) -> tuple[object, ...] | None:
        """What another process opens a slot on this device with; None for host memory."""
        return self._handles.get((slot.owner, slot.index))

    def foreign(self, slot: Slot, handle: tuple[object, ...]) -> torch.Tensor:
        """A slot on another process's GPU, uint8[slot bytes]. Raises RuntimeError when its process is gone.

        Another handle is another process's memory: where workers are kept, a target that was lost is replaced.
        """
        key = (slot.owner, slot.index)
        if self._opened.get(key) != handle:
            self._drop(key)
            storage = torch.UntypedStorage._new_shared_cuda(*handle)
            memory = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            self._slots[key], self._opened[key] = memory[: self._bytes], handle
        return self._slots[key]

    def forget(self, owner: int) -> None:
        """Let go of a lost target's slots."""
        for key in [key for key in self._slots if key[0] == owner]:
            self._drop(key)

    def _drop(self, key: tuple[int, int]) -> None:
        self._slots.pop(key, None)
        self._opened.pop(key, None)

    def close(self, *, host_only: bool = False) -> None:
        """Let go of everything, registered memory first; or of host memory only, which is a run's own."""
        for key in [key for key in self._slots if key[0] == HOST]:
            memory = self._slots.pop(key)
            if self.device.type == "cuda":
                torch.cuda.current_stream(self.device).synchronize()
                torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())
        if not host_only:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            self._slots.clear()
            self._opened.clear()


def states(slot: torch.Tensor, shape: tuple[int, int, int], dtype: str) -> torch.Tensor:
    """The hidden states in a slot or a copy of one: [samples, positions, width] of `dtype`, sharing its memory."""
    kind = getattr(torch, dtype)
    samples, positions, width = shape
    size = samples * positions * width * kind.itemsize
    return slot[HEAD_BYTES : HEAD_BYTES + size].view(kind).view(shape)


def head_of(slot: torch.Tensor) -> torch.Tensor:
    """The head: int64[8], sharing the slot's memory."""
    return slot[:HEAD_BYTES].view(torch.int64)


def checksum(values: torch.Tensor) -> torch.Tensor:
    """Sum of the bytes as int32 numbers: an int64 scalar on the values' device."""
    flat = values.reshape(-1).view(torch.uint8)
    whole = flat[: flat.numel() // 4 * 4].view(torch.int32).sum(dtype=torch.int64)
    return whole + flat[flat.numel() // 4 * 4 :].sum(dtype=torch.int64)


def write_head(slot: torch.Tensor, parcel: Parcel) -> None:
    """Mark the slot with what it holds, after the hidden states on the current stream."""
    head_of(slot).copy_(torch.tensor(parcel.head(), dtype=torch.int64), non_blocking=False)


def dtype_name(dtype: torch.dtype) -> str:
    """`bfloat16` and so on."""
    name = str(dtype).removeprefix("torch.")
    assert name in DTYPES, f"hidden states of {name} are not transported"
    return name


def _register(memory: torch.Tensor) -> None:
    code = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), _REGISTERED))
    if code != 0:
        warnings.warn(f"host memory could not be pinned (CUDA error {code}): copies will be slower", stacklevel=2)


assert HEAD_NUMBERS * 8 == HEAD_BYTES
