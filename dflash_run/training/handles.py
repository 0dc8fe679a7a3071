"""Which GPU of the driver is the one that this process calls `cuda:N`; where that cannot be told, none."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any


def handle_of(nvml: Any, gpu: int) -> Any:
    """The driver's handle of `cuda:gpu`, or None. nvml: the library's module, initialised.

    CUDA_VISIBLE_DEVICES names GPUs by their number or their UUID, also by the beginning of one; `MIG-…` are parts.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = None if visible is None else [name.strip() for name in visible.split(",")]
    with contextlib.suppress(Exception):  # the driver knows no such GPU, or may not tell
        if names is None:
            return _by_number(nvml, gpu)
        if gpu < len(names):
            return _by_number(nvml, int(names[gpu])) if names[gpu].isdecimal() else _by_uuid(nvml, names[gpu])
    return None


def _by_number(nvml: Any, number: int) -> Any:
    """CUDA counts the fastest first, unless it is told to count as the driver does. Equal ones it leaves in order."""
    ordered = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if not ordered and len({nvml.nvmlDeviceGetName(each) for each in _all(nvml)}) > 1:
        return None
    return nvml.nvmlDeviceGetHandleByIndex(number)


def _by_uuid(nvml: Any, name: str) -> Any:
    if not name.startswith(("GPU-", "MIG-")):
        return None
    with contextlib.suppress(Exception):  # none has it in full
        return nvml.nvmlDeviceGetHandleByUUID(name)
    found = [handle for handle in _all(nvml) if nvml.nvmlDeviceGetUUID(handle).startswith(name)]
    return found[0] if len(found) == 1 else None


def _all(nvml: Any) -> Iterator[Any]:
    """Those that this process may ask about."""
    for number in range(nvml.nvmlDeviceGetCount()):
        with contextlib.suppress(Exception):
            yield nvml.nvmlDeviceGetHandleByIndex(number)
