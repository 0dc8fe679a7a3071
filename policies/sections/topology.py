"""Who works, and who is made to fail: the sections `topology` and `faults`."""

import re
from typing import Annotated, Final, Literal

from policies.sections.fields import Positive, Refused, Section, allowed, one_of, one_or_listed, whole

MAX_WORKERS: Final = 4096
_DEVICE: Final = re.compile(r"cpu|cuda(:[0-9]{1,4})?")
_WORKER: Final = re.compile(r"(target|drafter)/(0|[1-9][0-9]{0,5})")


def _matching(pattern: re.Pattern[str], value: object) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise Refused()
    return value


Workers = Annotated[int, allowed(f"an integer from 1 to {MAX_WORKERS}", whole(1, MAX_WORKERS))]
DeviceList = Annotated[
    str | tuple[str, ...],
    allowed(
        "a device such as cuda:0 or cpu for all, or a list of them",
        one_or_listed(lambda value: _matching(_DEVICE, value)),
    ),
]
WorkerName = Annotated[
    str, allowed("a worker such as target/0 or drafter/1", lambda value: _matching(_WORKER, value))
]
FaultKind = Annotated[Literal["crash", "hang", "hang_in_step"], one_of("crash", "hang", "hang_in_step")]


class Devices(Section):
    """Where the workers of each role run; several workers may name the same device."""

    targets: DeviceList | None = None
    """One device per target, or one for all of them; with `target_gpus: k`, the first of its k consecutive GPUs."""
    drafters: DeviceList | None = None
    """One device per drafter, or one for all of them."""


class Topology(Section):
    """How many workers of each role."""

    targets: Workers = 1
    """Workers that run the frozen target model."""
    drafters: Workers = 1
    """Workers that train the drafter."""
    devices: Devices | None = None
    """Devices of a real run; None: one GPU each, in order, or the CPU where there is none."""
    target_gpus: Positive = 1
    """GPUs that one target spreads over."""

    def named(self, role: Literal["target", "drafter"]) -> tuple[str, ...] | None:
        """The device of each worker of the role, with `cuda` told as `cuda:0`; None where none is named."""
        given = getattr(self.devices, f"{role}s", None)
        if given is None:
            return None
        names = (given,) * getattr(self, f"{role}s") if isinstance(given, str) else given
        return tuple("cuda:0" if name == "cuda" else name for name in names)

    def spread(self, role: Literal["target", "drafter"]) -> tuple[tuple[str, ...], ...] | None:
        """The devices of each worker of the role, several where a target spreads over GPUs; None: none is named."""
        names, each = self.named(role), self.target_gpus if role == "target" else 1
        return None if names is None else tuple(gpus_from(first, each) for first in names)


def gpus_from(first: str, count: int) -> tuple[str, ...]:
    """So many GPUs from the first on; of a CPU there is one."""
    if not first.startswith("cuda"):
        return (first,)
    number = int(first.partition(":")[2])
    return tuple(f"cuda:{number + k}" for k in range(count))


class InjectedFault(Section):
    """A failure made to happen: on taking its `at_batch`-th batch, before computing."""

    worker: WorkerName
    """The worker that fails, e.g. `target/0`."""
    at_batch: Positive
    """Which of the batches that the worker takes, counted from 1."""
    kind: FaultKind
    """`crash`: the worker is gone at once. `hang`: it never answers again. `hang_in_step`: a drafter takes part in
    everything but the step that the batch belongs to, in which the others wait for it."""
