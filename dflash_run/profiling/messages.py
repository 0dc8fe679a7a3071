"""What the profile's script asks of workers beyond what a training asks (see `dflash_run.training.messages`)."""

from dataclasses import dataclass

from dflash_run.messages import Answer, Question


@dataclass(frozen=True, slots=True)
class Dissect(Question):
    """Time the parts of computing these samples, `repeats` times; answered `Dissected`."""

    samples: tuple[int, ...]
    repeats: int


@dataclass(frozen=True, slots=True)
class Dissected(Answer):
    """Seconds of each part by its name, a number for each time."""

    parts: dict[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class AskPeak(Question):
    """How much memory did the worker take at most? Answered `Peak`."""


@dataclass(frozen=True, slots=True)
class Peak(Answer):
    """Bytes: allocated by torch on a GPU, resident on a CPU."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class TimeCollective(Question):
    """To all drafters of a group at once: all-reduce the gradients, `repeats` times; answered `Dissected`."""

    repeats: int
