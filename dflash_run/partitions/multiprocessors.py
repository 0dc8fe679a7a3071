"""A GPU split into groups of multiprocessors (CUDA green contexts), each with a stream for torch.

Kernels of a group's stream run on its multiprocessors only, so that workers compute side by side as on GPUs of their
own; memory, its bandwidth and the copy engines stay shared.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import torch

_STEP: Final = 8
"""The least that the driver splits off a GPU since Hopper; larger groups are put together from such parts."""
_NON_BLOCKING: Final = 1
"""CU_STREAM_NON_BLOCKING: does not wait for the legacy default stream."""
_DEFAULT_STREAM: Final = 1
"""CU_GREEN_CTX_DEFAULT_STREAM, which a green context must be made with."""


@dataclass(frozen=True)
class Split:
    """Streams for so many workers."""

    streams: tuple["torch.cuda.Stream | None", ...]
    """None: the processor, which has no streams."""
    multiprocessors: tuple[int, ...]
    """Of each group; empty: there are no groups."""
    refused: str | None = None
    """Why a GPU is not split and its streams are plain ones."""

    def __str__(self) -> str:
        if self.multiprocessors:
            return f"groups of {', '.join(map(str, self.multiprocessors))} multiprocessors"
        return "plain streams" if self.refused is not None else "threads of the processor"


def split(device: torch.device, count: int, sizes: Sequence[int] | None = None) -> Split:
    """Split `device` into `count` groups, of these sizes or evenly.

    Where the driver refuses, streams share all of the device, and `refused` says why.
    """
    if device.type != "cuda":
        return Split((None,) * count, ())
    torch.zeros(1, device=device)  # the device's context must be there
    if sizes is None:
        sizes = [torch.cuda.get_device_properties(device).multi_processor_count // count // _STEP * _STEP] * count
    try:
        if not all(sizes) or any(size % _STEP for size in sizes):
            raise RuntimeError(f"groups are multiples of {_STEP} multiprocessors, and {count} workers need one each")
        return Split(tuple(_green(device, sizes)), tuple(sizes))
    except Exception as error:  # no bindings, an older driver, a GPU shared in another way: run all the same
        plain = tuple(torch.cuda.Stream(device) for _ in range(count))  # type: ignore[no-untyped-call]
        return Split(plain, (), f"{type(error).__name__}: {error}")


def _green(device: torch.device, sizes: Sequence[int]) -> list["torch.cuda.Stream"]:
    from cuda.bindings import driver  # type: ignore[import-not-found,unused-ignore]

    gpu = _done(driver.cuDeviceGet(device.index or 0))
    kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    whole = _done(driver.cuDeviceGetDevResource(gpu, kind))
    # What is split off cannot be split again, but what one call splits off can be joined: hence one call. The largest
    # parts that fit, since an H200 has eight of 16 multiprocessors but only fifteen of 8.
    each = math.gcd(*sizes)
    needed = sum(sizes) // each
    parts, found, _ = _done(driver.cuDevSmResourceSplitByCount(needed, whole, 0, each))
    if found < needed or any(part.sm.smCount != each for part in parts[:needed]):
        raise RuntimeError(f"the driver gives {found} parts of {each} multiprocessors, and {needed} are needed")
    left = iter(parts)
    streams: list[torch.cuda.Stream] = []
    for size in sizes:
        group = list(islice(left, size // each))
        described = _done(driver.cuDevResourceGenerateDesc(group, len(group)))
        context = _done(driver.cuGreenCtxCreate(described, gpu, _DEFAULT_STREAM))
        stream = _done(driver.cuGreenCtxStreamCreate(context, _NON_BLOCKING, 0))
        streams.append(torch.cuda.ExternalStream(int(stream), device=device))  # type: ignore[no-untyped-call]
    return streams


def _done(answer: tuple[Any, ...]) -> Any:
    """What a driver's call gives. Raises RuntimeError for its error."""
    error, *values = answer
    if int(error) != 0:
        raise RuntimeError(f"the driver answered {error.name}")
    return values[0] if len(values) == 1 else tuple(values)
