"""Who waits for what: the dispatcher's state in words, for reports of runs that ended incomplete."""

from policies.dispatcher import NOTHING, Dispatcher


def waiting(dispatcher: Dispatcher) -> list[tuple[str, str]]:
    """(worker, what it waits for) of every live worker, targets first."""
    return [(f"target/{t}", _target(dispatcher, t)) for t in dispatcher.targets] + [
        (f"drafter/{d}", _drafter(dispatcher, d)) for d in dispatcher.dispatch.consumers
    ]


def _target(dispatcher: Dispatcher, target: int) -> str:
    if dispatcher.computing[target] != NOTHING:
        return f"its own computation of batch {dispatcher.computing[target]}"
    for producer, batch, index in dispatcher.dispatch.held:
        if producer == target:
            lane = dispatcher.dispatch.lanes[index]
            return f"room in lane {lane.name} ({len(lane)}/{lane.capacity}) for batch {batch}"
    return "a batch from the feed" if target in dispatcher.feed.reached() else "nothing: the feed is empty for good"


def _drafter(dispatcher: Dispatcher, drafter: int) -> str:
    window = dispatcher.windows[drafter]
    part = window.parts[drafter]
    if part.taken:
        return f"its own computation of batch {part.taken[0]}"
    if part.joined:
        late = [f"drafter/{d}" for d in window.members if not window.parts[d].joined]
        return f"{', '.join(late)} to join step {window.step}" if late else f"step {window.step} to be applied"
    if drafter in dispatcher.dispatch.reached():
        return "a batch in a lane it reads"
    return "nothing: no batch can reach it any more"
