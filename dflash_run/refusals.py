"""Batches that arrived spoilt, and who is given up for it.

A refusal has three suspects: the target that computed the batch, the drafter that fetched it, and the batch. A batch
may be refused `_MOST` times; then whoever took part in every refusal of it is given up, if another of its role lives.
Where that leaves both, the target goes, unless the drafter has also refused copies of other targets. A batch that
different drafters refused from different targets is itself at fault, and so is one for which nobody can be spared:
giving up more workers would not help, so the run ends with all that it has learnt. So one spoilt batch costs at most
one target and one drafter, and is never lost: a resumed run tries it again.
"""

from dataclasses import dataclass, field
from typing import Final

from dflash_run.crew import Worker

_MOST: Final = 3
"""How often a batch may arrive spoilt before somebody is given up."""


@dataclass(frozen=True)
class Again:
    """The batch is computed again, and that is all."""


@dataclass(frozen=True)
class GiveUp:
    """This worker is at fault, as far as can be told."""

    worker: Worker


@dataclass(frozen=True)
class BreakOff:
    """The batch is at fault, or nobody can be spared."""


Verdict = Again | GiveUp | BreakOff


@dataclass
class Refusals:
    """All of one run."""

    _said: list[tuple[int, int, int]] = field(default_factory=list)
    """(batch, target, drafter) of each."""

    def count(self, batch: int) -> int:
        """How often the batch was refused."""
        return sum(batch == each for each, _, _ in self._said)

    def note(self, batch: int, target: int, drafter: int, spare: set[str]) -> Verdict:
        """One more; of the roles in `spare` more than one worker lives."""
        self._said.append((batch, target, drafter))
        if self.count(batch) < _MOST:
            return Again()
        suspects = [worker for worker in self._suspects(batch, target, drafter) if worker[0] in spare]
        return GiveUp(suspects[0]) if suspects else BreakOff()

    def _suspects(self, batch: int, target: int, drafter: int) -> list[Worker]:
        """Who took part in all refusals of the batch, the likelier first."""
        targets = {source for each, source, _ in self._said if each == batch}
        drafters = {taker for each, _, taker in self._said if each == batch}
        found: list[Worker] = [("target", target)] if len(targets) == 1 else []
        if len(drafters) == 1:
            found.append(("drafter", drafter))
        widely = len({source for _, source, taker in self._said if taker == drafter}) > 1
        return found[::-1] if widely else found
