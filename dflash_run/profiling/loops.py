"""The training's own workers, which also answer what a profile asks: they are measured as they will run."""

import time
from collections.abc import Iterable

import torch

from dflash_run.profiling.messages import AskPeak, Dissect, Dissected, Peak, TimeCollective
from dflash_run.profiling.stopwatch import Stopwatch, peak_bytes
from dflash_run.training.drafter_loop import DrafterLoop
from dflash_run.training.target_loop import TargetLoop
from dflash_run.transport.staging import dtype_name, states


class ProfiledTarget(TargetLoop):
    """Parts of a batch: padding (the loader's work, which a target does itself) and the forward pass."""

    def _handle(self, message: object) -> None:
        match message:
            case Dissect():
                self._bench.mail.send(Dissected(self._dissect(message)))
            case AskPeak():
                self._bench.mail.send(Peak(peak_bytes(self._bench.device)))
            case _:
                super()._handle(message)

    def _dissect(self, order: Dissect) -> dict[str, tuple[float, ...]]:
        found = []
        for _ in range(order.repeats):
            watch = Stopwatch(self._bench.device)
            given = self._bench.corpus.pad(order.samples)
            watch.mark("padding")
            out = None
            if self._staged:  # where a batch is computed into, so that no memory more is needed
                shape = (*given.input_ids.shape, self._target.width)
                out = states(self._buffer, shape, dtype_name(self._target.dtype))
            with self._bench.pulse.busy():
                self._target.run(torch.from_numpy(given.input_ids), torch.from_numpy(given.lengths), out)
            watch.mark("forward")
            found.append(watch.seconds())
        return _columns(found)


class ProfiledDrafter(DrafterLoop):
    """Parts of a batch: padding, forward and backward pass, and the optimizer of a step."""

    def _handle(self, message: object) -> None:
        match message:
            case Dissect():
                self._bench.mail.send(Dissected(self._dissect(message)))
            case TimeCollective(repeats=repeats):
                self._bench.mail.send(Dissected({"all_reduce": self._collective_seconds(repeats)}))
            case AskPeak():
                self._bench.mail.send(Peak(peak_bytes(self._bench.device)))
            case _:
                super()._handle(message)

    def _dissect(self, order: Dissect) -> dict[str, tuple[float, ...]]:
        bench, found = self._bench, []
        width = (len(self._shape.taps) + bench.keep_last) * self._shape.hidden_size
        length = int(bench.corpus.lengths[list(order.samples)].max())
        kind = getattr(torch, bench.pipeline.model.dtype)
        values = torch.randn(len(order.samples), length, width, device=bench.device, dtype=kind)
        for _ in range(order.repeats):
            watch = Stopwatch(bench.device)
            batch = self._as_micro_batch(values, order.samples, 0)
            watch.mark("padding")
            with bench.pulse.busy():
                self._replica.micro_batch(batch, watch.mark)
                self._replica.apply(0.5)
            watch.mark("optimizer")
            found.append(watch.seconds())
        return _columns(found)

    def warm_up(self, batches: Iterable[tuple[int, ...]]) -> None:
        """Compile what batches of these samples need, and let go of everything."""
        for samples in batches:
            self._dissect(Dissect(samples, 1))
        self._bench.close()

    def _collective_seconds(self, repeats: int) -> tuple[float, ...]:
        found = []
        for _ in range(repeats):
            start = time.perf_counter()
            under_way = self._group.all_reduce(self._replica.flat)
            while not under_way.done():
                time.sleep(0)
            if self._bench.device.type == "cuda":
                torch.cuda.synchronize(self._bench.device)
            found.append(time.perf_counter() - start)
        self._replica.drop()
        return tuple(found)


def _columns(rows: list[dict[str, float]]) -> dict[str, tuple[float, ...]]:
    return {name: tuple(row[name] for row in rows) for name in dict.fromkeys(name for row in rows for name in row)}
