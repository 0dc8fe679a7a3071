"""The learning rate over a run."""

import pytest

from dflash_run.training.schedule import learning_rate


def test_the_rate_rises_over_the_warm_up_and_falls_by_a_cosine() -> None:
    rates = [learning_rate(p, peak=2.0, warmup=0.2) for p in (0.0, 0.1, 0.2, 0.6, 1.0)]
    assert rates == pytest.approx([0.0, 1.0, 2.0, 1.0, 0.0])
    assert learning_rate(-0.1, peak=2.0, warmup=0.2) == 0.0
    assert learning_rate(1.1, peak=2.0, warmup=0.2) == pytest.approx(0.0)


def test_a_run_of_nothing_but_warm_up_or_none_has_its_peak() -> None:
    assert learning_rate(0.0, peak=2.0, warmup=0.0) == 2.0
    assert learning_rate(1.0, peak=2.0, warmup=1.0) == 2.0 and learning_rate(0.5, peak=2.0, warmup=1.0) == 1.0
