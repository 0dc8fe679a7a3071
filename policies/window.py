"""The open optimizer step of a group of drafters: whose micro-batches it holds, and when it is complete.

Under `none` every drafter is a group of its own; under `step` and `pooled` all drafters are one group. A step is
complete when the part of every member is closed (it has its share, or it was flushed) and computed. A batch keeps the
step that it was delivered for: a step that cannot be applied is dropped, and the next one opens.
"""

from collections.abc import Iterable

from policies.errors import ProtocolError


class Part:
    """One drafter's part of the open step."""

    __slots__ = ("ahead", "closed", "computed", "flushed", "joined", "taken")

    def __init__(self) -> None:
        self.ahead: dict[int, int] = {}
        """Delivered for later steps (prefetch): batch → its step."""
        self.reset()

    def reset(self) -> None:
        """An empty, open part."""
        self.taken: list[int] = []
        """Delivered for the open step and not computed yet."""
        self.computed: list[int] = []
        self.closed = False
        """It takes no more micro-batches of the open step."""
        self.flushed = False
        """It was closed by a flush, short of its share."""
        self.joined = False


class Window:
    """The open step of one group. Steps of group g are numbered g, g + groups, g + 2·groups, …"""

    def __init__(
        self, members: list[int], *, accumulate: int, pooled: bool, prefetch: int, first: int, groups: int
    ) -> None:
        self.members = members
        self.parts = {member: Part() for member in members}
        self.step = first
        self.pooled = pooled
        self.stepping = False
        """Every member has joined; waiting for the commit."""
        self.applying: tuple[int, ...] = ()
        """The micro-batches of the step being applied; a drafter that is lost meanwhile takes none away."""
        self._accumulate = accumulate
        self._prefetch = prefetch
        self._groups = groups
        self._size = 0
        """Micro-batches delivered for the open step."""
        self._joined = 0
        """Members whose part is closed and computed."""

    def may_take(self, drafter: int) -> bool:
        """Whether the drafter may be given a micro-batch, of the open step or (prefetch) of a later one.

        A pooled step belongs to whoever is free: nothing is taken ahead of it.
        """
        if self.room(drafter) > 0:
            return True
        return self._prefetch > 0 and not self.pooled and len(self.parts[drafter].ahead) < self._prefetch

    def room(self, drafter: int) -> int:
        """How many more micro-batches of the open step the drafter may take."""
        part = self.parts[drafter]
        if part.closed:
            return 0
        if self.pooled:
            return self._accumulate * len(self.members) - self._size
        return self._accumulate - len(part.taken) - len(part.computed)

    def took(self, drafter: int, batch: int) -> tuple[int, bool]:
        """Book a delivery; returns its step and whether it completes the drafter's part of it."""
        part, room = self.parts[drafter], self.room(drafter)
        if room > 0:
            part.taken.append(batch)
            self._size += 1
            part.closed = room == 1
            return self.step, part.closed
        step = part.ahead[batch] = self._step_ahead(part)
        return step, self._share_ahead(part, step) == self._accumulate

    def next_take(self, drafter: int) -> tuple[list[int], int]:
        """What the step of the drafter's next take holds already, and how many places it has left in all."""
        parts = self.parts.values()
        if self.room(drafter) > 0:
            held = [batch for part in parts for batch in (*part.computed, *part.taken)]
            left = self.room(drafter) if self.pooled else sum(self.room(member) for member in self.members)
            return held, left
        step = self._step_ahead(self.parts[drafter])
        held = [batch for part in parts for batch, its in part.ahead.items() if its == step]
        return held, self._accumulate * len(self.members) - len(held)

    def full(self) -> bool:
        """Pooled: whether the whole budget of the step is given out, which closes every part."""
        return self.pooled and self._size >= self._accumulate * len(self.members)

    def compute(self, drafter: int, batch: int) -> bool:
        """A micro-batch of the open step is computed; returns whether the drafter's part is complete."""
        part = self.parts.get(drafter)
        if part is None or batch not in part.taken:
            waits = "nothing" if part is None else part.taken
            raise ProtocolError(f"drafter {drafter} computed batch {batch}; step {self.step} waits for {waits} of it")
        part.taken.remove(batch)
        part.computed.append(batch)
        return part.closed and not part.taken

    def holding(self, drafter: int) -> list[int]:
        """The batches the drafter was given and has not computed."""
        part = self.parts[drafter]
        return [*part.taken, *part.ahead]

    def empty(self) -> bool:
        """Whether no micro-batch was delivered for the open step."""
        return self._size == 0

    def void(self) -> bool:
        """Whether the open step lost all it had, while a member has closed it or waits for a later one."""
        return self._size == 0 and any(part.closed or part.ahead for part in self.parts.values())

    def join(self, drafter: int) -> None:
        """The drafter's part is closed and computed."""
        self.parts[drafter].joined = True
        self._joined += 1

    def complete(self) -> bool:
        """Whether every member has joined and there is something to apply."""
        return self._joined == len(self.parts) and self._size > 0

    def resting(self) -> bool:
        """Whether no step is being applied and no member has anything to compute for the open one."""
        return not self.stepping and not any(part.taken for part in self.parts.values())

    def unclosed(self) -> list[int]:
        """The members that may still take micro-batches of the open step."""
        return [drafter for drafter in self.members if not self.parts[drafter].closed]

    def flush(self, drafter: int) -> bool:
        """Close the drafter's part as it is; returns whether it is computed already."""
        part = self.parts[drafter]
        part.closed = part.flushed = True
        return not part.taken

    def begin(self) -> tuple[int, ...]:
        """The step is being applied; its micro-batches, by drafter, in the order they were computed."""
        self.stepping = True
        self.applying = tuple([batch for part in self.parts.values() for batch in part.computed])
        return self.applying

    def advance(self) -> None:
        """The step was applied or dropped: open the next one, which begins with what was taken ahead for it."""
        self.step += self._groups
        self.stepping = False
        self.applying = ()
        self._size = self._joined = 0
        for drafter, part in self.parts.items():
            part.reset()
            if part.ahead:
                self._open_ahead(drafter, part)

    def lose(self, drafter: int) -> list[int]:
        """Remove a lost drafter; returns what it had and no step being applied may still count."""
        part = self.parts.pop(drafter)
        self.members.remove(drafter)
        self._joined -= part.joined
        if self.stepping and self.members:  # a survivor may apply the step
            return list(part.ahead)
        gone = list(self.applying) if self.stepping else [*part.computed, *part.taken]
        self.stepping = False
        self._size -= len(gone)
        return [*gone, *part.ahead]

    def forget(self, drafter: int, batch: int) -> bool:
        """A delivered batch cannot be fetched any more; returns whether that completes the drafter's part."""
        part = self.parts[drafter]
        if batch in part.ahead:
            del part.ahead[batch]
            return False
        part.taken.remove(batch)
        self._size -= 1
        part.closed = part.flushed
        part.closed = self.room(drafter) <= 0  # pooled: also where a loss left less budget than is given out
        return part.closed and not part.taken

    def _step_ahead(self, part: Part) -> int:
        """The first later step in which the drafter's share has a place."""
        step = self.step + self._groups
        while self._share_ahead(part, step) >= self._accumulate:
            step += self._groups
        return step

    def _share_ahead(self, part: Part, step: int) -> int:
        return sum(its == step for its in part.ahead.values())

    def _open_ahead(self, drafter: int, part: Part) -> None:
        for batch in [batch for batch, step in part.ahead.items() if step == self.step]:
            del part.ahead[batch]
            self.took(drafter, batch)


def windows(sync: str, drafters: Iterable[int], accumulate: int, prefetch: int) -> list[Window]:
    """One window for all drafters, or one each under `none`."""
    everyone = list(drafters)
    groups = [everyone] if sync != "none" else [[drafter] for drafter in everyone]
    apart = [
        Window(
            members,
            accumulate=accumulate,
            pooled=sync == "pooled",
            prefetch=prefetch,
            first=first,
            groups=len(groups),
        )
        for first, members in enumerate(groups)
    ]
    return apart if sync == "none" else apart * len(everyone)
