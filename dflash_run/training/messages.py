"""What launcher and workers of a training tell each other, beyond what every run does (see `dflash_run.messages`)."""

from dataclasses import dataclass

from dflash_run.messages import Answer, Question
from dflash_run.training.orders import TrainingOrders
from dflash_run.transport.parcel import Parcel, Slot


@dataclass(frozen=True, slots=True)
class ComputeStates:
    """To a target: compute the hidden states of these samples into the slot; answered `Computed` with a parcel."""

    batch: int
    samples: tuple[int, ...]
    slot: Slot


@dataclass(frozen=True, slots=True)
class TrainOn:
    """To a drafter: fetch the parcel and train on it as a micro-batch of `step`."""

    step: int
    parcel: Parcel
    source: int
    """The target that computed it."""
    samples: tuple[int, ...]
    epoch: int

    @property
    def batch(self) -> int:
        """The batch's number."""
        return self.parcel.batch


@dataclass(frozen=True, slots=True)
class Rest(Question):
    """To a worker that is kept for another run: let go of this one."""


@dataclass(frozen=True, slots=True)
class Rested(Answer):
    """Nothing of the run is left, but the model and what was compiled."""


@dataclass(frozen=True, slots=True)
class Renew:
    """To a worker that rests: begin another run; answered as a start is."""

    orders: TrainingOrders


@dataclass(frozen=True, slots=True)
class Probe(Question):
    """To a drafter, before the start: copy this parcel and compare it, as a test of the way."""

    parcel: Parcel
    source: int


@dataclass(frozen=True, slots=True)
class Probed(Answer):
    """From a drafter: the copy arrived whole."""

    source: int


@dataclass(frozen=True, slots=True)
class HoldOut(Question):
    """To a target, before the start: compute the hidden states of held-out samples into a file."""

    samples: tuple[int, ...]
    path: str


@dataclass(frozen=True, slots=True)
class HeldOut(Answer):
    """From a target: the file is there. `why` says what went wrong; empty: nothing."""

    path: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Evaluate(Question):
    """To a drafter: evaluate on the held-out files, as of the last applied step."""

    step: int
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Evaluated(Answer):
    """From a drafter: held-out loss and expected accepted length. `why` says what went wrong; empty: nothing."""

    step: int
    values: dict[str, float]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Save(Question):
    """To a drafter: write weights and optimizer into this new folder, as of the last applied step."""

    step: int
    folder: str


@dataclass(frozen=True, slots=True)
class Saved(Answer):
    """From a drafter: they are written. `why` says what went wrong; empty: nothing."""

    step: int
    folder: str
    why: str = ""
