"""Every interleaving of a protocol over one bounded queue, and its smallest failing case as a readable schedule.

A state holds where each worker stands, the queue and the counts. Workers of a role run the same program, so states that
differ only in which of them stands where are one. Where a worker stands is the operation it waits to do, its place in
its program and its variables; programs that touch nothing else may be run again up to there whenever needed.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from tests.specimens.protocols import (
    BATCH,
    CountDown,
    Get,
    IsEmpty,
    NextWork,
    Operation,
    Protocol,
    Put,
    PutNoWait,
    StillAtWork,
    Worker,
)

LOST, BLOCKED, HANG, LIVELOCK = "batch lost", "target blocked for ever", "hang", "live-lock"


class Size(NamedTuple):
    """How large a case is."""

    targets: int
    drafters: int
    batches: int
    capacity: int

    def __str__(self) -> str:
        counted = zip(("target", "drafter"), self[:2], strict=True)
        workers = ", ".join(f"{count} {word}{'s' if count > 1 else ''}" for word, count in counted)
        return f"{workers}, {self.batches} batch{'es' if self.batches != 1 else ''}, capacity {self.capacity}"


def sizes(targets: int, drafters: int, batches: int, capacity: int) -> list[Size]:
    """All up to these, the smallest sum first; the fewest targets, then drafters, then batches first among equals."""
    found = product(range(1, targets + 1), range(1, drafters + 1), range(batches + 1), range(1, capacity + 1))
    return sorted((Size(*each) for each in found), key=lambda size: (sum(size), size))


class State(NamedTuple):
    """Everything that decides how a case goes on."""

    targets: tuple[int, ...]
    drafters: tuple[int, ...]
    queue: tuple[str | None, ...]
    work: int
    """Batches left on the work list."""
    at_work: int
    """Targets that have not counted themselves out."""
    trained: int

    def key(self) -> object:
        return (tuple(sorted(self.targets)), tuple(sorted(self.drafters)), *self[2:])


class Role:
    """The places of one program, numbered as they are found; 0 is its start."""

    def __init__(self, program: Callable[[], Worker]) -> None:
        self._program = program
        self._numbers: dict[object, int] = {}
        self._after: dict[tuple[int, object], int] = {}
        self._ways: list[tuple[object, ...]] = []
        self.waits_for: list[Operation | None] = []
        """The operation that a worker at this place waits to do; None when it has left."""
        self._place(())

    def after(self, place: int, result: object) -> int:
        """Where a worker stands once its operation gave this result."""
        if (place, result) not in self._after:
            self._after[place, result] = self._place((*self._ways[place], result))
        return self._after[place, result]

    def _place(self, way: tuple[object, ...]) -> int:
        worker = self._program()
        operation: Operation | None = next(worker)
        try:
            for result in way:
                operation = worker.send(result)
        except StopIteration:
            operation = None
        frame = worker.gi_frame
        stands = (operation, frame and (frame.f_lasti, tuple(sorted(frame.f_locals.items()))))
        if stands not in self._numbers:
            self._numbers[stands] = len(self._ways)
            self._ways.append(way)
            self.waits_for.append(operation)
        return self._numbers[stands]


class Move(NamedTuple):
    """One operation of one worker."""

    role: str
    worker: int
    operation: Operation
    result: object
    leaves: bool


@dataclass(frozen=True)
class Failure:
    """A way of a case to end badly."""

    kinds: tuple[str, ...]
    size: Size
    schedule: str


class Case:
    """One protocol at one size."""

    def __init__(self, protocol: Protocol, size: Size) -> None:
        self.protocol, self.size = protocol, size
        self.roles = {
            "target": Role(lambda: protocol.target(size.targets, size.drafters)),
            "drafter": Role(protocol.drafter),
        }
        start = State((0,) * size.targets, (0,) * size.drafters, (), size.batches, size.targets, 0)
        self._came: list[tuple[int, Move | None]] = [(-1, None)]
        """From which state, by which move, each state was reached first."""
        self._states = [start]
        self._edges: list[list[int]] = []
        self._explore()

    @property
    def states(self) -> int:
        return len(self._states)

    def failures(self) -> dict[str, Failure]:
        """For each kind of failure the shortest schedule that shows it."""
        found: dict[str, Failure] = {}
        for number, edges in enumerate(self._edges):
            kinds = () if edges else self._wrong(self._states[number])
            if set(kinds) - set(found):
                failure = Failure(kinds, self.size, self._schedule(kinds, self._way_to(number)))
                found = {kind: failure for kind in kinds} | found
        forever = self._never_ending()
        if forever:
            way = [*self._way_to(forever[0]), *self._round(forever[0])]
            found[LIVELOCK] = Failure((LIVELOCK,), self.size, self._schedule((LIVELOCK,), way))
        return found

    def _explore(self) -> None:
        """Breadth first: the first way to a state is a shortest one."""
        numbers = {self._states[0].key(): 0}
        for number, state in enumerate(self._states):  # which grows meanwhile
            self._edges.append([])
            for move, after in self._moves(state):
                reached = numbers.setdefault(after.key(), len(self._states))
                if reached == len(self._states):
                    self._states.append(after)
                    self._came.append((number, move))
                self._edges[number].append(reached)

    def _moves(self, state: State) -> Iterator[tuple[Move, State]]:
        for name, places in (("target", state.targets), ("drafter", state.drafters)):
            role = self.roles[name]
            for worker, place in enumerate(places):
                operation = role.waits_for[place]
                done = operation and self._do(operation, state, takes=name == "drafter")
                if operation and done:
                    result, after = done
                    place = role.after(place, result)
                    places_after = (*places[:worker], place, *places[worker + 1 :])
                    after = after._replace(**{f"{name}s": places_after})
                    yield Move(name, worker, operation, result, role.waits_for[place] is None), after

    def _do(self, operation: Operation, state: State, *, takes: bool) -> tuple[object, State] | None:
        """The result and the state after, without the worker's own place; None while the operation must wait."""
        queue, room = state.queue, len(state.queue) < self.size.capacity
        match operation:
            case Put(item):
                return (None, state._replace(queue=(*queue, item))) if room else None
            case PutNoWait(item):
                return room, state._replace(queue=(*queue, item)) if room else state
            case Get():
                if not queue:
                    return None
                return queue[0], state._replace(queue=queue[1:], trained=state.trained + (queue[0] == BATCH))
            case IsEmpty():
                return not queue, state
            case NextWork():
                return (BATCH, state._replace(work=state.work - 1)) if state.work else (None, state)
            case CountDown():
                return state.at_work - 1, state._replace(at_work=state.at_work - 1)
            case StillAtWork():
                return state.at_work, state

    def _wrong(self, state: State) -> tuple[str, ...]:
        """What is wrong with a state in which nobody can act."""
        stuck = {name: self._stuck(name, places) for name, places in (("target", state[0]), ("drafter", state[1]))}
        lost = state.trained < self.size.batches and not stuck["drafter"]
        faults = ((lost, LOST), (stuck["target"], BLOCKED), (stuck["drafter"], HANG))
        return tuple(kind for wrong, kind in faults if wrong)

    def _stuck(self, name: str, places: Iterable[int]) -> list[int]:
        return [worker for worker, place in enumerate(places) if self.roles[name].waits_for[place] is not None]

    def _never_ending(self) -> list[int]:
        """The states from which workers go on for ever, whatever they do."""
        before: list[list[int]] = [[] for _ in self._states]
        for number, edges in enumerate(self._edges):
            for after in edges:
                before[after].append(number)
        ends = deque(number for number, edges in enumerate(self._edges) if not edges)
        ending = set(ends)
        while ends:
            for number in before[ends.popleft()]:
                if number not in ending:
                    ending.add(number)
                    ends.append(number)
        return [number for number in range(self.states) if number not in ending]

    # As a readable schedule -----------------------------------------------------------------------------------

    def _way_to(self, number: int) -> list[Move]:
        way: list[Move] = []
        while (step := self._came[number])[1] is not None:
            way.append(step[1])
            number = step[0]
        return way[::-1]

    def _round(self, number: int) -> list[Move]:
        """From a state without an end: the moves of whoever comes first, until a state comes again."""
        state, seen, way = self._states[number], set(), []
        while state.key() not in seen:
            seen.add(state.key())
            move, state = next(self._moves(state))
            way.append(move)
        return way

    def _schedule(self, kinds: tuple[str, ...], way: list[Move]) -> str:
        """One line for each move, with the queue after it; batches are numbered as they are begun."""
        lines = [f"{self.protocol.name}: {self.size}: {', '.join(kinds)}"]
        hand: dict[tuple[str, int], str] = {}
        queue: list[str] = []
        begun = 0
        for role, worker, operation, result, leaves in way:
            item = "None"
            match operation:
                case NextWork() if result:
                    item = hand[role, worker] = f"batch {begun}"
                    begun += 1
                    text = f"computes {item}"
                case NextWork():
                    text = "finds no work left"
                case Put(what) | PutNoWait(what):
                    item = hand.pop((role, worker)) if what == BATCH else item
                    queue += [] if result is False else [item]
                    text = f"puts {item}" if result is not False else f"finds the queue full, {item} is gone"
                case Get():
                    text = f"takes {queue.pop(0)}"
                case IsEmpty():
                    text = f"finds the queue {'' if result else 'not '}empty"
                case CountDown():
                    text = f"counts down to {result}"
                case StillAtWork():
                    text = f"sees {result} at work"
            lines.append(f"  {f'{role} {worker} {text}' + leaves * ' and leaves':<52} queue [{', '.join(queue)}]")
        return "\n".join([*lines, f"  {self._epilogue(kinds, way)}"])

    def _epilogue(self, kinds: tuple[str, ...], way: list[Move]) -> str:
        if LIVELOCK in kinds:
            return "and so on for ever"
        state = self._states[0]
        for wanted in way:
            state = next(after for move, after in self._moves(state) if move[:2] == wanted[:2])
        missing = self.size.batches - state.trained
        said = [f"never trained: {missing} of {self.size.batches}"] if missing else []
        for name, verb in (("target", "put"), ("drafter", "take")):
            places = getattr(state, f"{name}s")
            said += [f"{name} {worker} waits for ever to {verb}" for worker in self._stuck(name, places)]
        return "; ".join(said)


def smallest(protocol: Protocol, cases: Iterable[Size]) -> Failure | None:
    """The first case that fails, with its shortest schedule."""
    for size in cases:
        failures = Case(protocol, size).failures()
        if failures:
            return min(failures.values(), key=lambda failure: failure.schedule.count("\n"))
    return None
