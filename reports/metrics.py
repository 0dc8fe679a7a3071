"""The accumulator: everything a summary counts, computed from the event stream and from nothing else.

It observes the event stream, fed live by any driver or later from a trace file. Times are seconds from the start of the
run and never fall.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from policies.effects import (
    Admit,
    Assign,
    Deliver,
    Drop,
    Effect,
    End,
    Join,
    Loaded,
    Lose,
    PutBack,
    Recall,
    Recompute,
    Step,
)
from policies.ledger import FEED, HELD, LOST, STAGED, TAKEN, TARGET, TRAINED
from reports.observer import Exchange

BUSY: Final = 0
BLOCKED: Final = 1
STARVED: Final = 2
SYNC: Final = 3
TRANSFER: Final = 4
STATES: Final = ("busy", "blocked", "starved", "sync", "transfer")


class Work(Protocol):
    """What the accumulator knows of each batch; sequences of N values."""

    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def bucket(self) -> Sequence[int]: ...
    @property
    def length(self) -> Sequence[int]: ...


class WorkerMeter:
    """One worker's time by state, and what it completed."""

    def __init__(self, name: str, role: str) -> None:
        self.name = name
        self.role = role
        self.seconds: list[float] = [0.0] * len(STATES)
        """Seconds in each of `STATES`."""
        self.state = STARVED
        self.since = 0.0
        self.end: float | None = None
        self.stuck_since = 0.0
        """When it came into the state in which its life ended."""
        self.unfinished = 0.0
        """Busy or transfer seconds of what it was at when its life ended: they gave nothing."""
        self.awaited_sync = 0.0
        """Sync seconds in which it waited for a drafter that was then lost."""
        self.awaited_busy = 0.0
        """Busy seconds, since its first batch, in steps that such a drafter held up."""
        self.lost = False
        self.batches = 0
        self.tokens = 0
        self.first_working = 0.0
        """Busy and transfer seconds until its first batch was complete: compilation, left out of its solo rate."""
        self.first_tokens = 0
        self.fed_batches = 0
        """Drafters: batches that they had done when the last batch was given to a target."""
        self.fed_tokens = 0
        self.fed_working = 0.0
        """Busy and transfer seconds until the last of these was complete: beyond it targets leave off, and who shared
        a machine with them becomes faster."""
        self.hand = 0
        """Drafters: batches delivered and not computed."""
        self.ready = 0
        """Drafters: those of them that have arrived."""
        self._awaited_until = 0.0
        self.ended: Callable[[int, float, float], None] | None = None
        """Told of every span of one state that takes time: the state, its start and its end."""

    def turn(self, now: float, state: int) -> None:
        """Change the state."""
        since = self.since
        if now > since:
            self.seconds[self.state] += now - since
            if self.ended is not None:
                self.ended(self.state, since, now)
            self.since = now
        self.state = state

    def close(self, now: float) -> None:
        """The worker's life ends, if it has not yet."""
        if self.end is None:
            self.stuck_since = self.since
            if self.state in (BUSY, TRANSFER):
                self.unfinished = now - self.since
            self.turn(now, self.state)
            self.end = now

    def complete(self, tokens: int) -> None:
        """One more batch is done; the worker's state has just turned."""
        if not self.batches:
            self.first_working = self.seconds[BUSY] + self.seconds[TRANSFER]
            self.first_tokens = tokens
        self.batches += 1
        self.tokens += tokens

    def fed(self) -> None:
        """What it has just completed came while targets were still given batches."""
        self.fed_batches, self.fed_tokens = self.batches, self.tokens
        self.fed_working = self.seconds[BUSY] + self.seconds[TRANSFER]

    def in_vain(self, state: int) -> float:
        """Seconds in a state that tell no pace: what it never finished, and waiting for one that was then lost."""
        own = 0.0
        if self.end is not None and self.state == state and (self.lost or state in (BUSY, TRANSFER)):
            own = self.end - self.stuck_since
        awaited = {BUSY: self.awaited_busy, SYNC: self.awaited_sync}.get(state, 0.0)
        return min(own + awaited, self.seconds[state])

    def awaited(self, state: int, since: float, until: float) -> None:
        """In this state it waited for one that is lost now; of several at once each second counts once."""
        seconds = max(until - max(since, self._awaited_until), 0.0)
        self._awaited_until = max(until, self._awaited_until)
        if state == SYNC:
            self.awaited_sync += seconds
        elif self.batches:
            self.awaited_busy += seconds


class Life(NamedTuple):
    """One worker's time by state as of a moment, with what still lasts."""

    meter: WorkerMeter
    seconds: Sequence[float]
    """In each of `STATES`."""
    length: float

    def share(self, state: int) -> float:
        """Share of the life in a state, 0 for one that never lived."""
        return self.seconds[state] / self.length if self.length > 0 else 0.0


class LaneMeter:
    """Depth of one lane over time."""

    def __init__(self, name: str, capacity: int) -> None:
        self.name = name
        self.capacity = capacity
        self.depth = 0
        self.area = 0.0
        """Integral of the depth, batches × seconds."""
        self.since = 0.0
        self.most = 0
        self.changed: Callable[[float, int], None] | None = None
        """Told of the time and the depth at the end of every instant in which it changed."""

    def change(self, now: float, by: int) -> None:
        """Batches entered or left."""
        if now > self.since:
            self.area += self.depth * (now - self.since)
            if self.changed is not None:
                self.changed(self.since, self.depth)
            self.since = now
        self.depth += by
        if self.depth > self.most:
            self.most = self.depth


class Metrics:
    """Counts one run. `lanes` are (name, capacity) of the hidden-state hop."""

    def __init__(self, *, targets: int, drafters: int, lanes: Iterable[tuple[str, int]], work: Work) -> None:
        self.targets = [WorkerMeter(f"target/{t}", "target") for t in range(targets)]
        self.drafters = [WorkerMeter(f"drafter/{d}", "drafter") for d in range(drafters)]
        self.lanes = [LaneMeter(name, capacity) for name, capacity in lanes]
        self.planned = len(work.tokens)
        self.outstanding = self.max_outstanding = 0
        self.now = 0.0
        self.ended: str | None = None
        self.to_assign = self.planned
        """Batches no target has been given yet (or must be given again)."""
        self.fed_at: float | None = None
        """When the last batch was given to a target: the tail of the run begins."""
        self.times = array("d")
        """When each commit came."""
        self.trained_tokens = array("q")
        """Tokens of each commit."""
        self.firsts: list[int] = []
        """Indices into `times` of each drafter's first commit."""
        self.place = bytearray(self.planned)
        """Where each batch is, as in `policies.ledger` (received counts as taken)."""
        self.loader_busy = 0.0
        """Seconds that the loader worked, neither blocked nor done."""
        self.loaded_tokens = 0
        self.windows = self.mixed_windows = self.bucket_sum = 0
        self.window_lengths = array("d")
        """Mean length of each window, in order of the commits."""
        self.owner: list[int] = [0] * self.planned
        """The drafter each batch was delivered to last."""
        self.trained_by = [[0, 0] for _ in self.drafters]
        """Batches and tokens that each drafter trained."""
        # Lists, which index faster than any other sequence.
        self._tokens: list[int] = list(work.tokens)
        self._bucket: list[int] = list(work.bucket)
        self._length: list[int] = list(work.length)
        self._loader_since = 0.0
        self._members: dict[int, tuple[int, ...]] = {}
        self._stepping: dict[int, float] = {}
        """When each step that is being applied began."""
        self._last_step: tuple[float, float, tuple[int, ...]] = (0.0, 0.0, ())
        """Start, end and drafters of the last one that was committed."""

    def observe(self, exchanges: list[Exchange]) -> None:
        """The next exchanges, in order."""
        for now, name, arguments, answer in exchanges:
            if name == "offer":
                self._offer(now, arguments[0], arguments[1])
            elif name == "received":
                self._received(now, arguments[0])
            elif name == "computed":
                self._computed(now, arguments[0], arguments[1])
            elif name == "commit":
                self._commit(now, arguments[0], arguments[1])
            elif name == "load":
                self._load(now, arguments[0], arguments[1])
            elif name == "target_lost":
                self._lost(now, self.targets[arguments[0]])
            elif name == "drafter_lost":
                self._lost(now, self.drafters[arguments[0]])
            for effect in answer:
                self._effect(now, effect)

    def _effect(self, now: float, effect: Effect) -> None:
        """Apply one effect; the most frequent ones come first."""
        if isinstance(effect, Deliver):
            self._deliver(now, effect)
        elif isinstance(effect, Admit):
            self._admit(now, effect)
        elif isinstance(effect, Assign):
            self._assign(now, effect)
        elif isinstance(effect, Loaded):
            self._loader_since = now
        elif isinstance(effect, Step):
            self._step(now, effect)
        else:
            self._rare_effect(now, effect)

    def _rare_effect(self, now: float, effect: Effect) -> None:
        match effect:
            case Join():
                self.drafters[effect.drafter].turn(now, SYNC)
            case Drop():
                self._drop(now, effect)
            case PutBack():
                self._put_back(now, effect)
            case Recompute():
                self._recompute(now, effect)
            case Recall():
                self._recall(now, effect)
            case Lose():
                self._lose(effect)
            case End():
                self.ended = effect.reason
                self.finish(now)

    def finish(self, now: float) -> None:
        """The run is over (also without `End`, when it hangs): every worker's life ends by now."""
        self.now = now
        for meter in (*self.targets, *self.drafters):
            meter.close(self._end_of(meter, now))
        for lane in self.lanes:
            lane.change(now, 0)

    def life(self, meter: WorkerMeter, now: float) -> Life:
        """The worker's time by state as of `now`, at the last event or later, also while the run goes on."""
        end, seconds = self._end_of(meter, now), list(meter.seconds)
        seconds[meter.state] += max(end - meter.since, 0.0)
        return Life(meter, seconds, end)

    def _end_of(self, meter: WorkerMeter, now: float) -> float:
        """When its life ended, or ends if the run ends now."""
        if meter.end is not None:
            return meter.end
        retired = meter.role == "target" and meter.state == STARVED and self.to_assign == 0
        return meter.since if retired else now

    # Inputs ---------------------------------------------------------------------------------------------------

    def _load(self, now: float, batch: int, count: int) -> None:
        """The loader has batches ready."""
        self.loader_busy += now - self._loader_since
        self.loaded_tokens += sum(self._tokens[batch : batch + count])

    def _offer(self, now: float, target: int, batch: int) -> None:
        """A target computed a batch."""
        meter = self.targets[target]
        meter.turn(now, BLOCKED)
        meter.complete(self._tokens[batch])
        self.place[batch] = HELD
        self.outstanding += 1
        if self.outstanding > self.max_outstanding:
            self.max_outstanding = self.outstanding

    def _received(self, now: float, drafter: int) -> None:
        """The hidden states arrived at the drafter, which computes as soon as it is free."""
        meter = self.drafters[drafter]
        meter.ready += 1
        if meter.state == TRANSFER:
            meter.turn(now, BUSY)

    def _computed(self, now: float, drafter: int, batch: int) -> None:
        """The drafter has a micro-batch's gradients."""
        meter = self.drafters[drafter]
        meter.hand -= 1
        meter.ready -= 1
        meter.turn(now, _idle_state(meter))
        meter.complete(self._tokens[batch])
        if self.fed_at is None or now <= self.fed_at:
            meter.fed()

    def _commit(self, now: float, step: int, batches: Sequence[int]) -> None:
        """An optimizer step was applied."""
        owner, tokens, place = self.owner, self._tokens, self.place
        total = 0
        for batch in batches:
            count = tokens[batch]
            total += count
            by = self.trained_by[owner[batch]]
            if not by[0]:
                self.firsts.append(len(self.times))
            by[0] += 1
            by[1] += count
            place[batch] = TRAINED
        self.times.append(now)
        self.trained_tokens.append(total)
        self._mix(batches)
        members = self._members.pop(step)
        self._last_step = self._stepping.pop(step), now, members
        for drafter in members:
            self._resume(now, self.drafters[drafter])

    def _lost(self, now: float, meter: WorkerMeter) -> None:
        """A worker is gone."""
        meter.close(now)
        meter.lost = True
        if meter.role == "drafter":
            self._awaited(now, meter)

    def _awaited(self, now: float, lost: WorkerMeter) -> None:
        """The other drafters that wait for its gradients, or in its step, did so in vain.

        The last committed step counts, too: a survivor may have applied it, and told only when the lost was given up.
        """
        number = self.drafters.index(lost)
        since, until, members = self._last_step
        together = {each for step in self._members.values() if number in step for each in step}
        for each, meter in enumerate(self.drafters):
            if meter.end is not None:
                continue
            if number in members and each in members:
                meter.awaited(BUSY, since, until)
            if meter.state == SYNC or each in together:
                meter.awaited(meter.state, max(lost.stuck_since, meter.since), now)

    # Effects ------------------------------------------------------------------------------------------------

    def _assign(self, now: float, effect: Assign) -> None:
        self.targets[effect.target].turn(now, BUSY)
        self.place[effect.batch] = TARGET
        self.to_assign -= 1
        if not self.to_assign:
            self.fed_at = now

    def _admit(self, now: float, effect: Admit) -> None:
        self.lanes[effect.lane].change(now, 1)
        self.place[effect.batch] = STAGED
        self.targets[effect.target].turn(now, STARVED)

    def _deliver(self, now: float, effect: Deliver) -> None:
        self.lanes[effect.lane].change(now, -1)
        self.outstanding -= 1
        self.place[effect.batch] = TAKEN
        self.owner[effect.batch] = effect.drafter
        meter = self.drafters[effect.drafter]
        meter.hand += 1
        if meter.state == STARVED:
            meter.turn(now, TRANSFER)

    def _step(self, now: float, effect: Step) -> None:
        self._members[effect.step] = effect.drafters
        self._stepping[effect.step] = now
        for drafter in effect.drafters:
            self.drafters[drafter].turn(now, BUSY)

    def _drop(self, now: float, effect: Drop) -> None:
        self._members.pop(effect.step, None)
        self._stepping.pop(effect.step, None)
        for drafter in effect.drafters:
            self._resume(now, self.drafters[drafter])

    def _put_back(self, now: float, effect: PutBack) -> None:
        self.lanes[effect.lane].change(now, 1)
        self.place[effect.batch] = STAGED
        self.outstanding += 1

    def _recompute(self, now: float, effect: Recompute) -> None:
        self.to_assign += 1
        self.fed_at = None
        self.place[effect.batch] = FEED
        if effect.place == STAGED:
            self.lanes[effect.lane].change(now, -1)
        if effect.place in (STAGED, HELD):
            self.outstanding -= 1

    def _recall(self, now: float, effect: Recall) -> None:
        meter = self.drafters[effect.drafter]
        meter.hand -= 1
        if meter.state == TRANSFER and not meter.hand:
            meter.turn(now, STARVED)

    def _lose(self, effect: Lose) -> None:
        for batch in effect.batches:
            self.place[batch] = LOST
            by = self.trained_by[self.owner[batch]]
            by[0] -= 1
            by[1] -= self._tokens[batch]

    # Inside ---------------------------------------------------------------------------------------------------

    def _resume(self, now: float, meter: WorkerMeter) -> None:
        if meter.end is None:
            meter.turn(now, _idle_state(meter))

    def _mix(self, batches: Sequence[int]) -> None:
        self.windows += 1
        if len(batches) == 1:
            self.bucket_sum += 1
            self.window_lengths.append(self._length[batches[0]])
            return
        buckets = {self._bucket[batch] for batch in batches}
        self.bucket_sum += len(buckets)
        self.mixed_windows += len(buckets) > 1
        self.window_lengths.append(sum(self._length[batch] for batch in batches) / len(batches))


def _idle_state(meter: WorkerMeter) -> int:
    """What a drafter does when it turns to its next batch."""
    if meter.ready:
        return BUSY
    return TRANSFER if meter.hand else STARVED
