"""What targets and drafters of a training have alike: device, samples, slots, records, failures on order."""

import contextlib
import gc
import json
import resource
import time
from pathlib import Path
from typing import Any

import torch

from dflash_run.data.corpus import Corpus
from dflash_run.messages import Finish
from dflash_run.training.messages import Renew, Rested
from dflash_run.training.orders import PEAK, TrainingOrders
from dflash_run.training.pulse import Pulse
from dflash_run.transport.staging import Mapped
from dflash_run.worker import InjectedCrash, Mail, Records
from policies.loading import from_mapping


class Bench:
    """Made once, at the start of a worker's process."""

    poll_s = 0.0005
    """How often outstanding work of a GPU is asked after."""

    def __init__(self, mail: Mail, orders: TrainingOrders) -> None:
        torch.set_num_threads(orders.threads)
        self.mail = mail
        self.device = torch.device(orders.devices[0])
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            # cuDNN's attention builds a plan for each new (samples, length): 63 ms on an H200, as much as the batch.
            torch.backends.cuda.enable_cudnn_sdp(False)
        self.mapped = self._map(orders.slot_bytes)
        self.pulse = Pulse(mail, orders.heartbeat_s)
        self._said = 0.0
        self._kept = False
        """Whether it is not its first run: its memory then also holds what earlier ones needed."""
        self._begin(orders)

    def _begin(self, orders: TrainingOrders) -> None:
        """What belongs to one run."""
        self.orders = orders
        self.pipeline = from_mapping(orders.config)
        self.corpus = Corpus.open(Path(orders.corpus))
        self.records = Records(orders.records)
        self.taken = 0

    def settle(self) -> None:
        """All is loaded: what is there stays, and need not be looked through by every later collection of garbage.

        The first full one took a third of a second in the middle of a drafter's run, thirty batches long.
        """
        gc.collect()
        gc.freeze()

    def rests(self) -> bool:
        """Let go of a run. True: another one begins, and its orders are in force; False: told to finish."""
        self._note_peak()
        self.records.close()
        self.mapped.close(host_only=True)
        self.mail.send(Rested())
        while not isinstance(message := self.mail.get(None), Renew):
            if isinstance(message, Finish):
                return False
        self._kept = True
        self._begin(message.orders)
        return True

    @property
    def keep_last(self) -> bool:
        """Whether the target's last state travels too."""
        return self.pipeline.training.loss == "soft"

    @property
    def on_host(self) -> bool:
        """Whether hidden states wait in host memory."""
        return self.device.type == "cpu" or self.pipeline.memory.staging == "host"

    def take(self) -> None:
        """One more batch is taken: fail here if the file says so."""
        self.taken += 1
        if self.taken != self.orders.fails_at:
            return
        if self.orders.failure == "crash":
            raise InjectedCrash(f"crash on taking its batch number {self.taken}, as the file asks")
        if self.orders.failure == "hang":
            self.hang()

    def hang(self) -> None:
        """Hear nothing but the end."""
        while not isinstance(self.mail.get(None), Finish):
            pass
        raise SystemExit

    def due(self) -> bool:
        """Whether it is time to say that it lives."""
        now = time.monotonic()
        if now - self._said < self.orders.heartbeat_s:
            return False
        self._said = now
        return True

    def close(self) -> None:
        """Say how much memory it took, and let go of everything."""
        if not self.records.closed:
            self._note_peak()
        self.mapped.close()
        self.records.close()

    def _map(self, slot_bytes: int) -> Mapped:
        return Mapped(slot_bytes, self.device)

    def _note_peak(self) -> None:
        """The most that this process had of its device's memory; of the host's, where it computes there."""
        if self._kept:
            return
        if self.device.type == "cuda":
            allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
            peak: dict[str, Any] = {"device": str(self.device), "allocated": allocated, "reserved": reserved}
        else:
            peak = {"device": "cpu", "allocated": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
        path = self.orders.records.with_suffix(PEAK)
        with contextlib.suppress(OSError):  # the disk is full: it is told where it matters
            path.write_text(json.dumps(peak), encoding="ascii")
