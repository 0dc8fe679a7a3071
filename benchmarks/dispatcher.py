"""What the dispatcher costs a batch through both hops, beside `queue.Queue`, in one run: `make bench`.

Threads: one thread drives a dispatcher with everything a batch needs (load, offer, received, computed, commit) and, in
turn, puts and gets a batch through two `queue.Queue`s. Processes: the same inputs arrive over a pipe from a spawned
process, beside put and get of a `multiprocessing.Queue`.
"""

import multiprocessing
import queue
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from policies.builtin import Shared
from policies.dispatcher import Dispatcher
from policies.effects import Assign, Deliver, Step
from policies.policy import Shape

BATCHES = 20_000
ROUNDS = 5
TARGETS, DRAFTERS = 5, 3


def through_dispatcher(batches: int, tell: Callable[[Dispatcher, str, tuple[Any, ...]], list[Any]]) -> None:
    """Drive every batch from the feed to its optimizer step, as workers of no duration would."""
    dispatcher = Dispatcher(
        feed=Shared(),
        feed_shape=Shape(producers=1, consumers=TARGETS, depth=4),
        dispatch=Shared(),
        dispatch_shape=Shape(producers=TARGETS, consumers=DRAFTERS, depth=8),
        bucket_of=bytes(batches),
        sync="none",
    )
    answers = [tell(dispatcher, "target_ready", (t,)) for t in range(TARGETS)]
    answers += [tell(dispatcher, "drafter_ready", (d,)) for d in range(DRAFTERS)]
    answers.append(tell(dispatcher, "load", (0, batches)))
    while answers and dispatcher.ended is None:
        for effect in answers.pop(0):
            if isinstance(effect, Assign):
                answers.append(tell(dispatcher, "offer", (effect.target, effect.batch)))
            elif isinstance(effect, Deliver):
                answers.append(tell(dispatcher, "received", (effect.drafter, effect.batch)))
                answers.append(tell(dispatcher, "computed", (effect.drafter, effect.batch)))
            elif isinstance(effect, Step):
                answers.append(tell(dispatcher, "commit", (effect.step, effect.batches)))
    assert dispatcher.ended == "data_exhausted"


def directly(dispatcher: Dispatcher, name: str, arguments: tuple[Any, ...]) -> list[Any]:
    answer: list[Any] = getattr(dispatcher, name)(*arguments)
    return answer


def through_queues(batches: int, first: Any, second: Any) -> None:
    for batch in range(batches):
        first.put(batch)
        second.put(first.get())
        second.get()


def echo(pipe: "Connection[Any, Any]") -> None:
    """A worker's side: every message comes back, as a report does."""
    while (message := pipe.recv()) is not None:
        pipe.send(message)


def microseconds(run: Callable[..., None], batches: int, *arguments: Any) -> float:
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run(batches, *arguments)
        times.append((time.perf_counter() - start) / batches * 1e6)
    return statistics.median(times)


def tell(how: str, own: float, name: str, queues: float) -> None:
    beside = f"two {name} put + get {queues:.1f} µs"
    print(f"{how}: dispatcher, both hops {own:.1f} µs a batch; {beside}: ratio {own / queues:.1f}")


def main() -> None:
    own = microseconds(through_dispatcher, BATCHES, directly)
    queues = microseconds(through_queues, BATCHES, queue.Queue(8), queue.Queue(8))
    tell("threads", own, "queue.Queue", queues)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    worker = context.Process(target=echo, args=(theirs,), daemon=True)
    worker.start()

    def over_the_pipe(dispatcher: Dispatcher, name: str, arguments: tuple[Any, ...]) -> list[Any]:
        if name in ("offer", "received", "computed", "commit"):
            ours.send((name, arguments))
            name, arguments = ours.recv()
        return directly(dispatcher, name, arguments)

    few = BATCHES // 20
    piped = microseconds(through_dispatcher, few, over_the_pipe)
    shared = microseconds(through_queues, few, context.Queue(8), context.Queue(8))
    tell("processes", piped, "multiprocessing.Queue", shared)
    ours.send(None)
    worker.join()


if __name__ == "__main__":
    main()
