"""The drafters' collectives: one group at a time, left and formed anew after a loss.

NCCL on GPUs, gloo on CPUs. NCCL does not report a dead peer by itself and may end the process when its own watchdog
does: its error handling is off, the work is polled, and the launcher says when to abort.
"""

import os
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

_JOIN_S: Final = 120.0
"""How long members may take to find each other, then to connect, and each tensor that one copies of another."""
_POLL_S: Final = 0.0005
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
        try:
            self._connect(members, store, nccl)
        except RuntimeError:
            self._abort()
            raise

    def _connect(self, members: tuple[int, ...], store: str, nccl: bool) -> None:
        dist.init_process_group(
            "nccl" if nccl else "gloo",
            store=dist.FileStore(store, len(members)),  # type: ignore[attr-defined]
            rank=members.index(self._drafter),
            world_size=len(members),
            timeout=timedelta(seconds=_JOIN_S),
            device_id=self._device if nccl else None,
        )
        first = dist.all_reduce(torch.ones(1, device=self._device), async_op=True)  # NCCL connects on first use
        _finish(first, f"drafters {members} did not connect")

    def all_reduce(self, tensor: torch.Tensor) -> Collective:
        """Sum a tensor over the members, in place; not waited for. Raises RuntimeError where `join` did."""
        if len(self._members) == 1:
            return Collective(None)
        if not dist.is_initialized():
            raise RuntimeError(f"the group of drafters {self._members} did not form")
        return Collective(dist.all_reduce(tensor, async_op=True))

    def copy_from(self, source: int, tensors: Iterable[torch.Tensor]) -> None:
        """All members take over these tensors from `source`; on return they are there. Raises RuntimeError if not."""
        for tensor in tensors:
            there = tensor.to(self._device).contiguous()  # optimizers keep counters elsewhere
            try:
                work = dist.broadcast(there, src=self._members.index(source), async_op=True)
                _finish(work, f"drafter {source}'s weights did not arrive")
            except RuntimeError:
                self._abort()
                raise
            if there is not tensor:
                tensor.copy_(there)

    def leave(self) -> None:
        """Give up whatever is under way."""
        self._members = (self._drafter,)
        self._abort()

    def _abort(self) -> None:
        """End the collectives, but stay a member: an all-reduce then fails, and is not taken for that of one alone."""
        if not dist.is_initialized():
            return
        if self._device.type == "cuda":
            dist.distributed_c10d._abort_process_group()
        else:
            dist.destroy_process_group()


def _finish(work: Any, otherwise: str) -> None:
    """Wait for a collective. Polled: where a peer is gone, waiting for the GPU would never end.

    Raises RuntimeError when it fails or takes longer than members may.
    """
    under_way, until = Collective(work), time.monotonic() + _JOIN_S
    while not under_way.done():
        if time.monotonic() > until:
            raise RuntimeError(f"{otherwise} within {_JOIN_S:g} s")
        time.sleep(_POLL_S)
