"""What the launcher needs of a kind of run: the messages that effects become, and who hears the reports."""

from collections.abc import Iterable
from typing import Protocol

from dflash_run.crew import Worker
from policies.effects import Deliver, Step

Posts = Iterable[tuple[Worker, object]]
"""Messages and whom they go to."""


class Briefing(Protocol):
    """What the workers of one kind of run are told, and what becomes of their reports."""

    def assign(self, target: int, batch: int) -> object:
        """The message to a target that is to compute a batch."""
        ...

    def deliver(self, effect: Deliver) -> object:
        """The message to a drafter that is to fetch and train."""
        ...

    def apply(self, effect: Step) -> object:
        """The message to each drafter that is to apply a step."""
        ...

    def forget(self, batch: int) -> object | None:
        """The batch's hidden states were received: the message to its target, if it needs one."""
        ...

    def gone(self, batch: int) -> None:
        """The batch's hidden states are of no use to anybody any more."""
        ...

    def loader(self, batch: int) -> float:
        """Model seconds that the loader takes for a batch."""
        ...

    def heard(self, worker: Worker, message: object) -> None:
        """Everything that workers say."""
        ...

    def openers(self, targets: tuple[int, ...], drafters: tuple[int, ...]) -> Posts:
        """Messages before t = 0, each answered by one `Answer`; these workers live.

        Asked again when all have answered or are gone, until there are none.
        """
        ...

    def committed(self, step: int, batches: tuple[int, ...], drafters: tuple[int, ...]) -> Posts:
        """Messages after a commit; `drafters` live."""
        ...

    def closers(self, drafters: tuple[int, ...], settled: bool) -> Posts:
        """Messages after the end, answered and asked for again likewise. `settled`: no step was being applied."""
        ...
