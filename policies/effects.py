"""What the dispatcher answers: named effects that a driver carries out, in order.

Effects are immutable by type (the checker refuses assignments) but not at run time: a frozen dataclass costs
2.7 times as much to build, and several are built for every batch.
"""

from dataclasses import dataclass
from typing import Any, dataclass_transform


@dataclass_transform(frozen_default=True, eq_default=True)
def effect(cls: type) -> Any:
    """A slotted dataclass that the type checker treats as frozen."""
    return dataclass(slots=True, eq=True)(cls)


@effect
class Loaded:
    """The feed admitted the loader's batch to `lane`; the loader may go on."""

    batch: int
    lane: int


@effect
class Assign:
    """The target is to compute the hidden states of `batch`."""

    target: int
    batch: int
    lane: int


@effect
class Admit:
    """The hidden states that the target holds now wait in `lane`; the target may ask for its next batch."""

    target: int
    batch: int
    lane: int


@effect
class Deliver:
    """The drafter is to fetch `batch` from target `source` and train on it as a micro-batch of `step`.

    `closes`: it completes the drafter's part of the step, which may join as soon as it has computed it.
    """

    drafter: int
    batch: int
    lane: int
    source: int
    step: int
    closes: bool


@effect
class Release:
    """The hidden states of `batch` have arrived: the target may use their memory again."""

    target: int
    batch: int


@effect
class Flush:
    """No more micro-batches of `step` for this drafter: it joins with what it has, be it nothing."""

    drafter: int
    step: int


@effect
class Join:
    """The drafter's part of `step` is computed; it waits for the other drafters."""

    drafter: int
    step: int


@effect
class Step:
    """Every live drafter of the step has joined: it may be applied, then committed with these batches."""

    step: int
    drafters: tuple[int, ...]
    batches: tuple[int, ...]


@effect
class Drop:
    """The step cannot be applied: its drafters forget their gradients and go on with the group's next step."""

    step: int
    drafters: tuple[int, ...]


@effect
class PutBack:
    """`batch`, taken but not received by a lost drafter, waits in its lane again."""

    batch: int
    lane: int
    drafter: int


@effect
class Recompute:
    """The hidden states of `batch` are gone: it waits in the feed again. `place` says where it was lost.

    `lane` is the hidden-state lane it waited in, or -1; `worker` the target or drafter that had it, or -1.
    """

    batch: int
    place: int
    lane: int
    worker: int


@effect
class Recall:
    """The source died before `batch` was received: the drafter forgets it and may take again.

    It may have been the one that closed the drafter's part of a step; what was taken ahead keeps its own step.
    """

    drafter: int
    batch: int


@effect
class Lose:
    """These batches were trained only into weights that nobody holds any more."""

    batches: tuple[int, ...]


@effect
class End:
    """Every worker ends now, for this reason (a stop reason of the summary)."""

    reason: str


Effect = (
    Loaded | Assign | Admit | Deliver | Release | Flush | Join | Step | Drop
    | PutBack | Recompute | Recall | Lose | End
)
