"""Which device each worker gets, and how busy the GPUs are while a run goes on."""

import contextlib
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from policies.faults import ABSENT, Fault
from policies.pipeline import Pipeline
from policies.sections.topology import gpus_from

FILE: Final = "devices.jsonl"
_EVERY_S: Final = 1.0


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Devices by worker."""

    targets: tuple[tuple[str, ...], ...]
    """Of each target, the GPUs that it spreads over, or one device."""
    drafters: tuple[str, ...]

    def gpus(self) -> list[int]:
        """The GPUs in use, rising."""
        names = {name for devices in self.targets for name in devices} | set(self.drafters)
        return sorted(int(name.partition(":")[2]) for name in names if name.startswith("cuda"))


def place(pipeline: Pipeline, gpus: int) -> tuple[Placement, list[Fault]]:
    """The devices of the file, or one GPU for each worker in order, or the CPU where there is no GPU."""
    topology = pipeline.topology
    given, each = topology.devices, topology.target_gpus
    targets: Sequence[str] | None = topology.named("target")
    drafters: Sequence[str] | None = topology.named("drafter")
    faults: list[Fault] = []
    if targets is None and drafters is None and gpus:
        needed = topology.targets * each + topology.drafters
        if needed > gpus:
            workers = f"{topology.targets} targets of {each} and {topology.drafters} drafters"
            rule = f"must fit the {gpus} GPUs here: {workers}"
            remedy = "have fewer workers, or share GPUs by naming topology.devices.targets and .drafters"
            faults.append(Fault("topology", ABSENT, rule, remedy))
        firsts = range(0, topology.targets * each, each)
        targets = [f"cuda:{first}" for first in firsts]
        drafters = [f"cuda:{topology.targets * each + d}" for d in range(topology.drafters)]
    targets = targets or [_default(gpus, index * each) for index in range(topology.targets)]
    drafters = drafters or [_default(gpus, index) for index in range(topology.drafters)]
    spread = tuple(gpus_from(first, each) for first in targets)
    if given is not None:
        faults += _absent("topology.devices.targets", [name for names in spread for name in names], gpus)
        faults += _absent("topology.devices.drafters", drafters, gpus)
    faults += _shared(pipeline, drafters)
    return Placement(targets=spread, drafters=tuple(drafters)), faults


def _default(gpus: int, index: int) -> str:
    return f"cuda:{min(index, gpus - 1)}" if gpus else "cpu"


def _absent(key: str, names: Sequence[str], gpus: int) -> Iterator[Fault]:
    for name in dict.fromkeys(names):
        if name.startswith("cuda") and int(name.partition(":")[2]) >= gpus:
            here = f"cuda:0 to cuda:{gpus - 1}" if gpus else "none"
            yield Fault(key, name, f"must be a GPU of this machine: {here}", "or cpu")


def _shared(pipeline: Pipeline, drafters: Sequence[str]) -> Iterator[Fault]:
    """NCCL refuses two ranks on one GPU."""
    if pipeline.training.sync == "none":
        return
    for name, count in Counter(drafters).items():
        if count > 1 and name.startswith("cuda"):
            rule = f"must be one drafter's under sync: {pipeline.training.sync}: NCCL takes one rank a GPU"
            yield Fault("topology.devices.drafters", name, rule, "give each drafter a GPU, or set training.sync: none")


class DeviceSampler:
    """Samples utilisation and memory of GPUs into `devices.jsonl` from a thread; does nothing without GPUs."""

    def __init__(self, folder: Path, gpus: list[int], clock: Callable[[], float]) -> None:
        """`clock`: seconds since the start of the run; nothing is sampled before it."""
        self._clock = clock
        self._path = folder / FILE
        self._gpus = gpus
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._gpus:
            self._thread = threading.Thread(target=self._sample, name="devices", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(5.0)

    def _sample(self) -> None:
        """A full disk, or a driver that fails, must not end a training."""
        with contextlib.suppress(Exception):
            self._write()

    def _write(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            handles = [(gpu, pynvml.nvmlDeviceGetHandleByIndex(physical(gpu))) for gpu in self._gpus]
        except Exception as error:  # a missing library or driver must not end a training
            self._path.write_text(json.dumps({"missing": f"{type(error).__name__}: {error}"}) + "\n")
            return
        with self._path.open("w", encoding="ascii", buffering=1) as file:
            while not self._over.wait(_EVERY_S):
                now = self._clock()
                for gpu, handle in handles if now > 0 else ():
                    file.write(json.dumps(_reading(pynvml, gpu, handle, now)) + "\n")


def _reading(nvml: Any, gpu: int, handle: Any, now: float) -> dict[str, Any]:
    return {
        "time_s": round(now, 3),
        "device": f"cuda:{gpu}",
        "utilization": nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
        "memory_bytes": nvml.nvmlDeviceGetMemoryInfo(handle).used,
    }


def physical(gpu: int) -> int:
    """The driver's number of the GPU that this process calls `cuda:gpu`."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    parts = [part.strip() for part in visible.split(",") if part.strip()]
    return int(parts[gpu]) if gpu < len(parts) and parts[gpu].isdigit() else gpu
