"""The open optimizer step of a group of drafters: whose micro-batches it holds, and when it is complete.

Under `none` every drafter is a group of its own; under `step` and `pooled` all drafters are one group. A step is
complete when the part of every member is closed (it has its share, or it was flushed) and computed.
"""

from collections import deque


class Part:
    """One drafter's part of the open step."""

    __slots__ = ("ahead", "closed", "computed", "flushed", "joined", "taken")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """An empty, open part."""
        self.taken: deque[int] = deque()
        """Delivered for the open step and not computed yet, in order."""
        self.computed: list[int] = []
        self.ahead: deque[int] = deque()
        """Delivered for the steps after it (prefetch)."""
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
        self.departed: list[int] = []
        """Computed by a drafter that was lost while the step was being applied."""
        self._accumulate = accumulate
        self._prefetch = prefetch
        self._groups = groups
        self._size = 0
        """Micro-batches delivered for the open step."""

    def may_take(self, drafter: int) -> bool:
        """Whether the drafter may be given a micro-batch, of the open step or (prefetch) of a later one."""
        part = self.parts[drafter]
        return self.room(drafter) > 0 or len(part.ahead) < self._prefetch

    def room(self, drafter: int) -> int:
        """How many more micro-batches of the open step the drafter may take."""
        part = self.parts[drafter]
        if part.closed:
            return 0
        if self.pooled:
            return self._accumulate * len(self.members) - self._size
        return self._accumulate - len(part.taken) - len(part.computed)

    def took(self, drafter: int, batch: int) -> tuple[int, bool]:
        """Book a delivery; returns its step and whether it completes the drafter's part."""
        part = self.parts[drafter]
        if self.room(drafter) <= 0:
            part.ahead.append(batch)
            return self.step + self._groups, False
        part.taken.append(batch)
        self._size += 1
        closes = self.room(drafter) <= 0
        if closes:
            part.closed = True
        return self.step, closes

    def full(self) -> bool:
        """Pooled: whether the whole budget of the step is given out, which closes every part."""
        return self.pooled and self._size >= self._accumulate * len(self.members)

    def compute(self, drafter: int, batch: int) -> bool:
        """A micro-batch of the open step is computed; returns whether the drafter's part is complete."""
        part = self.parts[drafter]
        assert part.taken and part.taken[0] == batch, f"drafter {drafter} computed {batch} out of turn"
        part.taken.popleft()
        part.computed.append(batch)
        return part.closed and not part.taken

    def contents(self) -> list[int]:
        """Every micro-batch delivered for the open step."""
        return [b for part in self.parts.values() for b in (*part.computed, *part.taken)] + self.departed

    def holding(self, drafter: int) -> list[int]:
        """The batches the drafter was given and has not computed."""
        part = self.parts[drafter]
        return [*part.taken, *part.ahead]

    def places_left(self) -> int:
        """How many more micro-batches the open step takes, from whomever."""
        if self.pooled:
            return self._accumulate * len(self.members) - self._size
        return sum(max(self.room(drafter), 0) for drafter in self.members)

    def empty(self) -> bool:
        """Whether no micro-batch was delivered for the open step."""
        return self._size == 0

    def complete(self) -> bool:
        """Whether every member has joined and there is something to apply."""
        return self._size > 0 and all(part.joined for part in self.parts.values())

    def flush(self, drafter: int) -> bool:
        """Close the drafter's part as it is; returns whether it is computed already."""
        part = self.parts[drafter]
        part.closed = part.flushed = True
        return not part.taken

    def batches(self) -> tuple[int, ...]:
        """The computed micro-batches of the open step, by drafter, in the order they were computed."""
        computed = [batch for part in self.parts.values() for batch in part.computed]
        return tuple(computed + self.departed)

    def advance(self) -> None:
        """The step was applied: open the next one, which begins with what was taken ahead."""
        self.step += self._groups
        self._reopen()

    def restart(self) -> None:
        """The step cannot be applied: open it again, without what was computed for it."""
        self._reopen()

    def lose(self, drafter: int) -> list[int]:
        """Remove a lost drafter; returns what it had and no step being applied may still count."""
        part = self.parts.pop(drafter)
        self.members.remove(drafter)
        if self.stepping and self.members:
            self.departed += part.computed
            return [*part.taken, *part.ahead]
        self._size -= len(part.computed) + len(part.taken)
        return [*part.computed, *part.taken, *part.ahead]

    def forget(self, drafter: int, batch: int) -> bool:
        """A delivered batch cannot be fetched any more; returns whether that completes the drafter's part."""
        part = self.parts[drafter]
        if batch in part.ahead:
            part.ahead.remove(batch)
            return False
        part.taken.remove(batch)
        self._size -= 1
        part.closed = part.flushed
        return part.closed and not part.taken

    def _reopen(self) -> None:
        self.stepping = False
        self._size = 0
        self.departed = []
        for drafter, part in self.parts.items():
            pending = [*part.taken, *part.ahead]
            part.reset()
            for batch in pending:
                self.took(drafter, batch)
