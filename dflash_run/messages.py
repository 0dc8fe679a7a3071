"""What launcher and workers tell each other: small frozen values, the same for threads and processes.

Batches travel by number only; payloads go from worker to worker (see `payload`).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Compute:
    """To a target: compute this batch's hidden states, which takes `seconds` of wall time."""

    batch: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Train:
    """To a drafter: fetch the batch (`copy_s`), then train on it as a micro-batch of `step` (`seconds`); wall times."""

    batch: int
    step: int
    copy_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Apply:
    """To a drafter: all have joined; apply the step, which takes `seconds` of wall time."""

    step: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Open:
    """To a drafter: this is its open step now; the one before was applied or dropped."""

    step: int


@dataclass(frozen=True, slots=True)
class Forget:
    """To a drafter: the batch cannot be fetched any more. To a target: its hidden states are not needed any more."""

    batch: int


@dataclass(frozen=True, slots=True)
class Finish:
    """To everyone: the run is over."""


@dataclass(frozen=True, slots=True)
class Ready:
    """From a worker: it has started."""


@dataclass(frozen=True, slots=True)
class Computed:
    """From a worker: hidden states, or gradients, of the batch are computed."""

    batch: int


@dataclass(frozen=True, slots=True)
class Received:
    """From a drafter: the batch has arrived and was verified."""

    batch: int


@dataclass(frozen=True, slots=True)
class Applied:
    """From a drafter: it has applied the step."""

    step: int


@dataclass(frozen=True, slots=True)
class Alive:
    """From a worker that computes: it makes progress."""


@dataclass(frozen=True, slots=True)
class Gone:
    """About a worker: it raised, exited or was killed; `why` in words."""

    why: str


ToWorker = Compute | Train | Apply | Open | Forget | Finish
FromWorker = Ready | Computed | Received | Applied | Alive | Gone
