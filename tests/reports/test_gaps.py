"""Scalars that are not finite: a gap in the curve, and the steps in words."""

from pathlib import Path

import numpy as np

from reports.draw.training import learning, thin
from reports.sampled import read_scalars


def test_a_value_that_is_not_finite_is_a_gap_and_its_steps_are_named(tmp_path: Path) -> None:
    values = ["4.0", "null", "NaN", "3.0", "Infinity", "2.0"]
    lines = [f'{{"step": {step}, "loss": {value}, "note": "x"}}' for step, value in enumerate(values, 1)]
    (tmp_path / "scalars.jsonl").write_text("\n".join(lines))
    missing: list[str] = []
    scalars = read_scalars(tmp_path, missing)
    assert scalars is not None and set(scalars.series) == {"loss"}
    assert np.isnan(scalars["loss"][1]).tolist() == [False, True, True, False, True, False]
    assert missing == ["scalars.jsonl: loss is not finite at steps 2, 3, 5: a gap in its curve"]
    plate = learning("k", "run", scalars)
    assert plate is not None and "loss from 4 to 2, not finite 3 times" in plate.alt
    (line,) = plate.figure.axes[0].get_lines()
    assert np.isnan(np.asarray(line.get_ydata(), float)).sum() == 3 and line.get_marker() == "."


def test_a_loss_that_was_never_finite_is_said_and_drawn_as_nothing(tmp_path: Path) -> None:
    (tmp_path / "scalars.jsonl").write_text("\n".join(f'{{"step": {k}, "loss": null}}' for k in range(20)))
    missing: list[str] = []
    scalars = read_scalars(tmp_path, missing)
    assert scalars is not None and "and 12 more" in missing[0]
    plate = learning("k", "run", scalars)
    assert plate is not None and "never finite" in plate.alt


def test_a_gap_stays_a_gap_where_a_long_series_is_thinned() -> None:
    values = np.ones(5_000)
    values[2_500] = np.nan
    assert np.isnan(thin(np.arange(5_000.0), values)[1]).sum() == 1


def test_a_curve_through_the_steps_of_drafters_that_trained_apart_says_so(tmp_path: Path) -> None:
    lines = [f'{{"step": {k}, "drafter": {k % 2}, "loss": 1.0}}' for k in range(1, 9)]
    (tmp_path / "scalars.jsonl").write_text("\n".join(lines))
    apart = read_scalars(tmp_path, [])
    (tmp_path / "scalars.jsonl").write_text('{"step": 1, "loss": 1.0}')
    together = read_scalars(tmp_path, [])
    assert apart is not None and together is not None
    captions = [plate.caption for plate in (learning("k", "run", each) for each in (apart, together)) if plate]
    assert [("trained apart" in caption) for caption in captions] == [True, False]
