"""What the survivors are asked after a loss, before the dispatcher hears of it.

A lost target: every drafter says that it receives nothing of it any more (a fence), because word of the death may
overtake a `Received`. A lost drafter of a group: the others leave their collective and say which step they have applied
last; they form a new group, in which those that fell behind copy from one that applied; then the step is
committed, or abandoned where nobody applied it. A further loss on the way starts again with those that are left.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from dflash_run.messages import Fence, Group, Quiesce


@dataclass(frozen=True)
class Lost:
    """Every survivor has been asked: this target is gone."""

    target: int


@dataclass(frozen=True)
class Regrouped:
    """A new group stands.

    `gone` were lost; `applied` is the last step that some member has applied, and with the copying all have.
    """

    gone: tuple[int, ...]
    applied: int


Outcome = Lost | Regrouped
Post = Callable[[int, object], None]


class Recovery:
    """Fences and regroupings under way. `post(drafter, message)` sends at once; answers are handed in."""

    def __init__(self, post: Post, stores: Path) -> None:
        self.epoch = 0
        self._post = post
        self._stores = stores
        self._fences: dict[int, set[int]] = {}
        """For each lost target, the drafters that have not answered."""
        self._gone: list[int] = []
        self._quiet: dict[int, int] = {}
        """The last step that each drafter has applied."""
        self._asked: set[int] = set()
        """Drafters whose answer is awaited: `Quiet`, then `Grouped`."""
        self._members: tuple[int, ...] = ()
        self._forming = False

    @property
    def regrouping(self) -> bool:
        """Whether the group is being rebuilt: nothing but this module's messages may reach a drafter."""
        return bool(self._members)

    def awaits(self, drafter: int) -> bool:
        """Whether this drafter owes an answer."""
        return drafter in self._asked or any(drafter in owing for owing in self._fences.values())

    def unsaid(self) -> tuple[list[int], list[int]]:
        """Targets and drafters that are lost and whose outcome is not there yet."""
        return list(self._fences), list(self._gone)

    def first_group(self, drafters: Iterable[int]) -> Group:
        """The group of the start."""
        return Group(self.epoch, tuple(drafters), self._store())

    def target_lost(self, target: int, drafters: Iterable[int]) -> list[Outcome]:
        """A target is gone; `drafters` live."""
        owing = set(drafters)
        self._fences[target] = owing
        for drafter in sorted(owing):
            self._post(drafter, Fence(target))
        return self._fenced()

    def regroup(self, gone: Iterable[int], drafters: Iterable[int]) -> list[Outcome]:
        """Drafters of the group are gone (or a collective failed: none is); `drafters` live."""
        self._gone += gone
        self._members = tuple(drafters)
        for owing in self._fences.values():
            owing.difference_update(self._gone)
        self.epoch += 1
        self._forming = False
        self._quiet = {}
        self._asked = set(self._members)
        for drafter in self._members:
            self._post(drafter, Quiesce(self.epoch))
        return self._fenced()

    def disband(self) -> list[int]:
        """Nobody is left to form a group; returns the lost drafters whose outcome was not there yet."""
        gone, self._gone, self._members, self._asked, self._forming = self._gone, [], (), set(), False
        return gone

    def drafter_gone(self, drafter: int) -> list[Outcome]:
        """A drafter that belongs to no group is gone: it owes no answers."""
        for owing in self._fences.values():
            owing.discard(drafter)
        return self._fenced()

    def fenced(self, drafter: int, target: int) -> list[Outcome]:
        """A drafter answered a fence."""
        self._fences.get(target, set()).discard(drafter)
        return self._fenced()

    def quiet(self, drafter: int, epoch: int, applied: int) -> None:
        """A drafter has left the group."""
        if epoch != self.epoch or self._forming or drafter not in self._asked:
            return
        self._quiet[drafter] = applied
        self._asked.discard(drafter)
        if not self._asked:
            self._form()

    def grouped(self, drafter: int, epoch: int) -> list[Outcome]:
        """A drafter belongs to the new group."""
        if epoch != self.epoch or not self._forming:
            return []
        self._asked.discard(drafter)
        if self._asked:
            return []
        outcome = Regrouped(tuple(self._gone), max(self._quiet.values()))
        self._gone, self._members, self._forming = [], (), False
        return [outcome]

    def _form(self) -> None:
        applied = max(self._quiet.values())
        ahead = [drafter for drafter in self._members if self._quiet[drafter] == applied]
        behind = tuple(drafter for drafter in self._members if self._quiet[drafter] < applied)
        self._forming = True
        self._asked = set(self._members)
        for drafter in self._members:
            self._post(drafter, Group(self.epoch, self._members, self._store(), ahead[0], behind, applied))

    def _fenced(self) -> list[Outcome]:
        done = [target for target, owing in self._fences.items() if not owing]
        for target in done:
            del self._fences[target]
        return [Lost(target) for target in done]

    def _store(self) -> str:
        return str(self._stores / f"group-{self.epoch}")
