"""The launcher before workers that follow a script: what it tells whom, and in which order."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from dflash_run.limits import Limits
from dflash_run.messages import Applied, Apply, Broken, Fenced, Forget, Gone, Group, Grouped, Open, Quiet, Ready, Train
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


def test_a_batch_is_not_recalled_before_the_word_of_it_that_was_held_up() -> None:
    """Target 1 dies while the drafters regroup after a step was applied: what they were to fetch of it is recalled."""

    def scene(crew: Scripted) -> Iterator[Said]:
        yield from opening(crew, 5)
        for number in range(3):
            yield crew.trains(number)
        yield [(DRAFTERS[1], Applied(0))]
        yield [(DRAFTERS[0], KILLED)]
        yield crew.answers(1)
        yield [(("target", 1), KILLED)]
        yield [(drafter, Fenced(1)) for drafter in DRAFTERS[1:]]
        yield [(DRAFTERS[1], Quiet(1, 0)), (DRAFTERS[2], Quiet(1, -1))]
        yield [(drafter, Grouped(1)) for drafter in DRAFTERS[1:]]

    crew = played(scene, **THREE)
    (recalled,) = [forget.batch for forget in crew.told(DRAFTERS[2], Forget)]
    told = [message for message in crew.told(DRAFTERS[2]) if getattr(message, "batch", None) == recalled]
    assert [type(message) for message in told[:2]] == [Train, Forget]


def test_a_step_that_one_loss_completes_is_abandoned_where_another_took_a_part_of_it() -> None:
    """Drafters 0 and 1 die: without drafter 0 step 0 is complete, but drafter 1 would never say that it applied it."""

    def scene(crew: Scripted) -> Iterator[Said]:
        yield from opening(crew, 6)
        yield crew.trains(1)
        yield crew.trains(2)
        yield [(DRAFTERS[0], KILLED)]
        yield [(DRAFTERS[1], KILLED)]
        yield from regrouped(2, applied=-1, epoch=2)

    crew = played(scene, **THREE)
    assert crew.told(DRAFTERS[2], Apply) == []
    assert crew.told(DRAFTERS[2], Open) == [Open(0), Open(1)]


def test_time_does_not_go_back_where_work_is_done_after_the_time_at_which_a_run_ends() -> None:
    def scene(crew: Scripted) -> Iterator[Said]:
        yield [(("target", 0), Ready()), (("drafter", 0), Ready())]
        yield crew.answers(0)
        time.sleep(0.1)
        yield crew.answers(0)

    launcher, run, seen = launched(Scripted(scene), Limits(at_s=0.05), data={"batches": 20})
    assert launcher.run() == 0.05 and run.dispatcher.ended == "at_s"
    times = [at for at, *_ in seen]
    assert times == sorted(times) and times[-1] == 0.05


def test_drafters_whose_first_group_does_not_form_are_grouped_anew_before_they_train() -> None:
    def scene(crew: Scripted) -> Iterator[Said]:
        yield [(("target", target), Ready()) for target in range(2)] + [(drafter, Ready()) for drafter in DRAFTERS]
        for drafter in DRAFTERS:
            yield [(drafter, Grouped(-1)), (drafter, Broken(0, "DistStoreError: wait timeout"))]
        yield crew.answers(0)
        yield from regrouped(0, 1, 2, applied=-1)

    crew = played(scene, **THREE)
    for drafter in DRAFTERS:
        told = [message for message in crew.told(drafter) if not isinstance(message, Train)]
        assert [type(message).__name__ for message in told] == ["Group", "Quiesce", "Group", "Open"]
        assert [group.epoch for group in crew.told(drafter, Group)] == [0, 1]
    assert any(crew.told(drafter, Train) for drafter in DRAFTERS)
