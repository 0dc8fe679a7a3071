"""Steps whose gradients are not finite: told by number, and the end of a training that learns nothing."""

from typing import Any

import pytest

pytest.importorskip("torch")

from dflash_run.training.unmoved import MOST, Unmoved  # noqa: E402

GOOD: dict[str, Any] = {"applied": True, "grad_norm": 1.0}
NAN: dict[str, Any] = {"applied": False, "grad_norm": float("nan")}
EMPTY: dict[str, Any] = {"applied": False, "grad_norm": 0.0}


def after(*reports: dict[str, Any]) -> Unmoved:
    found = Unmoved()
    for step, report in enumerate(reports):
        found.note(step, report)
    return found


def test_a_few_steps_are_named_and_many_are_counted() -> None:
    assert after(GOOD, NAN, GOOD).failures() == ["step 1: the gradient was not finite: the weights stayed"]
    assert after(*[GOOD, NAN] * 50).failures() == [
        "steps 1, 3, 5 and 47 more: the gradient was not finite: the weights stayed"
    ]
    assert after(GOOD, EMPTY, NAN, EMPTY).failures()[0] == "steps 1 and 3: no slot had weight: the weights stayed"


def test_a_training_has_diverged_after_many_such_steps_in_a_row() -> None:
    assert not after(GOOD, *[NAN] * (MOST - 1)).diverged and not after(*[NAN] * 10, GOOD, *[NAN] * 15).diverged
    found = after(GOOD, *[NAN] * MOST)
    assert found.diverged and "the training was ended" in found.failures()[-1]
    assert not after(*[EMPTY] * 100).diverged, "batches without supervised tokens teach nothing, and break nothing"


def test_a_training_none_of_whose_steps_moved_anything_came_to_nothing() -> None:
    assert "nothing was learnt" in (after(NAN, NAN).lost() or "")
    assert after(NAN, GOOD).lost() is None and after().lost() is None and after(EMPTY).lost() is None
