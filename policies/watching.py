"""A policy under watch: every answer is compared with the rules of `policies.policy`, where it is given.

`watched(policy)` can stand wherever the policy can. It changes no answer; it raises `BrokenRule` at the first one that
breaks a rule, before the dispatcher acts on it.
"""

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import TypeVar, cast

from policies.errors import PolicyError
from policies.hop import Hop
from policies.policy import WAIT, Layout, Policy, Shape, View

T = TypeVar("T")


class BrokenRule(AssertionError):
    """A policy broke a rule: what it did, and the rule."""


class Watched:
    """A policy whose answers are checked; see `watched`."""

    def __init__(self, policy: Policy, patience: int) -> None:
        self.policy = policy
        self._patience = patience
        self._name = type(policy).__name__
        self._promised: dict[int, frozenset[int]] = {}
        """For each producer, the lanes that all answers of `reach` since the last loss have named."""
        self._passed: dict[int, int] = {}
        """How often a batch, the oldest of its lane, was passed over."""
        self._skipped: dict[int, int] = {}
        """How often a consumer, since it was served, was told to wait beside a batch and another took next."""
        self._declined: set[int] = set()
        """Consumers that were told to wait beside a batch since the last take."""
        self.promises_hold = True

    def forget(self) -> None:
        """A worker was lost: batches come back, so that earlier answers of `reach` and earlier waits count no more."""
        self._promised.clear()
        self._passed.clear()
        self._skipped.clear()
        self._declined.clear()

    def layout(self, shape: Shape) -> Layout:
        layout = self._call("layout", f"{shape}", lambda: self.policy.layout(shape))
        check_capacity(self._name, layout, shape)
        return layout

    def put(self, producer: int, batch: int, view: View) -> int:
        act = f"put(producer {producer}, batch {batch})"
        lane = self._shown("put", act, view, lambda: self.policy.put(producer, batch, view))
        promised = self._promised.get(producer)
        if self.promises_hold and promised is not None and lane not in promised:
            raise BrokenRule(
                f"{self._name}.put sent batch {batch} of producer {producer} to lane {lane}, but reach({producer}) had "
                f"named only the lanes {sorted(promised)}\n"
                "rule: reach names every lane that an offer still to come from the producer may go to (a drafter that "
                "no lane reaches is flushed early, or the run hangs)"
            )
        return lane

    def take(self, consumer: int, view: View) -> int:
        before = state(self.policy)
        lane = self._shown("take", f"take(consumer {consumer})", view, lambda: self.policy.take(consumer, view))
        hop = cast(Hop, view)
        if lane == WAIT:
            self._same_state(before, f"{self._name}.take answered WAIT for consumer {consumer}", "answering WAIT")
            if any(each.waiting and each.read_by(consumer) for each in hop.lanes):
                self._declined.add(consumer)
        elif type(lane) is int and 0 <= lane < len(hop.lanes) and hop.lanes[lane].waiting:
            self._count_the_passed_over(consumer, lane, hop)
        return lane

    def reach(self, producer: int, view: View) -> Sequence[int]:
        before = state(self.policy)
        act = f"reach(producer {producer})"
        lanes = tuple(self._shown("reach", act, view, lambda: self.policy.reach(producer, view)))
        self._same_state(before, f"{self._name}.reach answered {lanes} for producer {producer}", "answering reach")
        wrong = [lane for lane in lanes if type(lane) is not int or not 0 <= lane < len(view.lanes)]
        if wrong:
            rule = f"give lanes from 0 to {len(view.lanes) - 1}"
            raise BrokenRule(f"{self._name}.reach answered {lanes} for producer {producer}\nrule: {rule}")
        self._promised[producer] = self._promised.get(producer, frozenset(lanes)) & frozenset(lanes)
        return lanes

    # Inside ---------------------------------------------------------------------------------------------------

    def _call(self, method: str, act: str, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except (BrokenRule, PolicyError):
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            rule = "a policy answers whatever it is shown that the dispatcher can show"
            raise BrokenRule(f"{self._name}.{method} raised {text}\nasked: {act}\nrule: {rule}") from error

    def _shown(self, method: str, act: str, view: View, ask: Callable[[], T]) -> T:
        before = shown(view)
        answer = self._call(method, act, ask)
        after = shown(view)
        if before != after:
            names = [name for name in before | after if before.get(name) != after.get(name)]
            changes = [f"{name} from {before.get(name)} to {after.get(name)}" for name in names]
            raise BrokenRule(
                f"{self._name}.{act} changed what it was shown: {'; '.join(changes)}\n"
                "rule: a policy only reads its view; batches are moved by the dispatcher"
            )
        return answer

    def _same_state(self, before: object, what: str, when: str) -> None:
        if state(self.policy) != before:
            raise BrokenRule(
                f"{what} and changed its own state\nbefore: {before}\nafter:  {state(self.policy)}\n"
                f"rule: {when} must not change a policy's state, since it may be asked any number of times"
            )

    def _count_the_passed_over(self, consumer: int, chosen: int, hop: Hop) -> None:
        """Bounded patience: with the oldest batches of other lanes, and with consumers that were told to wait."""
        for index, lane in enumerate(hop.lanes):
            if not lane.waiting or (index != chosen and not lane.read_by(consumer)):
                continue
            oldest = lane.waiting[0]
            self._passed[oldest] = 0 if index == chosen else self._passed.get(oldest, 0) + 1
            if self._passed[oldest] > self._patience:
                raise BrokenRule(
                    f"{self._name}.take starves lane {lane.name!r}: batch {oldest}, the oldest there, was passed over "
                    f"{self._passed[oldest]} times by consumers that read the lane\n"
                    f"rule: a waiting batch is passed over at most {self._patience} times (the argument `patience`)"
                )
        self._skipped[consumer] = 0
        declined, self._declined = sorted(self._declined - {consumer}), set()
        for other in declined:
            self._skipped[other] = self._skipped.get(other, 0) + hop.lanes[chosen].read_by(other)
            if self._skipped[other] > self._patience:
                raise BrokenRule(
                    f"{self._name}.take starves consumer {other}: {self._skipped[other]} times in a row it was told "
                    f"to WAIT beside a waiting batch, and another consumer took from a lane that it reads\n"
                    f"rule: a consumer is passed over at most {self._patience} times (the argument `patience`)"
                )


def watched(policy: Policy, patience: int) -> Watched:
    """The policy under watch, by its own name; a batch or a consumer may be passed over `patience` times."""
    kind = type(type(policy).__name__, (Watched,), {})
    found: Watched = kind(policy, patience)
    return found


def check_capacity(name: str, layout: Layout, shape: Shape) -> None:
    """Refuse a layout that lets more batches wait than the user allowed."""
    sizes = [lane.capacity for lane in layout.lanes]
    over = layout.bound if layout.bound is not None else max(sizes, default=0)
    if shape.capacity is not None:
        if over > shape.capacity:
            what = f"a bound of {over}" if layout.bound is not None else f"lanes of capacity {sizes}"
            raise BrokenRule(
                f"{name}.layout gave {what} for capacity={shape.capacity}\n"
                "rule: Shape.capacity is the most that may wait in a lane (under a bound: in all lanes), whatever depth"
            )
        return
    total = layout.bound if layout.bound is not None else sum(sizes)
    most = shape.depth * max(2, shape.consumers, len(sizes))
    if total > most:
        raise BrokenRule(
            f"{name}.layout lets {total} batches wait in {len(sizes)} lane(s) for {shape.consumers} consumer(s) at "
            f"depth={shape.depth}\nrule: at most depth × max(2, consumers, lanes) = {most}"
        )


def check_layouts(factory: Callable[[], Policy], shape: Shape) -> None:
    """Check the capacity of a fresh policy's layout at this depth, without an exact capacity."""
    policy = factory()
    at_depth = replace(shape, capacity=None, depth=max(shape.capacity or 0, shape.depth))
    check_capacity(type(policy).__name__, policy.layout(at_depth), at_depth)


def shown(view: View) -> dict[str, object]:
    """All of a hop that a policy can see or get hold of, by name."""
    hop = cast(Hop, view)
    found: dict[str, object] = {}
    for lane in hop.lanes:
        found[f"lane {lane.name!r}"] = list(lane.waiting)
        found[f"capacity, reader of {lane.name!r}"] = (lane.capacity, lane.reader, lane.orphan)
    found["consumers"] = list(hop.consumers)
    found["to_come"] = list(hop.to_come)
    found["held offers"] = list(hop.held)
    found["waiting consumers"] = list(hop.waiting)
    found["bound"] = hop.bound
    return found


def state(value: object, inside: tuple[int, ...] = ()) -> object:
    """What an object holds, as comparable plain values; what is not the policy's own (a view, code) by identity."""
    deeper = (*inside, id(value))
    if id(value) in inside or isinstance(value, type | ModuleType | FunctionType | Hop):
        return f"<{type(value).__name__} {id(value)}>"
    if value is None or isinstance(value, str | bytes | int | float):
        return value
    if isinstance(value, random.Random):
        return hash(value.getstate())
    if isinstance(value, Mapping):
        return {str(state(key, deeper)): state(each, deeper) for key, each in value.items()}
    if isinstance(value, Set):
        return sorted(str(state(each, deeper)) for each in value)
    if isinstance(value, list | tuple | deque):
        return [state(each, deeper) for each in value]
    slots = [name for kind in type(value).__mro__ for name in _slots(kind)]
    names = {*getattr(value, "__dict__", {}), *(name for name in slots if hasattr(value, name))}
    if not names and type(value).__module__ != "__main__" and not slots:
        return repr(value) if type(value).__repr__ is not object.__repr__ else type(value).__name__
    return {name: state(getattr(value, name), deeper) for name in sorted(names)}


def _slots(kind: type) -> tuple[str, ...]:
    named = kind.__dict__.get("__slots__", ())
    return (named,) if isinstance(named, str) else tuple(named)
