"""What launcher and workers tell each other: small frozen values, the same for threads and processes.

Batches travel by number only; payloads go from worker to worker (see `payload` and `transport`).
"""

from dataclasses import dataclass


class Question:
    """A message that is owed one `Answer`."""

    __slots__ = ()


class Answer:
    """What a worker owes for having been started, or for a `Question`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Compute:
    """To a target of a rehearsal: compute this batch's hidden states, which takes `seconds` of wall time."""

    batch: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Train:
    """To a drafter of a rehearsal: fetch the batch (`copy_s`), then train on it as a part of `step` (`seconds`)."""

    batch: int
    step: int
    copy_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Apply:
    """To a drafter: all have joined; apply the step.

    `seconds`: what it takes in a rehearsal. `progress`: share of the planned batches trained by the middle of the step,
    by which the learning rate goes.
    """

    step: int
    seconds: float = 0.0
    progress: float = 0.0


@dataclass(frozen=True, slots=True)
class Open:
    """To a drafter: this is its open step now; the one before was applied or dropped."""

    step: int


@dataclass(frozen=True, slots=True)
class Forget:
    """To a drafter: the batch cannot be fetched any more. To a target: its hidden states are not needed any more."""

    batch: int


@dataclass(frozen=True, slots=True)
class Fence:
    """To a drafter: this target is gone. What it had sent is received by now, or never will be; answered `Fenced`."""

    target: int


@dataclass(frozen=True, slots=True)
class Quiesce:
    """To a drafter: the group is broken. Leave the step that is being applied as it is; answered `Quiet`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Group(Question):
    """To a drafter: these are the members from now on; answered `Grouped`.

    `store` is a file through which they find each other, new for each epoch. Where `laggards` are named they copy
    weights and optimizer state from `source`, which has applied step `step`.
    """

    epoch: int
    members: tuple[int, ...]
    store: str
    source: int = -1
    laggards: tuple[int, ...] = ()
    step: int = -1


@dataclass(frozen=True, slots=True)
class Finish:
    """To everyone: the run is over."""


@dataclass(frozen=True, slots=True)
class Ready(Answer):
    """From a worker: it has started. `probe`: a target's parcel for the self-test."""

    probe: object = None


@dataclass(frozen=True, slots=True)
class Computed:
    """From a worker: hidden states, or gradients, of the batch are computed. `parcel`: where a target left them."""

    batch: int
    parcel: object = None


@dataclass(frozen=True, slots=True)
class Received:
    """From a drafter: the batch has arrived and was verified."""

    batch: int


@dataclass(frozen=True, slots=True)
class Refused:
    """From a drafter: what arrived is not the batch that was promised."""

    batch: int
    why: str


@dataclass(frozen=True, slots=True)
class Applied:
    """From a drafter: it has applied the step. `report`: what a training tells of it."""

    step: int
    report: object = None


@dataclass(frozen=True, slots=True)
class Fenced:
    """From a drafter: it receives nothing of this target any more."""

    target: int


@dataclass(frozen=True, slots=True)
class Quiet:
    """From a drafter: it takes no part in the group any more; `applied` is the last step that it has applied."""

    epoch: int
    applied: int


@dataclass(frozen=True, slots=True)
class Grouped(Answer):
    """From a drafter: it belongs to the new group."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Broken:
    """From a drafter: a collective of this epoch failed."""

    epoch: int
    why: str


@dataclass(frozen=True, slots=True)
class Alive:
    """From a worker that computes: it makes progress."""


@dataclass(frozen=True, slots=True)
class Gone:
    """About a worker: it raised, exited or was killed; `why` in words."""

    why: str
