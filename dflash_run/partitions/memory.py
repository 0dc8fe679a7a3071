"""Memory that the threads of a rehearsal take before they begin, because taking it later stops all of them.

What is launched before an allocation of a GPU's memory, or of pinned host memory, cannot run beside what is launched
after it on another stream (CUDA's programming guide, implicit synchronization): a thread that asks in mid-run waits
for the others, and they for it. On an H200 split for 5 + 3 all eight stood still for up to a second, a dozen
times in a first minute. torch keeps what it was given, so it is enough to ask once.
"""

import contextlib
from collections.abc import Mapping
from typing import Final

import torch

from dflash_run.training.footprint import Footprint

_SHARE: Final = 0.8
"""Of the free memory: the rest is for what nobody foresaw."""
_SLACK: Final = 1.3
"""Sizes change from batch to batch, and pieces of what is there do not always fit."""
_SMALL: Final = 512 << 10
"""torch keeps tensors below 1 MiB apart."""
_SMALLS: Final = 64
_PINNED: Final = tuple(1 << power for power in range(9, 21))
"""Sizes of pinned memory, 512 B to 1 MiB: torch rounds up to powers of two."""
_PINNED_EACH: Final = 8
"""Pieces of each size for each worker."""


def shares(footprints: Mapping[str, Footprint], workers: Mapping[str, int], free: int) -> dict[str, int]:
    """Bytes beside its model that each worker of a role takes at its start, of a device that has so many free."""
    models = sum(workers[role] * (each.model + each.frozen) for role, each in footprints.items())
    need = {role: _SLACK * (each.activations + each.buffers) for role, each in footprints.items()}
    room = _SHARE * max(free - models, 0)
    scale = min(1.0, room / max(sum(workers[role] * need[role] for role in need), 1))
    return {role: int(scale * nbytes) for role, nbytes in need.items()}


def take(nbytes: int, device: torch.device) -> None:
    """Have torch take so much of the device for the current stream."""
    with contextlib.suppress(torch.OutOfMemoryError):  # then it is taken bit by bit
        torch.empty(max(nbytes, 1), dtype=torch.uint8, device=device)
    small = [torch.empty(_SMALL, dtype=torch.uint8, device=device) for _ in range(_SMALLS)]
    del small


def pin(workers: int) -> None:
    """Have torch pin host memory for all workers."""
    count = workers * _PINNED_EACH
    pinned = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for size in _PINNED for _ in range(count)]
    del pinned
