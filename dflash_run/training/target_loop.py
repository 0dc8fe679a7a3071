"""What a target of a training does: computes hidden states into the slots that it is told, one batch at a time."""

import contextlib
from pathlib import Path

import torch

from dflash_run.messages import Computed, Finish, Ready
from dflash_run.model.config import target_config
from dflash_run.model.shape import DrafterShape
from dflash_run.model.target import TappedTarget
from dflash_run.model.tensorfile import FILE_ERRORS, write_tensors
from dflash_run.training.bench import Bench
from dflash_run.training.messages import ComputeStates, HeldOut, HoldOut, Rest
from dflash_run.training.pulse import LONG_S
from dflash_run.transport.parcel import Parcel, Slot
from dflash_run.transport.staging import checksum, dtype_name, states, write_head

_PROBE_POSITIONS = 64
"""Length of the self-test's batch."""


class TargetLoop:
    """One loop over its mail."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        pipeline, orders = bench.pipeline, bench.orders
        shape = DrafterShape.of(target_config(pipeline.model), pipeline.model, orders.mask_token_id)
        with bench.pulse.busy(LONG_S):
            self._target = TappedTarget(
                pipeline.model, shape.taps, orders.devices, keep_last=bench.keep_last, seed=pipeline.seed
            )
        self._staged = bench.on_host and bench.device.type == "cuda"
        """Whether hidden states are computed into a buffer on the GPU, then copied to host memory."""
        self._buffer = torch.empty(orders.slot_bytes if self._staged else 0, dtype=torch.uint8, device=bench.device)

    def run(self) -> None:
        """Work until told to finish, a run after the other where this worker is kept."""
        try:
            while self._run_once() and self._bench.rests():
                pass
        finally:
            self._bench.close()

    def _run_once(self) -> bool:
        """Whether it is to rest then; else it has been told to finish."""
        mail = self._bench.mail
        probe = self._probe()
        self._bench.settle()
        mail.send(Ready(probe))
        while not isinstance(message := mail.get(None), Finish | Rest):
            self._handle(message)
        return isinstance(message, Rest)

    def _handle(self, message: object) -> None:
        match message:
            case ComputeStates():
                self._compute(message)
            case HoldOut():
                self._hold_out(message)

    def _compute(self, order: ComputeStates) -> None:
        bench = self._bench
        bench.take()
        with bench.pulse.busy():
            parcel = self._into(order.slot, order.batch, self._run_on(order))
        bench.records.add("computed", order.batch)
        bench.mail.send(Computed(order.batch, parcel))

    def _run_on(self, order: ComputeStates) -> torch.Tensor:
        """The hidden states [B, S, width] of the samples, in the slot itself or in the buffer."""
        given = self._bench.corpus.pad(order.samples)
        tokens = torch.from_numpy(given.input_ids)
        memory = self._buffer if self._staged else self._memory(order.slot)
        shape = (*given.input_ids.shape, self._target.width)
        out = states(memory, shape, dtype_name(self._target.dtype))
        return self._target.run(tokens, torch.from_numpy(given.lengths), out)

    def _memory(self, slot: Slot) -> torch.Tensor:
        return self._bench.mapped.host(slot) if self._bench.on_host else self._bench.mapped.own(slot)

    def _into(self, slot: Slot, batch: int, values: torch.Tensor, verify: bool = False) -> Parcel:
        """Complete a slot: copy if need be, mark it, and wait until it is all there."""
        if self._staged:
            there = states(self._memory(slot), tuple(values.shape), dtype_name(values.dtype))  # type: ignore[arg-type]
            there.copy_(values, non_blocking=True)
        total = int(checksum(values)) if self._bench.orders.verify or verify else None
        samples, positions, width = values.shape
        parcel = Parcel(
            batch, slot, (samples, positions, width), dtype_name(values.dtype), total, self._bench.mapped.handle(slot)
        )
        if self._bench.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        write_head(self._memory(slot), parcel)
        if self._bench.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        return parcel

    def _probe(self) -> Parcel:
        """A small batch of known numbers, by which every drafter tests its copies before the start."""
        slot, width = self._bench.orders.probe, self._target.width
        shape = (1, min(_PROBE_POSITIONS, self._most_positions()), width)
        memory = self._buffer if self._staged else self._memory(slot)
        values = states(memory, shape, dtype_name(self._target.dtype))
        values.copy_(torch.arange(values.numel(), device=values.device).remainder(251).view(shape))
        return self._into(slot, -1 - self._bench.orders.number, values, verify=True)

    def _most_positions(self) -> int:
        room = self._bench.orders.slot_bytes // (self._target.width * self._target.dtype.itemsize)
        return max(room - 1, 1)

    def _hold_out(self, order: HoldOut) -> None:
        """Compute held-out samples once: the target is frozen. A full disk must not end the run."""
        why = ""
        with self._bench.pulse.busy():
            given = self._bench.corpus.pad(order.samples)
            values = self._target.run(torch.from_numpy(given.input_ids), torch.from_numpy(given.lengths))
            path = Path(order.path)
            unfinished = path.with_suffix(".tmp")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_tensors(unfinished, {"states": values})
                unfinished.replace(path)
            except FILE_ERRORS as error:
                why = f"{type(error).__name__}: {error}"
                with contextlib.suppress(OSError):
                    unfinished.unlink(missing_ok=True)
        self._bench.mail.send(HeldOut(order.path, why))
