"""The drafters' collectives: one group at a time, left and formed anew after a loss.

NCCL on GPUs, gloo on CPUs. NCCL does not report a dead peer by itself and may end the process when its own watchdog
does: its error handling is off, the work is polled, and the launcher says when to abort.
"""

import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

_JOIN_S: Final = 120.0
"""How long members may take to find each other."""
_QUIET_NCCL: Final = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}


class Collective:
    """An all-reduce under way."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def done(self) -> bool:
        """Whether it is complete. Raises RuntimeError where a peer is gone."""
        if self._work is None:
            return True
        if not self._work.is_completed():
            return False
        self._work.wait()
        return True


class DrafterGroup:
    """This drafter's membership; alone, or under `sync: none`, everything is done at once."""

    def __init__(self, drafter: int, device: torch.device) -> None:
        self._drafter = drafter
        self._device = device
        self._members: tuple[int, ...] = (drafter,)
        if device.type == "cuda":
            for name, value in _QUIET_NCCL.items():
                os.environ.setdefault(name, value)

    def join(self, members: tuple[int, ...], store: str) -> None:
        """Form a group with these drafters, who find each other by the file. Raises RuntimeError when they do not."""
        self.leave()
        self._members = members
        if len(members) == 1:
            return
        nccl = self._device.type == "cuda"
        dist.init_process_group(
            "nccl" if nccl else "gloo",
            store=dist.FileStore(store, len(members)),  # type: ignore[attr-defined]
            rank=members.index(self._drafter),
            world_size=len(members),
            timeout=timedelta(seconds=_JOIN_S),
            device_id=self._device if nccl else None,
        )
        dist.all_reduce(torch.ones(1, device=self._device))  # NCCL connects on first use
        if nccl:
            torch.cuda.synchronize(self._device)

    def all_reduce(self, tensor: torch.Tensor) -> Collective:
        """Sum a tensor over the members, in place; not waited for. Raises RuntimeError where `join` did."""
        if len(self._members) == 1:
            return Collective(None)
        if not dist.is_initialized():
            raise RuntimeError(f"the group of drafters {self._members} did not form")
        return Collective(dist.all_reduce(tensor, async_op=True))

    def copy_from(self, source: int, tensors: Iterable[torch.Tensor]) -> None:
        """All members take over these tensors from `source`."""
        for tensor in tensors:
            there = tensor.to(self._device).contiguous()  # optimizers keep counters elsewhere
            dist.broadcast(there, src=self._members.index(source))
            if there is not tensor:
                tensor.copy_(there)

    def leave(self) -> None:
        """Give up whatever is under way."""
        self._members = (self._drafter,)
        if not dist.is_initialized():
            return
        if self._device.type == "cuda":
            dist.distributed_c10d._abort_process_group()
        else:
            dist.destroy_process_group()
