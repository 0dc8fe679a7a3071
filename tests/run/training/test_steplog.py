"""What is logged of the steps, and when a training is given up, told by what drafters report."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from dflash_run.messages import Applied  # noqa: E402
from dflash_run.training.briefing import TrainingBriefing  # noqa: E402
from dflash_run.training.heldout import HeldOutFiles  # noqa: E402
from dflash_run.training.messages import Evaluated  # noqa: E402
from dflash_run.training.progress import Progress  # noqa: E402
from dflash_run.training.scalars import FILE, Scalars  # noqa: E402
from dflash_run.training.unmoved import MOST  # noqa: E402

NAN = float("nan")


def briefing_of(folder: Path, groups: int = 1, every: int = 1, before: int = 0) -> TrainingBriefing:
    """Of a training that neither saves nor evaluates; what is not needed for that is left out."""
    absent: Any = None
    return TrainingBriefing(
        plan=absent,
        progress=Progress(ids=range(10_000), planned=10_000, before=set(), steps_before=before),
        slots=absent,
        on_host=True,
        scalars=Scalars(folder, "none", "run", {}),
        saving=None,
        held_out=HeldOutFiles([], folder),
        save_every=0,
        evaluate_every=0,
        log_every=every,
        groups=groups,
    )


def step(briefing: TrainingBriefing, number: int, *drafters: int, finite: bool = True) -> None:
    """These drafters apply a step of the dispatcher's, which is then committed."""
    report = {"applied": finite, "grad_norm": 1.0 if finite else NAN, "loss": float(number)}
    for drafter in drafters:
        briefing.heard(("drafter", drafter), Applied(number, report))
    list(briefing.committed(number, (number,), drafters))


def lines(briefing: TrainingBriefing, folder: Path) -> list[dict[str, Any]]:
    """All that is logged, now that it is over."""
    briefing.scalars.close()
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def test_a_drafter_that_trains_apart_and_is_behind_is_logged_and_given_up_when_it_diverges(tmp_path: Path) -> None:
    briefing = briefing_of(tmp_path, groups=2)
    for number in range(MOST):  # drafter 0 is twice as fast
        step(briefing, 4 * number, 0)
        step(briefing, 4 * number + 2, 0)
        step(briefing, 2 * number + 1, 1, finite=False)
        assert briefing.steps.diverged == (number == MOST - 1)
    assert "drafter/1: the last 20 steps had gradients that were not finite" in (briefing.steps.lost() or "")
    assert all(failure.startswith("drafter/1: ") for failure in briefing.failures) and len(briefing.failures) == 2
    whose = [line["drafter"] for line in lines(briefing, tmp_path)]
    assert (whose.count(0), whose.count(1)) == (2 * MOST, MOST)


def test_drafters_that_train_apart_in_step_all_have_lines_at_any_interval(tmp_path: Path) -> None:
    briefing = briefing_of(tmp_path, groups=2, every=4)
    for number in range(16):
        step(briefing, number, number % 2)
    whose = [line["drafter"] for line in lines(briefing, tmp_path)]
    assert (whose.count(0), whose.count(1)) == (3, 3)  # the first, the fourth and the eighth of each


def test_of_a_step_that_all_apply_together_one_report_is_kept_and_no_drafter_is_named(tmp_path: Path) -> None:
    briefing = briefing_of(tmp_path)
    step(briefing, 0, 0, 1, 2, finite=False)
    step(briefing, 1, 2, 0, 1)
    written = lines(briefing, tmp_path)
    assert len(written) == 2 and not any("drafter" in line for line in written)
    assert briefing.failures == ["step 1: the gradient was not finite: the weights stayed"]


def test_lines_are_numbered_by_what_is_committed_as_held_out_figures_and_checkpoints_are(tmp_path: Path) -> None:
    briefing = briefing_of(tmp_path, every=2)
    briefing.heard(("drafter", 0), Applied(0, {"applied": False, "grad_norm": NAN, "loss": 9.0}))  # and is abandoned
    for window in (2, 3, 5, 6):  # 1 and 4 are dropped
        step(briefing, window, 0, 1)
    briefing.heard(("drafter", 0), Evaluated(briefing.progress.step, {"held_out_loss": 1.0}))
    told = [(line["step"], line.get("loss"), line.get("held_out_loss")) for line in lines(briefing, tmp_path)]
    assert told == [(1, 2.0, None), (2, 3.0, None), (4, 6.0, None), (4, None, 1.0)]
    assert briefing.failures == []


def test_a_step_that_nobody_could_report_is_counted_and_has_no_line(tmp_path: Path) -> None:
    briefing = briefing_of(tmp_path)
    step(briefing, 0, 0)
    step(briefing, 1)
    step(briefing, 2, 0)
    assert [line["step"] for line in lines(briefing, tmp_path)] == [1, 3]


def test_a_resumed_training_goes_on_in_the_numbers_of_the_first(tmp_path: Path) -> None:
    briefing = briefing_of(tmp_path, every=10, before=27)
    for window in range(14):
        step(briefing, window, 0, finite=window != 4)
    assert [line["step"] for line in lines(briefing, tmp_path)] == [28, 30, 40]
    assert briefing.failures == ["step 32: the gradient was not finite: the weights stayed"]


def test_steps_of_drafters_that_train_apart_have_one_number_each(tmp_path: Path) -> None:
    briefing = briefing_of(tmp_path, groups=2)
    for window in (0, 2, 1, 4, 6, 3):
        step(briefing, window, window % 2)
    assert [(line["step"], line["drafter"]) for line in lines(briefing, tmp_path)] == [
        (1, 0), (2, 0), (3, 1), (4, 0), (5, 0), (6, 1)
    ]  # fmt: skip
