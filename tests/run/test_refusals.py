"""Batches that arrive spoilt: who is given up for it, and what becomes of the batches."""

from collections.abc import Callable

import pytest

from dflash_run.limits import Limits
from tests.run.scripted import Prompt, launched

BATCHES = 60
Spoilt = Callable[[int, int, int], bool]


def played(spoilt: Spoilt, targets: int, drafters: int, sync: str = "step") -> tuple[Prompt, str, str, int]:
    """The crew, how the run ended, what broke it off, and how many batches were trained; the others wait."""
    workers = [("target", t) for t in range(targets)] + [("drafter", d) for d in range(drafters)]
    crew = Prompt(workers, spoilt)
    launcher, run, _ = launched(
        crew,
        Limits(close_s=1.0),
        topology={"targets": targets, "drafters": drafters},
        dispatch={"policy": "shared", "depth": 2},
        data={"batches": BATCHES},
        training={"sync": sync},
    )
    launcher.run()
    places = run.dispatcher.ledger.counts()
    assert places["lost"] == 0
    assert run.dispatcher.ended is not None
    return crew, run.dispatcher.ended, launcher.broken, places["trained"]


@pytest.mark.parametrize("sync", ["none", "step"])
def test_a_batch_that_the_only_drafter_always_refuses_costs_no_worker_and_ends_the_run_in_order(sync: str) -> None:
    crew, ended, broken, trained = played(lambda batch, target, drafter: batch == 7, 4, 1, sync)
    assert crew.given_up == [] and ended == "interrupted" and 0 < trained < BATCHES
    assert broken.startswith("batch 7 was refused 3 times") and broken.endswith("by drafter/0: checksum")


@pytest.mark.parametrize("drafters", [2, 3])
def test_a_batch_that_everyone_refuses_costs_at_most_a_target_and_a_drafter(drafters: int) -> None:
    crew, ended, broken, trained = played(lambda batch, target, drafter: batch == 7, 4, drafters)
    roles = [role for role, _ in crew.given_up]
    assert roles.count("target") <= 1 and roles.count("drafter") <= 1
    assert ended == "interrupted" and broken.startswith("batch 7 was refused") and 0 < trained < BATCHES


@pytest.mark.parametrize("targets", [1, 2, 4])
def test_a_drafter_that_refuses_everything_is_given_up_and_everything_is_trained(targets: int) -> None:
    crew, ended, broken, trained = played(lambda batch, target, drafter: drafter == 0, targets, 2)
    assert ended == "data_exhausted" and trained == BATCHES and not broken
    assert ("drafter", 0) in crew.given_up and len([each for each in crew.given_up if each[0] == "target"]) <= 1


@pytest.mark.parametrize("drafters", [1, 2])
def test_a_target_of_which_nothing_arrives_whole_is_given_up_and_everything_is_trained(drafters: int) -> None:
    crew, ended, broken, trained = played(lambda batch, target, drafter: target == 0, 3, drafters)
    assert ended == "data_exhausted" and trained == BATCHES and not broken
    assert set(crew.given_up) <= {("target", 0)}


def test_under_none_no_drafter_is_given_up_for_a_refusal_since_what_it_trained_would_be_lost() -> None:
    crew, ended, broken, _ = played(lambda batch, target, drafter: batch == 7, 4, 2, "none")
    assert all(role == "target" for role, _ in crew.given_up) and ended == "interrupted" and broken
