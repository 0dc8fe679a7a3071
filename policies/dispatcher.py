"""The dispatcher: the state machine that decides what every worker does next.

Every change of state of a pipeline passes through this file (with `hop`, `window` and `ledger`, which only it
calls). Calls in, effects out: an input reports what a worker did and returns what is to be done, in order. There is no
clock, no thread, no randomness; workers that must wait are kept inside, in the order they asked.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from policies.effects import (
    Admit,
    Assign,
    Deliver,
    Drop,
    Effect,
    End,
    Flush,
    Join,
    Loaded,
    Lose,
    PutBack,
    Recall,
    Recompute,
    Release,
    Step,
)
from policies.errors import ProtocolError
from policies.hop import Hop, Moves
from policies.ledger import FEED, HELD, LOST, RECEIVED, STAGED, TAKEN, TARGET, TRAINED, Ledger
from policies.policy import Policy, Shape
from policies.window import Window, windows

LOADER: Final = 0
"""The number of the feed's only producer."""
NOTHING: Final = -1


class Dispatcher:
    """Both hops of a pipeline (loader → targets → drafters) and its optimizer steps.

    `bucket_of[b]` is the length bucket of batch b; its length is the number of planned batches, numbered from 0.
    """

    def __init__(
        self,
        *,
        feed: Policy,
        feed_shape: Shape,
        dispatch: Policy,
        dispatch_shape: Shape,
        bucket_of: Sequence[int],
        sync: str = "step",
        accumulate: int = 1,
        prefetch: int = 0,
        max_steps: int | None = None,
    ) -> None:
        planned = len(bucket_of)
        targets, drafters = dispatch_shape.producers, dispatch_shape.consumers
        self.ledger = Ledger(planned)
        self.ended: str | None = None
        """The stop reason, once the run has ended."""
        self.steps = 0
        """Optimizer steps applied (summed over the drafters under `none`)."""
        self.targets: list[int] = list(range(targets))
        """The live targets."""
        to_come = [0] * len(dispatch_shape.buckets)
        for bucket in bucket_of:
            to_come[bucket] += 1
        self.windows = windows(sync, range(drafters), accumulate, prefetch)
        """The window of each drafter; the same object for all under `step` and `pooled`."""
        self.feed = Hop(feed, feed_shape, _FeedMoves(self), bytes(planned), [planned])
        self.dispatch = Hop(dispatch, dispatch_shape, _DispatchMoves(self), bucket_of, to_come)
        self.computing = [NOTHING] * targets
        """The batch each target computes."""
        self._bucket_of: list[int] = list(bucket_of)
        self._joint = sync != "none"
        self._partial = self._joint or accumulate > 1
        self._prefetch = prefetch
        self._max_steps = max_steps
        self._unsettled = planned
        self._ready_targets: set[int] = set()
        self._ready_drafters: set[int] = set()
        self._supply = 0
        """Batches that the loader has ready and the feed has not been offered yet, from `_next_load` on; while there
        are some, the feed holds the one before them."""
        self._next_load = 0
        self._source: list[int] = [0] * planned
        self._owner: list[int] = [NOTHING] * planned
        self._lane: dict[int, int] = {}
        self._out: list[Effect] = []

    # The loader -----------------------------------------------------------------------------------------------

    def load(self, batch: int, count: int) -> list[Effect]:
        """The loader has `count` batches ready, numbered from `batch` on, which the feed admits as it has room.

        The loader goes on when it is answered `Loaded` for the last of them.
        """
        out = self._begin()
        self._check_loader(f"load {count} from batch {batch} on")
        if batch != self._next_load or not 0 < count <= self.feed.to_come[0]:
            why = f"{self.feed.to_come[0]} are to come, from batch {self._next_load} on"
            raise ProtocolError(f"the loader cannot load {count} from batch {batch} on: {why}")
        self._supply = count
        self._refill()
        if self._partial or self.dispatch.declined:
            self._settle()
        return out

    def loader_done(self) -> list[Effect]:
        """The loader has nothing more to offer, and all that it had is admitted."""
        out = self._begin()
        self._check_loader("be done")
        if self.feed.to_come[0]:
            self._forget_unloaded()
        self._settle()
        return out

    # Targets --------------------------------------------------------------------------------------------------

    def target_ready(self, target: int) -> list[Effect]:
        """The target has started: from now on it asks for a batch whenever it has none in hand."""
        out = self._begin()
        if target in self._ready_targets or target not in self.targets:
            raise ProtocolError(f"target {target} is ready for the second time, or lost")
        self._ready_targets.add(target)
        self._ask(target)
        if self._partial or self.dispatch.declined:
            self._settle()
        return out

    def offer(self, target: int, batch: int) -> list[Effect]:
        """The target has computed the batch's hidden states; once they are admitted it asks for the next."""
        out = self._begin()
        if self.computing[target] != batch:
            raise ProtocolError(f"target {target} offered batch {batch}, but computes {self.computing[target]}")
        self.ledger.move(batch, TARGET, HELD)
        self.computing[target] = NOTHING
        self.dispatch.to_come[self._bucket_of[batch]] -= 1
        self._source[batch] = target
        self.dispatch.offer(target, batch)
        if self._partial:
            self._settle()
        return out

    def target_lost(self, target: int) -> list[Effect]:
        """The target is gone with all that still lay at it: those batches must be computed again."""
        out = self._begin()
        if target not in self.targets:
            raise ProtocolError(f"target {target} was lost before")
        self.targets.remove(target)
        self.feed.lose_consumer(target)
        self._recompute_all_of(target)
        self._serve()
        self._settle()
        return out

    # Drafters -------------------------------------------------------------------------------------------------

    def drafter_ready(self, drafter: int) -> list[Effect]:
        """The drafter has started: from now on it asks for more while it has fewer than 1 + prefetch to compute."""
        out = self._begin()
        if drafter in self._ready_drafters or drafter not in self.dispatch.consumers:
            raise ProtocolError(f"drafter {drafter} is ready for the second time, or lost")
        self._ready_drafters.add(drafter)
        for _ in range(1 + self._prefetch):
            self.dispatch.take(drafter)
        if self._partial or self.dispatch.declined:
            self._settle()
        return out

    def received(self, drafter: int, batch: int) -> list[Effect]:
        """The hidden states are on the drafter's side: their source may go."""
        out = self._begin()
        self._check_owner(drafter, batch)
        self.ledger.move(batch, TAKEN, RECEIVED)
        out.append(Release(self._source[batch], batch))
        return out

    def refused(self, drafter: int, batch: int) -> list[Effect]:
        """The hidden states did not reach the drafter whole: the batch is computed again, the drafter asks anew."""
        out = self._begin()
        self._check_owner(drafter, batch)
        if self.ledger.place(batch) != TAKEN:
            raise ProtocolError(f"drafter {drafter} refused batch {batch}, which it is not fetching")
        self._recall(batch)
        self._serve()
        self._settle()
        return out

    def computed(self, drafter: int, batch: int) -> list[Effect]:
        """The drafter has the gradients of a micro-batch of its open step, and room for another batch."""
        out = self._begin()
        if self.ledger.place(batch) != RECEIVED:
            raise ProtocolError(f"drafter {drafter} computed batch {batch}, which it has not received")
        window = self.windows[drafter]
        if window.compute(drafter, batch):
            self._join(window, drafter)
        self.dispatch.take(drafter)
        if self._partial or self.dispatch.declined:
            self._settle()
        return out

    def commit(self, step: int, batches: Iterable[int]) -> list[Effect]:
        """Every live drafter of the step applied it: its batches are trained, the next one opens."""
        out = self._begin()
        window = self._applied(step)
        given, expected = tuple(batches), window.applying
        if given != expected:
            raise ProtocolError(f"step {step} holds the batches {expected}, not {given}")
        for batch in expected:
            self.ledger.move(batch, RECEIVED, TRAINED)
            del self._lane[batch]
        self._unsettled -= len(expected)
        self.steps += 1
        window.advance()
        if self._prefetch:
            self._drop_void(window)
        if self.steps == self._max_steps:
            self._end("max_steps")
            return out
        if self.dispatch.waiting:
            self.dispatch.serve()
        self._settle()
        return out

    def abandon(self, step: int) -> list[Effect]:
        """No drafter could apply the step: gradients are dropped and its batches are computed again, for later ones."""
        out = self._begin()
        window = self._applied(step)
        for batch in reversed(window.applying):
            self._recompute(batch, RECEIVED, -1)
        self._drop(window)
        self._serve()
        self._settle()
        return out

    def drafter_lost(self, drafter: int) -> list[Effect]:
        """The drafter is gone: what it had not received goes back to its lane, the rest is computed again.

        A step that is being applied stays open: `commit` it if a survivor applied it, else `abandon` it.
        """
        out = self._begin()
        if drafter not in self.dispatch.consumers:
            raise ProtocolError(f"drafter {drafter} was lost before")
        window = self.windows[drafter]
        for batch in reversed(window.lose(drafter)):
            self._return(drafter, batch)
        self.dispatch.lose_consumer(drafter)
        if not self._joint:
            self._lose_trained(drafter)
        if not self.dispatch.consumers:
            self._end("worker_lost")
            return out
        self._close_ranks(window)
        self._serve()
        self._settle()
        return out

    def stop(self, reason: str) -> list[Effect]:
        """End the run now; every batch stays where it is."""
        out = self._begin()
        self._end(reason)
        return out

    # What drivers and reports ask -----------------------------------------------------------------------------

    def open_targets(self) -> Iterable[int]:
        """The live targets that compute a batch or can still get one (the others are retired)."""
        fed = self.feed.reached()
        return (t for t in self.targets if self.computing[t] != NOTHING or t in fed)

    def feeding(self) -> bool:
        """Whether the loader or a target will move by itself: not every one of them waits, is blocked or is done."""
        feed = self.feed
        resting = len(feed.waiting) + len(self.dispatch.held)
        return resting < len(self.targets) or (feed.to_come[0] > 0 and not feed.held)

    def arriving(self) -> Iterable[int]:
        """The open targets whose next offer will come although no drafter takes anything."""
        if not self.feeding():
            return ()
        blocked = {target for target, _, _ in self.dispatch.held}
        return (t for t in self.open_targets() if t not in blocked)

    def is_fetching(self, drafter: int, batch: int) -> bool:
        """Whether the batch was delivered to the drafter and has not been received."""
        return self.ledger.place(batch) == TAKEN and self._owner[batch] == drafter

    # Inside ---------------------------------------------------------------------------------------------------

    def _begin(self) -> list[Effect]:
        if self.ended is not None:
            raise ProtocolError(f"the run has ended ({self.ended}): no input is taken any more")
        self._out = []
        return self._out

    def _end(self, reason: str) -> None:
        self.ended = reason
        self._out.append(End(reason))

    def _ask(self, target: int) -> None:
        self.feed.take(target)
        if self._supply:
            self._refill()

    def _refill(self) -> None:
        """Offer the feed what the loader has ready, until one must wait for room."""
        feed = self.feed
        while self._supply and not feed.held:
            batch = self._next_load
            self._next_load += 1
            self._supply -= 1
            feed.to_come[0] -= 1
            feed.offer(LOADER, batch)

    def _serve(self) -> None:
        """After a loss: whoever waits may find something."""
        self.feed.serve()
        self._refill()
        self.dispatch.serve()

    def assigned(self, target: int, batch: int, lane: int) -> None:
        """The feed gives the target a batch."""
        self.ledger.move(batch, FEED, TARGET)
        self.computing[target] = batch
        self._out.append(Assign(target, batch, lane))

    def loaded(self, batch: int, lane: int) -> None:
        """The feed admits the loader's batch."""
        if not self._supply:
            self._out.append(Loaded(batch, lane))

    def admitted(self, target: int, batch: int, lane: int) -> None:
        """A lane admits the hidden states."""
        self.ledger.move(batch, HELD, STAGED)
        self._out.append(Admit(target, batch, lane))
        self._ask(target)

    def delivered(self, drafter: int, batch: int, lane: int) -> None:
        """A lane gives the drafter a batch."""
        self.ledger.move(batch, STAGED, TAKEN)
        self._lane[batch] = lane
        self._owner[batch] = drafter
        window = self.windows[drafter]
        step, closes = window.took(drafter, batch)
        self._out.append(Deliver(drafter, batch, lane, self._source[batch], step, closes))
        if closes and window.full():
            self._flush(window, window.unclosed())

    def bucket_of(self, batch: int) -> int:
        """The bucket of a batch."""
        return self._bucket_of[batch]

    def _applied(self, step: int) -> Window:
        """The window whose open step is this one and is being applied."""
        window = self.windows[step % len(self.windows)]
        if window.step != step or not window.stepping:
            state = "being applied" if window.stepping else "open"
            raise ProtocolError(f"step {step} is not being applied: step {window.step} is {state}")
        return window

    def _check_loader(self, act: str) -> None:
        if self._supply or self.feed.held:
            raise ProtocolError(f"the loader cannot {act}: the feed has not admitted the last batch it had ready")

    def _check_owner(self, drafter: int, batch: int) -> None:
        if self._owner[batch] != drafter:
            raise ProtocolError(f"drafter {drafter} speaks of batch {batch}, which was not delivered to it")

    def _join(self, window: Window, drafter: int) -> None:
        window.join(drafter)
        if window.complete():
            self._apply(window)
        elif len(window.members) > 1:
            self._out.append(Join(drafter, window.step))

    def _apply(self, window: Window) -> None:
        batches = window.begin()
        self._out.append(Step(window.step, tuple(window.members), batches))

    def _drop(self, window: Window) -> None:
        self._out.append(Drop(window.step, tuple(window.members)))
        window.advance()
        self._drop_void(window)

    def _drop_void(self, window: Window) -> None:
        """A loss took all that the open step had: those who closed it, or hold later batches, go on to the next."""
        if window.void():
            self._drop(window)

    def _close_ranks(self, window: Window) -> None:
        """A drafter is lost: the others may have nothing left to apply, the whole budget, or all that they need."""
        if window.stepping:
            return
        self._drop_void(window)
        if window.full():
            self._flush(window, window.unclosed())
        if window.complete() and not window.stepping:
            self._apply(window)

    def _flush(self, window: Window, drafters: list[int]) -> None:
        for drafter in drafters:
            self._out.append(Flush(drafter, window.step))
            if window.flush(drafter):
                self._join(window, drafter)

    def _settle(self) -> None:
        """End the run when every batch is settled; otherwise flush drafters that nothing can reach."""
        if self.dispatch.declined:
            self.dispatch.serve()
        if self._unsettled == 0:
            self._end("data_exhausted")
        elif not self.targets and self.ledger.count(RECEIVED) < self._unsettled:
            self._end("worker_lost")
        elif self._partial and self.dispatch.waiting:
            self._flush_dry()
            if not self.feeding() and self._quiet():
                self._flush_starved()

    def _flush_dry(self) -> None:
        reached = self.dispatch.reached()  # a flush moves no batch
        for drafter in self.dispatch.waiting:
            window = self.windows[drafter]
            part = window.parts[drafter]
            if not part.closed and not window.empty() and drafter not in reached:
                self._flush(window, [drafter])

    def _quiet(self) -> bool:
        """Whether every drafter, too, waits inside the dispatcher, so that nothing will move by itself."""
        idle = len(set(self.dispatch.waiting)) == len(self.dispatch.consumers)
        return idle and all(window.resting() for window in self.windows)

    def _flush_starved(self) -> None:
        """Nobody moves: a drafter that waits for data which only the step's end can set free must be flushed.

        Only fixed assignments need it. The feed deals in turns and is blocked by a target whose lane is full,
        because its drafter waits in the step for a drafter whose target gets no batch. Or a
        loss made lanes of `rotating` or `round_robin` uneven: a full lane blocks every target while another is empty.
        """
        for drafter in self.dispatch.waiting:
            window = self.windows[drafter]
            if not window.parts[drafter].closed and not window.empty():
                self._flush(window, [drafter])

    def _forget_unloaded(self) -> None:
        """The loader ends early: nothing waits any more for the batches that it never loaded."""
        feed = self.feed
        loaded = {batch for lane in feed.lanes for batch in lane.waiting}
        for batch in self.ledger.at(FEED):
            if batch not in loaded:
                self.dispatch.to_come[self._bucket_of[batch]] -= 1
        self._unsettled -= feed.to_come[0]
        feed.to_come[0] = 0
        self.dispatch.serve()

    def _return(self, drafter: int, batch: int) -> None:
        lane = self._lane[batch]
        if self.ledger.place(batch) == TAKEN:
            del self._lane[batch]
            self.ledger.move(batch, TAKEN, STAGED)
            self.dispatch.put_back(batch, lane)
            self._out.append(PutBack(batch, lane, drafter))
        else:
            self._recompute(batch, RECEIVED, drafter)

    def _recompute(self, batch: int, place: int, worker: int, lane: int = NOTHING) -> None:
        """The hidden states are gone: the batch goes to the front of the feed."""
        self.ledger.move(batch, place, FEED)
        self._lane.pop(batch, None)
        if place != TARGET:
            self.dispatch.to_come[self._bucket_of[batch]] += 1
        self.feed.put_back(batch, self.feed.lane_for(LOADER, batch) if self.feed.consumers else 0)
        self._out.append(Recompute(batch, place, lane, worker))

    def _recompute_all_of(self, target: int) -> None:
        """The latest first, so that the oldest comes to the front of the feed."""
        computing, self.computing[target] = self.computing[target], NOTHING
        if computing != NOTHING:
            self._recompute(computing, TARGET, target)
        held = self.dispatch.withdraw(target)
        if held is not None:
            self._recompute(held, HELD, target)
        staged = [batch for batch in self.ledger.at(STAGED) if self._source[batch] == target]
        for batch, lane in reversed(self.dispatch.remove(staged)):
            self._recompute(batch, STAGED, -1, lane)
        for batch in reversed(self.ledger.at(TAKEN)):
            if self._source[batch] == target:
                self._recall(batch)

    def _recall(self, batch: int) -> None:
        drafter = self._owner[batch]
        window = self.windows[drafter]
        complete = window.forget(drafter, batch)
        self._recompute(batch, TAKEN, drafter)
        self._out.append(Recall(drafter, batch))
        self.dispatch.wait(drafter)  # not served before all that the target had is in the feed again
        if complete and not window.empty():
            self._join(window, drafter)
        self._drop_void(window)

    def _lose_trained(self, drafter: int) -> None:
        lost = tuple(b for b in self.ledger.at(TRAINED) if self._owner[b] == drafter)
        for batch in lost:
            self.ledger.move(batch, TRAINED, LOST)
        if lost:
            self._out.append(Lose(lost))


class _FeedMoves(Moves):
    """The feed hop's moves: batches go to targets, which may always take."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def admitted(self, producer: int, batch: int, lane: int) -> None:
        self._dispatcher.loaded(batch, lane)

    def delivered(self, consumer: int, batch: int, lane: int) -> None:
        self._dispatcher.assigned(consumer, batch, lane)

    def may_take(self, consumer: int) -> bool:
        return True

    def window_buckets(self, consumer: int) -> frozenset[int]:
        return frozenset()

    def window_room(self, consumer: int) -> int:
        return 1

    def open_producers(self) -> Iterable[int]:
        return (LOADER,) if self._dispatcher.feed.to_come[0] else ()

    def arriving(self) -> Iterable[int]:
        return () if self._dispatcher.feed.held else self.open_producers()


class _DispatchMoves(Moves):
    """The hidden-state hop's moves: batches go to drafters, which take as their window allows."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._windows = dispatcher.windows

    def admitted(self, producer: int, batch: int, lane: int) -> None:
        self._dispatcher.admitted(producer, batch, lane)

    def delivered(self, consumer: int, batch: int, lane: int) -> None:
        self._dispatcher.delivered(consumer, batch, lane)

    def may_take(self, consumer: int) -> bool:
        return self._windows[consumer].may_take(consumer)

    def window_buckets(self, consumer: int) -> frozenset[int]:
        held, _ = self._dispatcher.windows[consumer].next_take(consumer)
        return frozenset(self._dispatcher.bucket_of(batch) for batch in held)

    def window_room(self, consumer: int) -> int:
        return self._dispatcher.windows[consumer].next_take(consumer)[1]

    def open_producers(self) -> Iterable[int]:
        return self._dispatcher.open_targets()

    def arriving(self) -> Iterable[int]:
        return self._dispatcher.arriving()
