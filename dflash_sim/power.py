"""What workers that share a GPU draw together, where that is more than the GPU may: its clock falls, and all slow down.

No pair shows it: on an H200 split into eight parts a worker adds 105 W to 120, two stay far below the limit of 700, and
all eight come up against it. What a processor draws beside its idle share goes with clock · voltage², and voltage about
with the clock, so that the clock must fall by the cube root of what is asked for over what there is:

    load(i) = max(1, Σ over busy j on i's GPU of watts(j) / (limit − idle)) ^ (1/3)

Only workers whose draw was seen to add up have any here. Those that take turns on a GPU draw no more than one, and two
that come up against the limit by themselves have it in their factors already.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from dflash_sim.exact import ONE, units
from dflash_sim.timings_file import InterferenceProfile, PairProfile, PowerProfile

_ROOT: Final = 1 / 3
_ADDS_UP: Final = 0.8
"""Share of the sum of their draws that two workers must draw at once to count as running side by side."""


@dataclass(frozen=True)
class Power:
    """Of W workers."""

    watts: Sequence[float]
    """[W]: what each adds to its GPU's draw while it is busy."""
    gpus: Sequence[Set[str]]
    """[W]: those that each is on; it draws from each of them, and the slowest holds it up."""
    spare: float
    """Watts of a GPU beside its idle draw, > 0."""
    by_role: Mapping[str, float]
    """What a busy worker of each role that was measured adds."""

    @property
    def matters(self) -> bool:
        """Whether all workers of some GPU together ask for more than there is."""
        return any(self._asked(gpu) > self.spare for gpu in set().union(*self.gpus))

    def load_of(self, roles: Sequence[str]) -> float:
        """How much longer workers of these roles take that are busy on one GPU; ≥ 1."""
        return self.slowed(sum(self.by_role.get(role, 0.0) for role in roles))

    def slowed(self, asked: float) -> float:
        """How much longer work takes on a GPU of which so many watts are asked for beside its idle draw; ≥ 1."""
        return float((asked / self.spare) ** _ROOT) if asked > self.spare else 1.0

    def _asked(self, gpu: str) -> float:
        return sum(watts for watts, on in zip(self.watts, self.gpus, strict=True) if gpu in on)


class Draw:
    """What is asked of each GPU by those that are busy now."""

    def __init__(self, power: Power) -> None:
        self._power = power
        self._asked = dict.fromkeys(set().union(*power.gpus), 0)
        """In units of `exact`."""
        self._loads = dict.fromkeys(self._asked, 1.0)

    def turn(self, worker: int, sign: int) -> None:
        """The worker begins (1) or ends (-1)."""
        for gpu in self._power.gpus[worker]:
            self._asked[gpu] += sign * units(self._power.watts[worker])
            self._loads[gpu] = self._power.slowed(self._asked[gpu] / ONE)

    def load(self, worker: int, busy: bool) -> float:
        """How much longer the worker, which is busy itself or not, takes now; ≥ 1."""
        gpus = self._power.gpus[worker]
        if busy:
            return max((self._loads[gpu] for gpu in gpus), default=1.0)
        own = self._power.watts[worker]
        return max((self._power.slowed(self._asked[gpu] / ONE + own) for gpu in gpus), default=1.0)


def power_of(measured: InterferenceProfile, gpus: Sequence[Set[str]], roles: Sequence[str]) -> Power | None:
    """The power of workers on these GPUs; None where nothing was measured, or where they take turns."""
    known, pairs = measured.power, [pair for pair in measured.pairs if pair.watts_both is not None]
    if known is None or not pairs or not all(_adds_up(pair, known) for pair in pairs):
        return None
    drawn: dict[str, list[float]] = {}
    for pair in pairs:
        for role, watts in ((pair.a, pair.watts_a), (pair.b, pair.watts_b)):
            assert watts is not None, "checked when read"
            drawn.setdefault(role, []).append(max(watts - known.idle_watts, 0.0))
    each = {role: sum(values) / len(values) for role, values in drawn.items()}
    adds = [each.get(role, 0.0) if on else 0.0 for role, on in zip(roles, gpus, strict=True)]
    return Power(adds, gpus, known.limit_watts - known.idle_watts, each)


def _adds_up(pair: PairProfile, known: PowerProfile) -> bool:
    assert pair.watts_a is not None and pair.watts_b is not None and pair.watts_both is not None
    apart = pair.watts_a + pair.watts_b - 2 * known.idle_watts
    return pair.watts_both - known.idle_watts >= _ADDS_UP * apart
