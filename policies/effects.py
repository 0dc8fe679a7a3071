"""What the dispatcher answers: named effects that a driver carries out, in order.

Effects are immutable: their attributes are `Final`, so the type checker refuses assignments. They are plain classes
rather than frozen dataclasses because several are made for every batch, and a frozen dataclass costs 2.7 times as much
to make (and its constructor stays interpreted where the rest is compiled).
"""

from typing import Final


class _Effect:
    """Equality and text by the fields, in the order of the constructor."""

    __slots__ = ()

    def values(self) -> tuple[object, ...]:
        """The values of the fields, in order."""
        names: tuple[str, ...] = type(self).__match_args__  # type: ignore[attr-defined]
        return tuple([getattr(self, name) for name in names])

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, _Effect) and self.values() == other.values()

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.values()))

    def __repr__(self) -> str:
        names: tuple[str, ...] = type(self).__match_args__  # type: ignore[attr-defined]
        fields = ", ".join([f"{name}={getattr(self, name)!r}" for name in names])
        return f"{type(self).__name__}({fields})"


class Loaded(_Effect):
    """The feed admitted the last batch that the loader had ready, to `lane`; the loader may go on."""

    __slots__ = ("batch", "lane")
    __match_args__ = ("batch", "lane")

    def __init__(self, batch: int, lane: int) -> None:
        self.batch: Final = batch
        self.lane: Final = lane


class Assign(_Effect):
    """The target is to compute the hidden states of `batch`."""

    __slots__ = ("target", "batch", "lane")
    __match_args__ = ("target", "batch", "lane")

    def __init__(self, target: int, batch: int, lane: int) -> None:
        self.target: Final = target
        self.batch: Final = batch
        self.lane: Final = lane


class Admit(_Effect):
    """The hidden states that the target holds now wait in `lane`; the target asks for its next batch."""

    __slots__ = ("target", "batch", "lane")
    __match_args__ = ("target", "batch", "lane")

    def __init__(self, target: int, batch: int, lane: int) -> None:
        self.target: Final = target
        self.batch: Final = batch
        self.lane: Final = lane


class Deliver(_Effect):
    """The drafter is to fetch `batch` from target `source` and train on it as a micro-batch of `step`.

    `closes`: it completes the drafter's part of the step, which may join as soon as it has computed it.
    """

    __slots__ = ("drafter", "batch", "lane", "source", "step", "closes")
    __match_args__ = ("drafter", "batch", "lane", "source", "step", "closes")

    def __init__(self, drafter: int, batch: int, lane: int, source: int, step: int, closes: bool) -> None:
        self.drafter: Final = drafter
        self.batch: Final = batch
        self.lane: Final = lane
        self.source: Final = source
        self.step: Final = step
        self.closes: Final = closes


class Release(_Effect):
    """The hidden states of `batch` have arrived: the target may use their memory again."""

    __slots__ = ("target", "batch")
    __match_args__ = ("target", "batch")

    def __init__(self, target: int, batch: int) -> None:
        self.target: Final = target
        self.batch: Final = batch


class Flush(_Effect):
    """No more micro-batches of `step` for this drafter: it joins with what it has, be it nothing."""

    __slots__ = ("drafter", "step")
    __match_args__ = ("drafter", "step")

    def __init__(self, drafter: int, step: int) -> None:
        self.drafter: Final = drafter
        self.step: Final = step


class Join(_Effect):
    """The drafter's part of `step` is computed; it waits for the other drafters."""

    __slots__ = ("drafter", "step")
    __match_args__ = ("drafter", "step")

    def __init__(self, drafter: int, step: int) -> None:
        self.drafter: Final = drafter
        self.step: Final = step


class Step(_Effect):
    """Every live drafter of the step has joined: it may be applied, then committed with these batches."""

    __slots__ = ("step", "drafters", "batches")
    __match_args__ = ("step", "drafters", "batches")

    def __init__(self, step: int, drafters: tuple[int, ...], batches: tuple[int, ...]) -> None:
        self.step: Final = step
        self.drafters: Final = drafters
        self.batches: Final = batches


class Drop(_Effect):
    """The step cannot be applied: its drafters forget their gradients and go on with the group's next step."""

    __slots__ = ("step", "drafters")
    __match_args__ = ("step", "drafters")

    def __init__(self, step: int, drafters: tuple[int, ...]) -> None:
        self.step: Final = step
        self.drafters: Final = drafters


class PutBack(_Effect):
    """`batch`, taken but not received by a lost drafter, waits in its lane again."""

    __slots__ = ("batch", "lane", "drafter")
    __match_args__ = ("batch", "lane", "drafter")

    def __init__(self, batch: int, lane: int, drafter: int) -> None:
        self.batch: Final = batch
        self.lane: Final = lane
        self.drafter: Final = drafter


class Recompute(_Effect):
    """The hidden states of `batch` are gone: it waits in the feed again. `place` says where it was lost.

    `lane` is the hidden-state lane it waited in, or -1; `worker` the target or drafter that had it, or -1.
    """

    __slots__ = ("batch", "place", "lane", "worker")
    __match_args__ = ("batch", "place", "lane", "worker")

    def __init__(self, batch: int, place: int, lane: int, worker: int) -> None:
        self.batch: Final = batch
        self.place: Final = place
        self.lane: Final = lane
        self.worker: Final = worker


class Recall(_Effect):
    """`batch` could not be received (its source died, or it did not arrive whole): the drafter asks for another.

    It may have been the one that closed the drafter's part of a step; what was taken ahead keeps its own step.
    """

    __slots__ = ("drafter", "batch")
    __match_args__ = ("drafter", "batch")

    def __init__(self, drafter: int, batch: int) -> None:
        self.drafter: Final = drafter
        self.batch: Final = batch


class Lose(_Effect):
    """These batches were trained only into weights that nobody holds any more."""

    __slots__ = ("batches",)
    __match_args__ = ("batches",)

    def __init__(self, batches: tuple[int, ...]) -> None:
        self.batches: Final = batches


class End(_Effect):
    """Every worker ends now, for this reason (a stop reason of the summary)."""

    __slots__ = ("reason",)
    __match_args__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason: Final = reason


Effect = (
    Loaded | Assign | Admit | Deliver | Release | Flush | Join | Step | Drop
    | PutBack | Recompute | Recall | Lose | End
)
