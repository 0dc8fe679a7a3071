"""Which device each worker gets, and how busy the GPUs are while a run goes on."""

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from dflash_run.training.handles import handle_of
from dflash_run.training.readings import Reading, Readings
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
        except Exception as error:  # a missing library or driver must not end a training
            self._say_missing(f"{type(error).__name__}: {error}")
            return
        found = {gpu: handle_of(pynvml, gpu) for gpu in self._gpus}
        handles = {gpu: handle for gpu, handle in found.items() if handle is not None}
        if handles:
            self._follow(pynvml, handles)
        else:
            self._say_missing("which of the driver's GPUs are used here cannot be told")

    def _say_missing(self, why: str) -> None:
        self._path.write_text(json.dumps({"missing": why}) + "\n")

    def _follow(self, nvml: Any, handles: dict[int, Any]) -> None:
        with self._path.open("w", encoding="ascii", buffering=1) as file:
            readings = Readings()
            while not self._over.wait(_EVERY_S):
                now = self._clock()
                if now > 0:
                    found = {gpu: _reading(nvml, handle) for gpu, handle in handles.items()}
                    file.writelines(json.dumps(line) + "\n" for line in readings.add(now, found))
            file.writelines(json.dumps(line) + "\n" for line in readings.rest())


def _reading(nvml: Any, handle: Any) -> Reading:
    """A part of a GPU (MIG) has memory of its own and no use that the driver tells."""
    utilization = memory = None
    with contextlib.suppress(Exception):
        utilization = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    with contextlib.suppress(Exception):
        memory = nvml.nvmlDeviceGetMemoryInfo(handle).used
    return Reading(utilization, memory)
