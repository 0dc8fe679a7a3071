"""A batch's hidden states in a slot of memory: where they lie, what they are, and the mark by which they are known.

A slot is `HEAD_BYTES` of head, then the hidden states. The head holds, as int64 numbers, the mark, the batch, the shape
(samples, positions, width), the code of the dtype and, where asked for, a checksum. Whoever copies a slot copies its
head along and checks it against the parcel that the launcher handed on.
"""

from dataclasses import dataclass
from typing import Final

HEAD_BYTES: Final = 64
HEAD_NUMBERS: Final = HEAD_BYTES // 8
MARK: Final = 0x6466_6C61_7368_0001
"""The first number of every head: hidden states, in this layout."""
DTYPES: Final = ("bfloat16", "float16", "float32")
"""Codes of dtypes are places in this tuple."""
ITEM_BYTES: Final = {"bfloat16": 2, "float16": 2, "float32": 4}
HOST: Final = -1
"""The owner of slots in host memory, which belong to no worker."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A piece of memory that holds one batch at a time: of target `owner`'s device, or of the host."""

    owner: int
    index: int
    path: str = ""
    """Host: what to map."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """One batch's hidden states in a slot."""

    batch: int
    slot: Slot
    shape: tuple[int, int, int]
    """Samples, positions (the longest sample), width (hidden size × states kept)."""
    dtype: str
    checksum: int | None = None
    """Sum of the bytes as int32 numbers, in int64; None unless it was asked for."""
    handle: tuple[object, ...] | None = None
    """Device: what another process opens the slot with."""

    @property
    def nbytes(self) -> int:
        """Bytes of the hidden states, without the head."""
        samples, positions, width = self.shape
        return samples * positions * width * ITEM_BYTES[self.dtype]

    def head(self) -> list[int]:
        """The numbers of its head."""
        return [MARK, self.batch, *self.shape, DTYPES.index(self.dtype), self.checksum or 0, 0]


class ParcelError(RuntimeError):
    """What arrived is not what was promised."""


def check_head(parcel: Parcel, head: list[int]) -> None:
    """Raises ParcelError where the copied head is not the parcel's."""
    expected = parcel.head()
    if head != expected:
        names = ("mark", "batch", "samples", "positions", "width", "dtype", "checksum", "end")
        pairs = zip(names, expected, head, strict=True)
        wrong = ", ".join(f"{name} {got} instead of {due}" for name, due, got in pairs if got != due)
        raise ParcelError(f"batch {parcel.batch} arrived with {wrong}")
