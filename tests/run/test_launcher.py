"""The launcher before workers that follow a script: what it tells whom, and in which order."""

import contextlib
from collections.abc import Iterator
from typing import Any

from dflash_run.messages import Apply, Gone, Grouped, Open, Quiet, Ready
from tests.run.scripted import CutError, Said, Scene, Scripted, launched

THREE: dict[str, Any] = {
    "topology": {"targets": 2, "drafters": 3},
    "dispatch": {"policy": "shared", "depth": 4, "prefetch": 1},
    "data": {"batches": 20},
    "training": {"sync": "step"},
}
DRAFTERS = [("drafter", d) for d in range(3)]
KILLED = Gone("killed by signal 9")


def played(scene: Scene, **sections: Any) -> Scripted:
    """The crew after its scene."""
    crew = Scripted(scene)
    with contextlib.suppress(CutError):
        launched(crew, **sections)[0].run()
    return crew


def opening(crew: Scripted, batches: int) -> Iterator[Said]:
    """All have started; target 0 has computed this many batches, and the drafters have received theirs."""
    yield [(("target", target), Ready()) for target in range(2)] + [(drafter, Ready()) for drafter in DRAFTERS]
    yield [(drafter, Grouped(0)) for drafter in DRAFTERS]
    for _ in range(batches):
        yield crew.answers(0)
    for number in range(3):
        yield crew.arrive(number)


def regrouped(*drafters: int, applied: int, epoch: int = 1) -> Iterator[Said]:
    """These drafters leave the broken group and form another one."""
    yield [(("drafter", number), Quiet(epoch, applied)) for number in drafters]
    yield [(("drafter", number), Grouped(epoch)) for number in drafters]


def test_survivors_are_not_told_to_apply_a_step_that_is_abandoned() -> None:
    """Drafter 2 completes step 0 while the others regroup without drafter 0, whose gradients are gone."""

    def scene(crew: Scripted) -> Iterator[Said]:
        yield from opening(crew, 6)
        yield crew.trains(0)
        yield crew.trains(1)
        yield [(DRAFTERS[0], KILLED)]
        yield crew.trains(2)
        yield from regrouped(1, 2, applied=-1)

    crew = played(scene, **THREE)
    for drafter in DRAFTERS[1:]:
        assert crew.told(drafter, Apply) == []
        assert crew.told(drafter, Open) == [Open(0), Open(1)]
