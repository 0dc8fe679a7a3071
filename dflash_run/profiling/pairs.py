"""Which workers share what: a pair of each kind is measured at once, and a topology composed of pairs."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from dflash_run.crew import Worker
from dflash_run.training.devices import Placement

HOST: Final = "host"
"""What workers share that share no GPU: cores, memory, links."""


@dataclass(frozen=True)
class Pair:
    """Two workers to be measured at once."""

    a: Worker
    b: Worker
    shared: str
    """A GPU's name, or `host`."""


def pairs_of(placement: Placement) -> list[Pair]:
    """One pair for each two roles and for each of GPU and host that they share somewhere in the topology."""
    found: dict[tuple[str, str, bool], Pair] = {}
    for (a, on_a), (b, on_b) in combinations(_workers(placement), 2):
        common = [name for name in on_a if name in on_b and name.startswith("cuda")]
        shared = common[0] if common else HOST
        found.setdefault((a[0], b[0], bool(common)), Pair(a, b, shared))
    return list(found.values())


@dataclass(frozen=True)
class Trio:
    """Three workers to be measured at once, who tell how pairs add up."""

    workers: tuple[Worker, Worker, Worker]
    shared: str
    """A GPU's name."""


_CROWD: Final = 4
"""Workers on a GPU from which on a trio is measured: fewer would be all that share it, and are to be predicted."""


def trio_of(placement: Placement) -> Trio | None:
    """Of the first GPU that has many workers, with both roles if it has both; None: there is no such GPU."""
    on: dict[str, list[Worker]] = {}
    for worker, names in _workers(placement):
        for name in names:
            if name.startswith("cuda"):
                on.setdefault(name, []).append(worker)
    for name, workers in on.items():
        if len(workers) >= _CROWD:
            targets, drafters = ([each for each in workers if each[0] == role] for role in ("target", "drafter"))
            first, second, third, *_ = [*targets[:1], *drafters[:1], *targets[1:], *drafters[1:]]
            return Trio((first, second, third), name)
    return None


def _workers(placement: Placement) -> Iterator[tuple[Worker, tuple[str, ...]]]:
    for number, names in enumerate(placement.targets):
        yield ("target", number), names
    for number, name in enumerate(placement.drafters):
        yield ("drafter", number), (name,)
