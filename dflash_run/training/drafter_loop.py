"""What a drafter of a training does: fetches, sums gradients, applies steps with the others, in one thread.

The loop never waits for the GPU: copies, micro-batches and collectives are launched and asked after, so that it hears
its mail at any time. The optimizer steps only after an all-reduce that is complete and that no word of a loss overtook.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors.torch import load_file

from dflash_run.messages import (
    Alive,
    Applied,
    Apply,
    Broken,
    Computed,
    Fence,
    Fenced,
    Finish,
    Forget,
    Group,
    Grouped,
    Open,
    Quiesce,
    Quiet,
    Ready,
    Received,
    Refused,
)
from dflash_run.model.config import target_config
from dflash_run.model.exported import read_exported
from dflash_run.model.frozen import load_frozen
from dflash_run.model.shape import DrafterShape
from dflash_run.model.tensorfile import FILE_ERRORS
from dflash_run.training.arrivals import Arrival, Arrivals, Moment
from dflash_run.training.batch import MicroBatch
from dflash_run.training.bench import Bench
from dflash_run.training.group import Collective, DrafterGroup
from dflash_run.training.messages import Evaluate, Evaluated, Probe, Probed, Rest, Save, Saved, TrainOn
from dflash_run.training.pulse import LONG_S
from dflash_run.training.replica import Replica
from dflash_run.training.report import StepReport
from dflash_run.transport.parcel import ParcelError

_AHEAD: Final = 2
"""Micro-batches launched and not finished: with one, every batch would leave a gap on the GPU."""


@dataclass(eq=False)
class _Running:
    """A micro-batch that computes."""

    arrival: Arrival
    end: Moment


class DrafterLoop:
    """One loop over its mail and its outstanding work."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        with bench.pulse.busy(LONG_S):
            self._replica, self._shape = _replica(bench)
        self._group = DrafterGroup(bench.orders.number, bench.device)
        self._begin()

    def _begin(self) -> None:
        """What belongs to one run."""
        bench = self._bench
        prefetch = bench.pipeline.dispatch.prefetch
        count = 1 + prefetch + _AHEAD
        self._arrivals = Arrivals(bench.mapped, bench.orders.slot_bytes, count, bench.orders.verify)
        self._open = -1
        self._last = -1
        """The step that it applied last."""
        self._ready: list[Arrival] = []
        self._running: deque[_Running] = deque()
        self._apply: Apply | None = None
        self._collective: Collective | None = None
        self._report: tuple[StepReport, Moment] | None = None
        self._epoch = 0

    def run(self) -> None:
        """Work until told to finish, a run after the other where this worker is kept."""
        try:
            while self._run_once() and self._bench.rests():
                self._arrivals.drain()
                self._begin()
                with self._bench.pulse.busy():
                    self._replica.restart(self._bench.pipeline.seed)
        finally:
            self._bench.close()

    def _run_once(self) -> bool:
        """Whether it is to rest then; else it has been told to finish."""
        mail = self._bench.mail
        self._bench.settle()
        mail.send(Ready())
        try:
            while not isinstance(message := mail.get(self._patience()), Finish | Rest):
                if message is not None:
                    self._handle(message)
                self._go_on()
        finally:
            self._group.leave()
        return isinstance(message, Rest)

    def _handle(self, message: object) -> None:
        send = self._bench.mail.send
        match message:
            case TrainOn():
                self._bench.take()
                self._bench.records.add("taken", message.batch)
                self._fetch(message)
            case Open(step=step):
                self._turn_to(step)
            case Apply():
                self._apply = message
            case Forget(batch=batch):
                self._forget(batch)
            case Fence(target=target):
                self._arrivals.bury(target)
                send(Fenced(target))
            case Quiesce(epoch=epoch):
                self._quiesce()
                send(Quiet(epoch, self._last))
            case Group():
                self._regroup(message)
            case Probe(parcel=parcel, source=source):
                self._arrivals.probe(parcel, source)
                send(Probed(source))
            case Evaluate(step=step, paths=paths):
                with self._bench.pulse.busy(LONG_S):
                    send(self._evaluated(step, paths))
            case Save(step=step, folder=folder):
                with self._bench.pulse.busy(LONG_S):
                    send(Saved(step, folder, self._save(Path(folder))))

    # Outstanding work -----------------------------------------------------------------------------------------------

    def _patience(self) -> float | None:
        """How long to wait for mail."""
        if self._can_launch():
            return 0.0
        outstanding = self._arrivals.copying or self._running or self._apply or self._report
        return self._bench.poll_s if outstanding else None

    def _go_on(self) -> None:
        self._receive()
        if self._can_launch():
            self._launch()
        while self._running and self._running[0].end.passed():
            done = self._running.popleft()
            self._arrivals.release(done.arrival)
            self._bench.mail.send(Computed(done.arrival.order.batch))
            self._resume_copies()
        self._step()
        if (self._running or self._apply or self._report) and self._bench.due():
            self._bench.mail.send(Alive())

    def _fetch(self, order: TrainOn) -> None:
        try:
            self._arrivals.order(order)
        except ParcelError as error:
            self._bench.mail.send(Refused(order.batch, str(error)))

    def _resume_copies(self) -> None:
        while self._arrivals.waiting:
            batch = self._arrivals.waiting[0].batch
            try:
                self._arrivals.go_on()
                return
            except ParcelError as error:
                self._bench.mail.send(Refused(batch, str(error)))

    def _receive(self) -> None:
        while self._arrivals.copying:
            batch = self._arrivals.copying[0].order.batch
            try:
                arrival = self._arrivals.arrived()
            except ParcelError as error:
                self._bench.mail.send(Refused(batch, str(error)))
                self._resume_copies()
                continue
            if arrival is None:
                return
            self._bench.mail.send(Received(batch))  # before it is computed: see the fence
            self._ready.append(arrival)

    def _next(self) -> Arrival | None:
        return next((each for each in self._ready if each.order.step == self._open), None)

    def _can_launch(self) -> bool:
        """Whether a micro-batch of the open step is here and the GPU has room; none while a step is applied."""
        applying = self._apply is not None or self._report is not None
        return not applying and len(self._running) < _AHEAD and self._next() is not None

    def _launch(self) -> None:
        arrival = self._next()
        assert arrival is not None
        self._ready.remove(arrival)
        with self._bench.pulse.busy():
            self._replica.micro_batch(self._micro_batch(arrival))
        self._running.append(_Running(arrival, Moment(self._bench.device)))

    def _micro_batch(self, arrival: Arrival) -> MicroBatch:
        return self._as_micro_batch(arrival.states, arrival.order.samples, arrival.order.epoch)

    def _as_micro_batch(self, values: torch.Tensor, samples: tuple[int, ...], epoch: int) -> MicroBatch:
        given = self._bench.corpus.pad(samples)
        features, last = values, None
        if self._bench.keep_last:
            width = values.shape[-1] - self._shape.hidden_size
            features, last = values[..., :width], values[..., width:]
        return MicroBatch(
            features=features,
            last=last,
            input_ids=torch.from_numpy(given.input_ids),
            loss_mask=torch.from_numpy(given.loss_mask),
            lengths=torch.from_numpy(given.lengths),
            sample_ids=np.asarray(samples, np.int64),
            epoch=epoch,
        )

    def _forget(self, batch: int) -> None:
        self._arrivals.forget(batch)
        for arrival in [each for each in self._ready if each.order.batch == batch]:
            self._ready.remove(arrival)
            self._arrivals.release(arrival)
        self._resume_copies()

    # Steps ----------------------------------------------------------------------------------------------------------

    def _turn_to(self, step: int) -> None:
        """A new step is open. What was summed for one that was not applied is dropped."""
        if step == self._open:
            return
        if self._open >= 0 and self._last != self._open:
            self._replica.drop()
        self._open = step

    def _step(self) -> None:
        """Bring the step that is being applied further: all-reduce, optimizer, report."""
        if self._apply is not None and not self._running and self._summed():
            with self._bench.pulse.busy():
                report = self._replica.apply(self._apply.progress)
            self._report = (report, Moment(self._bench.device))
            self._last, self._apply, self._collective = self._apply.step, None, None
        if self._report is not None and self._report[1].passed():
            report = self._report[0]
            self._report = None
            self._bench.mail.send(Applied(self._last, _told(report)))

    def _summed(self) -> bool:
        """Whether all members' sums are in the buffer; false also when the group has broken."""
        try:
            if self._collective is None:
                if self._hangs():
                    self._bench.hang()
                self._collective = self._group.all_reduce(self._replica.flat)
            return self._collective.done()
        except RuntimeError as error:  # a peer is gone: the launcher will say what becomes of the step
            self._apply = self._collective = None
            self._broken(error)
            return False

    def _hangs(self) -> bool:
        orders = self._bench.orders
        due = orders.fails_at is not None and self._bench.taken >= orders.fails_at
        return due and orders.failure == "hang_in_step"

    def _broken(self, error: Exception) -> None:
        self._bench.mail.send(Broken(self._epoch, f"{type(error).__name__}: {error}"))

    def _quiesce(self) -> None:
        """Leave the group. A step whose optimizer has begun is completed, any other stays unapplied."""
        if self._report is not None:
            self._report[1].wait()
            self._step()
        self._apply = self._collective = None
        self._group.leave()

    def _regroup(self, told: Group) -> None:
        self._epoch = told.epoch
        try:
            with self._bench.pulse.busy():
                self._group.join(told.members, told.store)
                if told.laggards:
                    self._group.copy_from(told.source, self._replica.state())
        except RuntimeError as error:
            self._bench.mail.send(Grouped(-1))
            self._broken(error)
            return
        if self._bench.orders.number in told.laggards:
            self._last = told.step
            self._replica.drop()
        self._bench.mail.send(Grouped(told.epoch))

    # Held-out data and checkpoints ----------------------------------------------------------------------------------

    def _evaluated(self, step: int, paths: tuple[str, ...]) -> Evaluated:
        """Files that cannot be read must not end a run."""
        try:
            return Evaluated(step, self._evaluate(paths))
        except FILE_ERRORS as error:
            return Evaluated(step, {}, f"{type(error).__name__}: {error}")

    def _evaluate(self, paths: tuple[str, ...]) -> dict[str, float]:
        found = self._replica.evaluate(self._held_out(paths))
        return {
            "held_out_loss": found.loss,
            "held_out_expected_accepted_length": found.expected_accepted_length,
            "held_out_anchors": float(found.anchors),
        }

    def _held_out(self, paths: tuple[str, ...]) -> Iterator[MicroBatch]:
        for path in paths:
            values = load_file(path, device=str(self._bench.device))["states"]
            samples = tuple(int(each) for each in Path(path).stem.split("_")[1:])
            yield self._as_micro_batch(values, samples, 0)

    def _save(self, folder: Path) -> str:
        """Why it failed, or nothing: a full disk must not end a run of a week."""
        try:
            self._replica.save(folder)
        except FILE_ERRORS as error:
            return f"{type(error).__name__}: {error}"
        return ""


def _replica(bench: Bench) -> tuple[Replica, DrafterShape]:
    pipeline, orders = bench.pipeline, bench.orders
    shape = DrafterShape.of(target_config(pipeline.model), pipeline.model, orders.mask_token_id)
    dtype = getattr(torch, pipeline.training.dtype)
    frozen = load_frozen(pipeline.model, bench.device, dtype, pipeline.seed)
    warm = pipeline.model.warm_start
    weights = None
    if warm is not None and orders.resume is None:
        shape, weights = read_exported(Path(warm), shape)
    replica = Replica(
        shape,
        training=pipeline.training,
        embed=frozen.embed,
        head=frozen.head,
        seed=pipeline.seed,
        weights=weights,
    )
    if orders.resume is not None:
        replica.load(orders.resume)
    return replica, shape


def _told(report: StepReport) -> dict[str, Any]:
    """What the launcher is told of a step, as plain numbers."""
    return {
        "loss": report.loss,
        "expected_accepted_length": report.expected_accepted_length,
        "grad_norm": report.grad_norm,
        "lr": report.lr,
        "applied": report.applied,
        "anchors": report.anchors,
        "tokens": report.tokens,
        "samples_without_anchors": report.samples_without_anchors,
    }
