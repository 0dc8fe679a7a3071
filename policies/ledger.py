"""Where every batch is: exactly one place each, and only the moves of the table.

The table is the life of a batch: feed → target → held → staged → taken → received → trained, with the ways back
after a loss. Only the dispatcher moves batches.
"""

from typing import Final

from policies.errors import ProtocolError

FEED: Final = 0
"""Not given to a target yet (or to be computed again)."""
TARGET: Final = 1
"""A target computes it."""
HELD: Final = 2
"""A target holds its hidden states, and has offered them."""
STAGED: Final = 3
"""It waits in a lane."""
TAKEN: Final = 4
"""Delivered to a drafter; the hidden states still lie at the target."""
RECEIVED: Final = 5
"""The hidden states are on the drafter's side."""
TRAINED: Final = 6
"""The optimizer step that used it was applied."""
LOST: Final = 7
"""Trained only into weights that nobody holds any more."""

PLACES: Final = ("feed", "target", "held", "staged", "taken", "received", "trained", "lost")

MOVES: Final = frozenset({
    (FEED, TARGET), (TARGET, HELD), (HELD, STAGED), (STAGED, TAKEN), (TAKEN, RECEIVED), (RECEIVED, TRAINED),
    (TARGET, FEED), (HELD, FEED), (STAGED, FEED), (TAKEN, FEED), (RECEIVED, FEED),
    (TAKEN, STAGED), (TRAINED, LOST),
})


class Ledger:
    """The place of each of `planned` batches."""

    def __init__(self, planned: int) -> None:
        self._place = bytearray(planned)

    def place(self, batch: int) -> int:
        """Where the batch is now."""
        return self._place[batch]

    def move(self, batch: int, source: int, to: int) -> None:
        """Move a batch that is known to be in `source`."""
        if self._place[batch] != source:
            known = PLACES[self._place[batch]]
            raise ProtocolError(f"batch {batch} cannot go from {PLACES[source]} to {PLACES[to]}: it is at {known}")
        self._place[batch] = to

    def count(self, place: int) -> int:
        """How many batches are there."""
        return self._place.count(place)

    def counts(self) -> dict[str, int]:
        """How many batches are at each place; the counts add up to the planned number."""
        return {name: self._place.count(code) for code, name in enumerate(PLACES)}

    def at(self, place: int) -> list[int]:
        """The batches at a place, in order of their numbers."""
        found = []
        batch = self._place.find(place)
        while batch >= 0:
            found.append(batch)
            batch = self._place.find(place, batch + 1)
        return found
