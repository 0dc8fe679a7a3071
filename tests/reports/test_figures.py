"""What figures plot, read back from their axes: the numbers are those of the summary and the trace."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle, StepPatch

from reports.draw import batches, changes, comparing, overtime, training, workers
from reports.draw.style import STATE_COLOURS, Plate, render
from reports.durations import durations, step_seconds
from reports.flow import commits, eta_history, rate_over_time
from reports.levels import lane_levels, memory_levels
from reports.metrics import STATES
from reports.moved import moved, pace_of_summary
from reports.page.runfigures import figures_of
from reports.page.zoom import Zoom, zoom_of
from reports.runs import Run
from reports.sampled import Samples
from reports.shapes import mixing_of, shapes_of
from reports.spans import worker_spans
from tests.reports.test_runs import only, recorded_run

SECTIONS: dict[str, Any] = {
    "topology": {"targets": 2, "drafters": 2},
    "dispatch": {"policy": "bucketed", "depth": 2},
    "data": {"lengths": [64 * (1 + k % 16) for k in range(360)], "batch": {"samples": 3}, "buckets": [300, 600]},
    "timings": {"target": {"seconds": 1, "cv": 0.3}, "drafter": {"seconds": 1.1}, "step": {"seconds": 0.2}},
    "training": {"sync": "pooled", "accumulate": 2},
    "memory": {"hidden_bytes_per_token": 1000, "host_limit": 10**8, "drafter_model_bytes": 10**6},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return only(recorded_run(tmp_path_factory.mktemp("runs") / "run", **SECTIONS))


def bars(plate: Plate, axis: int = 0) -> list[Rectangle]:
    return [patch for patch in plate.figure.axes[axis].patches if isinstance(patch, Rectangle)]


def stairs(plate: Plate, axis: int = 0) -> list[StepPatch]:
    return [patch for patch in plate.figure.axes[axis].patches if isinstance(patch, StepPatch)]


def test_the_bars_of_the_workers_are_the_shares_of_the_summary(run: Run) -> None:
    drawn = bars(workers.worker_bars("k", "run", run.summary["workers"]))
    expected = [
        100 * worker[f"{state}_s"] / worker["lifetime_s"]
        for worker in run.summary["workers"]
        for state in STATES
        if any(each[f"{state}_s"] > 0 for each in run.summary["workers"])
    ]
    assert [bar.get_width() for bar in drawn] == pytest.approx(expected)
    assert sum(expected) == pytest.approx(400)


def test_the_spans_of_a_short_timeline_add_up_to_the_summary(run: Run) -> None:
    assert run.recorded is not None
    plate = workers.timeline("k", "run", worker_spans(run.recorded), run.recorded.end_s)
    scale = 60.0 if "[min]" in plate.figure.axes[0].get_xlabel() else 1.0
    drawn = sum(
        float(np.ptp(path.vertices[:, 0]))
        for collection in plate.figure.axes[0].collections
        if isinstance(collection, PolyCollection)
        for path in collection.get_paths()
    )
    assert drawn * scale == pytest.approx(sum(worker["lifetime_s"] for worker in run.summary["workers"]))


def test_the_pixels_of_a_long_timeline_are_the_shares_of_each_state(run: Run) -> None:
    assert run.recorded is not None
    spans = worker_spans(run.recorded)
    image = workers.share_image(spans, run.recorded.end_s, bins=50, row=203)
    edges = np.linspace(0.0, run.recorded.end_s, 51)
    for row, each in enumerate(spans):
        part = image[row * 203 : (row + 1) * 203 - 3]
        for state, name in enumerate(STATES):
            colour = [int(STATE_COLOURS[name][k : k + 2], 16) for k in (1, 3, 5)]
            shown = (part[:, :, :3] == colour).all(axis=2).mean(axis=0)
            np.testing.assert_allclose(shown, each.shares(edges)[state], atol=0.006)


def test_a_long_run_is_drawn_as_an_image_and_its_parts_span_by_span(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run.recorded is not None
    monkeypatch.setattr(workers, "_EXACT", 20)
    spans, end_s = worker_spans(run.recorded), run.recorded.end_s
    plate = workers.timeline("k", "run", spans, end_s)
    assert any(isinstance(child, AxesImage) for child in plate.figure.axes[0].get_children())
    assert "1,200 columns" in plate.caption
    parts = workers.details("k", "run", spans, end_s)
    assert len(parts) == 3 and all(part.detail for part in parts)


def test_the_zoomable_timeline_holds_the_seconds_of_the_summary(run: Run) -> None:
    assert run.recorded is not None
    zoom = zoom_of("k", worker_spans(run.recorded), run.recorded.end_s)
    width = zoom.end_s / zoom.shares.shape[2] / 255
    for row, worker in enumerate(run.summary["workers"]):
        for state, name in enumerate(zoom.states):
            shown = float(zoom.shares[row, state].sum()) * width
            assert shown == pytest.approx(worker[f"{name}_s"], abs=0.002 * zoom.end_s), (worker["name"], name)


def test_the_steps_of_the_throughput_hold_the_trained_tokens(run: Run) -> None:
    assert run.recorded is not None
    plate = overtime.throughput("k", "run", rate_over_time(commits(run.recorded)), run.summary)
    (drawn,) = stairs(plate)
    values, edges, _ = drawn.get_data()
    factor = {"tok/s": 1.0, "Ktok/s": 1e3}[re.findall(r"\[(.*)\]", plate.figure.axes[0].get_ylabel())[0]]
    seconds = 60.0 if "[min]" in plate.figure.axes[0].get_xlabel() else 1.0
    assert float((values * np.diff(edges)).sum()) * factor * seconds == pytest.approx(run.summary["tokens"]["trained"])
    lines = [line.get_ydata() for line in plate.figure.axes[0].lines]
    assert lines[0][0] * factor == pytest.approx(run.summary["throughput"]["steady_tokens_per_s"])


def test_the_lanes_show_mean_and_capacity_of_the_summary(run: Run) -> None:
    assert run.recorded is not None
    plate = overtime.lanes("k", "run", lane_levels(run.recorded), run.recorded.end_s)
    for axis, lane in enumerate(run.summary["lanes"]):
        band, mean = stairs(plate, axis)
        values, edges, _ = mean.get_data()
        assert np.average(values, weights=np.diff(edges)) == pytest.approx(lane["mean"])
        assert band.get_data().values.max() == lane["max"]
        assert plate.figure.axes[axis].lines[0].get_ydata()[0] == lane["capacity"]


def test_the_last_estimate_of_the_end_is_the_truth(run: Run) -> None:
    assert run.recorded is not None
    history = eta_history(commits(run.recorded), run.summary["tokens"]["planned"], run.recorded.end_s, True)
    axis = overtime.eta("k", "run", history).figure.axes[0]
    estimated, truth = axis.lines[0].get_ydata(), axis.lines[1].get_ydata()[0]
    assert estimated[-1] == pytest.approx(truth) and len(estimated) >= 20


def test_the_memory_peaks_at_the_figure_of_the_summary(run: Run) -> None:
    assert run.recorded is not None
    plate = overtime.memory("k", "run", memory_levels(run.recorded), run.recorded.end_s, 10**6)
    host, devices = stairs(plate, 0), stairs(plate, 1)
    unit = {"kB": 1e3, "MB": 1e6}[re.findall(r"\[(.*)\]", plate.figure.axes[0].get_ylabel())[0]]
    assert host[0].get_data().values.max() * unit == run.summary["memory"]["host_peak_bytes"]
    unit = {"kB": 1e3, "MB": 1e6}[re.findall(r"\[(.*)\]", plate.figure.axes[1].get_ylabel())[0]]
    shown = sorted(line.get_data().values.max() * unit for line in devices)
    assert shown == pytest.approx(sorted(run.summary["memory"]["drafter_peak_bytes"]))


def test_the_histograms_of_the_step_times_hold_every_batch(run: Run) -> None:
    assert run.recorded is not None
    plate = batches.step_times("k", "run", durations(run.recorded), step_seconds(run.recorded))
    counts = [sum(bar.get_height() for bar in bars(plate, axis)) for axis in range(3)]
    planned = run.summary["batches"]["planned"]
    assert counts == [planned, planned, run.summary["optimizer_steps"]]
    workers_plate = batches.worker_times("k", "run", durations(run.recorded))
    assert len(workers_plate.figure.axes[0].get_yticks()) == 4


def test_lengths_padding_and_mixing_are_those_of_the_summary(run: Run) -> None:
    assert run.recorded is not None
    shapes = shapes_of(run.recorded)
    plate = batches.lengths("k", "run", shapes)
    assert sum(bar.get_height() for bar in bars(plate)) == run.summary["batches"]["planned"]
    assert plate.figure.axes[1].lines[0].get_ydata()[0] == pytest.approx(100 * run.summary["tokens"]["padding_share"])
    mixed = batches.mixing("k", "run", mixing_of(commits(run.recorded)), run.summary)
    shown = sum(bar.get_height() for bar in bars(mixed)[1:])
    mixing = run.summary["mixing"]
    assert shown == pytest.approx(100 * mixing["mixed_windows"] / mixing["windows"])
    assert f"{mixing['lag1_length_correlation']:+.2f}" in mixed.figure.axes[1].get_title(loc="left")


def test_the_balance_shows_each_drafter_s_share(run: Run) -> None:
    plate = workers.balance("k", "run", run.summary["balance"])
    for axis, what in enumerate(("batches", "tokens")):
        counts = run.summary["balance"][what]
        assert [bar.get_height() for bar in bars(plate, axis)] == pytest.approx([100 * c / sum(counts) for c in counts])


def test_what_a_training_wrote_is_drawn_as_it_is() -> None:
    steps = np.arange(10.0)
    scalars = Samples({"loss": (steps, 5 - steps / 4), "held_out_loss": (steps[::5], 5 - steps[::5] / 5)})
    plate = training.learning("k", "run", scalars)
    assert plate is not None
    assert [line.get_ydata().tolist() for line in plate.figure.axes[0].lines] == [
        (5 - steps / 4).tolist(),
        (5 - steps[::5] / 5).tolist(),
    ]
    assert training.learning("k", "run", Samples({"note": (steps, steps)})) is None
    devices = training.devices("k", "run", Samples({"utilization/cuda:0": (steps, steps / 10)}))
    assert devices is not None and devices.figure.axes[0].lines[0].get_ydata().tolist() == (10 * steps).tolist()


def test_a_long_series_is_thinned_by_means_and_keeps_its_mean() -> None:
    x, values = training.thin(np.arange(10_000.0), np.arange(10_000.0) % 7, most=100)
    assert len(x) == 100 and values.mean() == pytest.approx((np.arange(10_000) % 7).mean())


def test_factors_and_rates_are_those_of_the_runs(run: Run, tmp_path: Path) -> None:
    timings = SECTIONS["timings"] | {"drafter": {"seconds": 2.2}}
    slower = only(recorded_run(tmp_path / "slower", **{**SECTIONS, "timings": timings}))
    changed = moved(pace_of_summary(run.summary), pace_of_summary(slower.summary))
    plate = changes.factors(changed, run.name, slower.name)
    shown = [1 + bar.get_width() for bar in bars(plate)]
    assert shown == pytest.approx([each.factor for each in changed if each.factor])
    drawn = bars(comparing.rates([run, slower]))
    rates = [each.summary["throughput"]["steady_tokens_per_s"] for each in (run, slower)]
    assert drawn[0].get_width() / drawn[1].get_width() == pytest.approx(rates[0] / rates[1])
    overlay = comparing.overlay([run, slower])
    assert overlay is not None
    assert [line.get_ydata()[-1] for line in overlay.figure.axes[0].lines] == pytest.approx([100, 100])


def test_the_frontier_passes_through_the_candidates_that_nothing_beats() -> None:
    candidates = [
        {"topology": {"targets": t, "drafters": 1}, "dispatch": {"policy": "shared"}} | {"throughput": r, "memory": m}
        for t, r, m in ((1, 10.0, 10**9), (2, 20.0, 2 * 10**9), (3, 15.0, 3 * 10**9), (4, 30.0, 4 * 10**9))
    ]
    plate = changes.frontier(candidates)
    assert plate is not None
    assert plate.figure.axes[0].lines[0].get_ydata().tolist() == [10.0, 20.0, 30.0]
    assert plate.figure.axes[1].lines[0].get_xdata().tolist() == [2, 3, 5]
    assert changes.frontier([{"topology": {}}]) is None


# Rules for all of them -------------------------------------------------------------------------------------------


def test_every_figure_has_units_an_alt_text_and_a_caption(run: Run) -> None:
    plates = [each for each in figures_of(run) if isinstance(each, Plate)]
    assert len(plates) >= 10 and len({plate.key for plate in plates}) == len(plates)
    for plate in plates:
        assert len(plate.alt) > 30 and len(plate.caption) > 30, plate.key
        shared = plate.figure._supylabel.get_text() if plate.figure._supylabel else ""
        for axis in plate.figure.axes:
            named = axis.get_ylabel() or shared or [label.get_text() for label in axis.get_yticklabels()]
            assert named, plate.key
        assert plate.figure.axes[-1].get_xlabel(), plate.key


def test_every_figure_is_a_sound_drawing_for_both_themes(run: Run) -> None:
    for each in figures_of(run):
        if isinstance(each, Zoom):
            continue
        rendered = render(each)
        ElementTree.fromstring(rendered.svg)
        inline = ElementTree.fromstring(rendered.inline)
        ids = [element.get("id") for element in inline.iter() if element.get("id")]
        assert len(ids) == len(set(ids)) and all(str(name).startswith(each.key) for name in ids)
        assert "var(--ink,#1b1b1c)" in rendered.svg and "prefers-color-scheme:dark" in rendered.svg
        assert rendered.png.startswith(b"\x89PNG")


def test_names_from_files_cannot_break_a_drawing() -> None:
    names = ["$x_{$ <b>&\u0000", "_hidden", "名前\nline", "x" * 300]
    lanes = [{"name": "l", "capacity": 1, "mean": 0.0, "max": 0}]
    summary = {"workers": [], "lanes": lanes, "throughput": {"steady_tokens_per_s": 5.0, "ci95": None}}
    summary["throughput"] |= {"steady_ci95": None, "tokens_per_s": 5.0}
    runs = [Run(name=name, path=Path("x"), summary=dict(summary)) for name in names]
    for plate in (comparing.rates(runs), comparing.roles(runs)):
        ElementTree.fromstring(render(plate).svg)
