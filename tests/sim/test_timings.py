"""Measured timings: the file, resampling and modelling, the bootstrap, fitting, merging."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_sim.service import ServiceTimes, service_times
from dflash_sim.timings import MeasuredTimes, resample_profile
from dflash_sim.timings_file import (
    Profile,
    TimingsError,
    build_profile,
    parse_timings,
    read_timings,
    write_timings,
)
from dflash_sim.timings_fit import fit_from_events
from dflash_sim.timings_merge import merge_profiles
from dflash_sim.timings_table import Use


@dataclass
class Plan:
    """Batches of (samples, length)."""

    shapes: list[tuple[int, int]]

    def __post_init__(self) -> None:
        self.count = len(self.shapes)
        self.samples, self.length = np.array(self.shapes, dtype=np.int64).reshape(-1, 2).T
        self.slots = self.samples * self.length
        self.target_factor = np.ones(self.count)
        self.drafter_factor = np.ones(self.count)


@dataclass
class Timings:
    target: Any = None
    drafter: Any = None
    loader: Any = None
    transfer: Any = None
    step: Any = None


def shape(size: int, length: int, seconds: list[float], **more: Any) -> dict[str, Any]:
    return {"batch_size": size, "length": length, "seconds": seconds, **more}


def profile(samples: list[dict[str, Any]] | None = None, **more: Any) -> Profile:
    """A profile whose roles both hold `samples`; `more` replaces or adds top-level keys."""
    role = {"samples": samples or [shape(32, 2048, [8.0, 8.1, 8.4])]}
    return build_profile({"target": role, "drafter": role} | more)


def draw(
    measured: Profile, plan: Plan, anchors: int | None = None, **more: Any
) -> tuple[ServiceTimes, dict[str, Use]]:
    times = MeasuredTimes(measured, anchors=anchors)
    drawn = service_times(timings=Timings(), plan=plan, targets=2, drafters=2, measured=times, **more)
    return drawn, times.used


def refusal(run: Any, *args: Any, **more: Any) -> list[str]:
    with pytest.raises(TimingsError) as caught:
        run(*args, **more)
    return list(caught.value.faults)


# Resampled where profiled, modelled elsewhere


def test_a_profiled_shape_is_resampled_from_its_own_raw_samples() -> None:
    measured = profile([shape(32, 2048, [8.0, 8.1, 8.4]), shape(8, 512, [0.5, 0.6])])
    drawn, used = draw(measured, Plan([(32, 2048), (8, 512)] * 2000))
    times = drawn.target_times.times(0)
    assert set(times[::2]) == {8.0, 8.1, 8.4}
    assert set(times[1::2]) == {0.5, 0.6}
    assert times[::2].mean() == pytest.approx(np.mean([8.0, 8.1, 8.4]), rel=0.01)
    assert (used["target"].resampled, used["target"].modelled, used["target"].extrapolated) == (4000, 0, 0)
    assert used["target"].text() == "target: 4000 of 4000 batches resampled (shapes: 2)"


def test_one_profiled_shape_makes_times_proportional_to_slots() -> None:
    drawn, used = draw(profile([shape(32, 1000, [4.0])]), Plan([(16, 1000), (32, 500)]))
    assert drawn.target_times.times(0) == pytest.approx([2.0, 2.0])
    assert used["target"].terms == ("slots",)


def planted(size: int, length: int, anchors: int = 0) -> float:
    slots = size * length
    return 0.05 + 2e-6 * slots + 3e-10 * slots * length + 4e-6 * size * anchors


GRID = [(size, length) for size in (4, 16, 32) for length in (512, 1024, 4096)]


def test_the_model_recovers_planted_coefficients_within_the_grid_and_outside() -> None:
    measured = profile([shape(size, length, [planted(size, length)] * 2) for size, length in GRID])
    drawn, used = draw(measured, Plan([(8, 2048), (64, 8192)]))
    assert drawn.target_times.times(0) == pytest.approx([planted(8, 2048), planted(64, 8192)], rel=1e-6)
    found = dict(zip(used["target"].terms, used["target"].coefficients, strict=True))
    assert found == pytest.approx({"1": 0.05, "slots": 2e-6, "slots·length": 3e-10}, rel=1e-6)
    assert used["target"].fit_error < 1e-9


def test_the_model_keeps_mean_and_noise_of_noisy_samples() -> None:
    rng = np.random.default_rng(0)
    samples = [
        shape(size, length, list(planted(size, length) * rng.gamma(100, 0.01, size=200)))
        for size, length in GRID
    ]
    drawn, _ = draw(profile(samples), Plan([(8, 2048)] * 5000))
    times = drawn.target_times.times(0)
    assert times.mean() == pytest.approx(planted(8, 2048), rel=0.01)
    assert times.std() / times.mean() == pytest.approx(0.1, rel=0.05)


def test_noise_of_single_samples_does_not_bias_the_model() -> None:
    rng = np.random.default_rng(1)
    samples = [shape(8, length, [1e-5 * 8 * length * rng.gamma(25, 0.04)]) for length in range(500, 4000, 9)]
    drawn, _ = draw(profile(samples), Plan([(7, 2001)] * 20_000))
    assert drawn.target_times.times(0).mean() == pytest.approx(1e-5 * 7 * 2001, rel=0.03)


def test_modelled_times_are_never_negative() -> None:
    falling = [shape(1, 100, [1.0]), shape(1, 200, [0.9]), shape(1, 400, [0.5])]
    drawn, _ = draw(profile(falling), Plan([(1, 1), (1, 150), (1, 10_000)]))
    assert (drawn.target_times.times(0) >= 0).all()


def test_batches_outside_the_profiled_range_are_counted_as_extrapolated() -> None:
    measured = profile([shape(8, 512, [0.5]), shape(32, 2048, [8.0])])
    _, used = draw(measured, Plan([(8, 512), (16, 1024), (64, 2048), (8, 4096), (2, 512)]))
    use = used["drafter"]
    assert (use.resampled, use.modelled, use.extrapolated) == (1, 1, 3)
    assert "3 extrapolated beyond the profile" in use.text()


def test_a_listed_batch_is_known_by_its_slots_and_length() -> None:
    listed = Plan([(1, 2048)])
    listed.slots = np.array([65536])
    drawn, used = draw(profile([shape(32, 2048, [8.0])]), listed)
    assert drawn.target(0, 0) == 8.0
    assert used["target"].resampled == 1


def test_anchors_choose_among_profiled_shapes() -> None:
    samples = [shape(32, 2048, [3.0], anchors=256), shape(32, 2048, [5.0], anchors=512)]
    drawn, _ = draw(profile(drafter={"samples": samples}), Plan([(32, 2048)]), anchors=512)
    assert drawn.drafter(0, 0) == 5.0


def test_anchors_between_the_profiled_ones_are_modelled_and_beyond_them_extrapolated() -> None:
    samples = [
        shape(size, length, [planted(size, length, anchors)], anchors=anchors)
        for size, length in GRID
        for anchors in (128, 512)
    ]
    measured = profile(drafter={"samples": samples})
    between, used = draw(measured, Plan([(16, 1024)]), anchors=300)
    assert between.drafter(0, 0) == pytest.approx(planted(16, 1024, 300), rel=1e-6)
    assert used["drafter"].modelled == 1
    assert draw(measured, Plan([(16, 1024)]), anchors=1024)[1]["drafter"].extrapolated == 1


def test_anchors_that_the_profile_says_nothing_about_are_refused() -> None:
    one = profile(drafter={"samples": [shape(32, 2048, [3.0], anchors=256)]})
    two = profile(drafter={"samples": [shape(32, 2048, [3.0], anchors=each) for each in (256, 512)]})
    plan = Plan([(32, 2048)])
    assert draw(one, plan)[0].drafter(0, 0) == 3.0
    [other] = refusal(draw, one, plan, anchors=512)
    assert other.startswith("training.anchors: 512: drafter was measured with 256;")
    [missing] = refusal(draw, two, plan)
    assert missing.startswith("training.anchors: missing: drafter was measured with 256, 512;")


# As service times


def test_measured_noise_stays_with_the_batch_whatever_follows() -> None:
    measured = profile([shape(32, 2048, list(np.linspace(1, 2, 50)))])
    few, many = (draw(measured, Plan([(32, 2048)] * count), seed=4)[0] for count in (20, 2000))
    assert (few.target_times.times(0) == many.target_times.times(0)[:20]).all()
    assert (few.drafter_times.times(0) != few.target_times.times(0)).any()


def test_the_order_of_samples_in_the_file_does_not_matter() -> None:
    forwards, backwards = (profile([shape(1, 8, list(each))]) for each in ([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]))
    plan = Plan([(1, 8)] * 50)
    one, other = (draw(each, plan)[0].target_times.times(0) for each in (forwards, backwards))
    assert (one == other).all()


def test_a_given_role_wins_over_the_measured_one() -> None:
    @dataclass
    class Given:
        seconds: float | None = 0.9
        tokens_per_second: float | None = None
        cv: float | None = None
        distribution: Any = None
        first_seconds: float | None = None

    times = MeasuredTimes(profile([shape(1, 8, [5.0])]))
    timings = Timings(drafter=Given())
    drawn = service_times(timings=timings, plan=Plan([(1, 8)]), targets=1, drafters=1, measured=times)
    assert (drawn.target(0, 0), drawn.drafter(0, 0)) == (5.0, 0.9)
    assert set(times.used) == {"target"}


def test_measured_first_seconds_are_drawn_for_each_worker_once() -> None:
    role = {"samples": [shape(1, 8, [1.0])], "first_seconds": [60.0, 61.0]}
    drawn, _ = draw(profile(drafter=role), Plan([(1, 8)] * 4))
    assert {drawn.drafter(0, 0), drawn.drafter(1, 1)} <= {60.0, 61.0}
    assert (drawn.drafter(0, 2), drawn.drafter(1, 3)) == (1.0, 1.0)


def test_worker_factors_multiply_and_must_fit_the_topology() -> None:
    def skewed(*factors: float) -> Profile:
        return profile(drafter={"samples": [shape(1, 8, [2.0])], "worker_factors": factors})

    drawn, _ = draw(skewed(1.0, 1.5), Plan([(1, 8)]))
    assert (drawn.drafter(0, 0), drawn.drafter(1, 0)) == (2.0, 3.0)
    [fault] = refusal(draw, skewed(1.0, 1.0, 1.5), Plan([(1, 8)]))
    assert fault.startswith("drafter.worker_factors: 3 values: the topology has 2 drafters;")


def test_loader_step_and_transfer_are_resampled() -> None:
    measured = profile(step={"seconds": [0.2, 0.3]}, loader={"seconds": [0.01]}, transfer={"seconds": [0.1]})
    drawn, _ = draw(measured, Plan([(32, 2048)] * 3))
    assert (drawn.loader(2), drawn.transfer(2)) == (0.01, 0.1)
    steps = [drawn.step(step) for step in range(5000)]
    assert set(steps) == {0.2, 0.3}
    assert drawn.step(4999) == steps[4999], "a step looked up again costs the same"


def test_transfers_of_known_size_use_the_bandwidth() -> None:
    speeds: dict[str, Any] = {"transfer": {"bytes_per_second": [1e9], "seconds": [7.0]}}
    plan = Plan([(2, 500)])
    assert draw(profile(**speeds), plan, batch_bytes=np.array([3e9]))[0].transfer(0) == 3.0
    assert draw(profile(**speeds, hidden_bytes_per_token=1e6), plan)[0].transfer(0) == 1.0
    assert draw(profile(**speeds), plan)[0].transfer(0) == 7.0
    [fault] = refusal(draw, profile(transfer={"bytes_per_second": [1e9]}), plan)
    assert fault.startswith("hidden_bytes_per_token: missing:")


def test_a_role_that_was_not_measured_is_refused_with_the_remedy() -> None:
    only_targets = build_profile({"target": {"samples": [shape(1, 8, [1.0])]}})
    [fault] = refusal(draw, only_targets, Plan([(1, 8)]))
    assert fault.startswith("drafter.samples: missing:") and "dflash-sim fit" in fault


# The bootstrap of the profile


def test_a_resampled_profile_draws_each_shape_from_its_own_samples() -> None:
    seconds = list(np.linspace(1, 2, 40))
    measured = profile([shape(1, 8, seconds), shape(1, 16, [5.0, 6.0])], step={"seconds": [0.1, 0.2]})
    again = resample_profile(measured, np.random.default_rng(0))
    assert again.target is not None
    first, second = again.target.samples
    assert len(first.seconds) == 40 and set(first.seconds) < set(seconds)
    assert set(second.seconds) <= {5.0, 6.0}
    assert again == resample_profile(measured, np.random.default_rng(0))
    assert again != resample_profile(measured, np.random.default_rng(1))


def test_resampled_profiles_vary_as_the_mean_of_the_measurement_does() -> None:
    rng = np.random.default_rng(0)
    seconds = rng.normal(10, 1, size=25)
    measured = profile([shape(1, 8, list(seconds))])
    means = []
    for _ in range(800):
        again = resample_profile(measured, rng)
        assert again.target is not None
        means.append(np.mean(again.target.samples[0].seconds))
    assert np.std(means) == pytest.approx(seconds.std() / 5, rel=0.1)


# The file

PAIR = {"a": "target", "b": "drafter", "shared": "cuda:0", "factor_a": 1.3, "factor_b": 1.1, "step_b": 1.2}
FULL: dict[str, Any] = {
    "version": 1,
    "machine": {"gpu": "H200", "gpus": 8},
    "versions": {"torch": "2.11"},
    "settings": {"model": {"taps": [1, 2]}},
    "target": {"samples": [shape(32, 2048, [8.1, 1 / 3])], "first_seconds": [61], "worker_factors": [1, 2.5]},
    "drafter": {"samples": [shape(32, 2048, [3.0], anchors=512, parts={"forward": [1.0], "step": [2.0]})]},
    "step": {"seconds": [0.0, 0.2]},
    "loader": {"seconds": [0.01]},
    "transfer": {"seconds": [0.1], "bytes_per_second": [55e9]},
    "hidden_bytes_per_token": 51200,
    "interference": {"cores": 2, "pairs": [PAIR]},
    "memory": {"target": {"peak_bytes": 1000}},
}


def test_a_written_file_reads_back_equal(tmp_path: Path) -> None:
    measured = parse_timings(json.dumps(FULL))
    write_timings(measured, tmp_path / "timings.json")
    assert read_timings(tmp_path / "timings.json") == measured
    write_timings(read_timings(tmp_path / "timings.json"), tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "timings.json").read_bytes()


EXTREME = [
    (["step", "seconds", 0], 1e308, "less than or equal to 1000000000"),
    (["step", "seconds", 0], 10**400, "finite|valid number"),
    (["loader", "seconds", 0], 1e10, "less than or equal to 1000000000"),
    (["target", "samples", 0, "seconds", 0], 1e308, "less than or equal to 1000000000"),
    (["target", "samples", 0, "seconds", 0], 1e-308, "greater than or equal to"),
    (["target", "worker_factors", 0], 1e-308, "greater than or equal to"),
    (["target", "first_seconds", 0], 1e308, "less than or equal to 1000000000"),
    (["transfer", "seconds", 0], 1e308, "less than or equal to 1000000000"),
    (["transfer", "bytes_per_second", 0], 1e-308, "greater than or equal to 1;"),
    (["transfer", "bytes_per_second", 0], 1e308, "less than or equal to 1000000000000000;"),
    (["hidden_bytes_per_token"], 1e308, "less than or equal to 1000000000000;"),
]


@pytest.mark.parametrize(("keys", "value", "rule"), EXTREME, ids=str)
def test_numbers_that_no_machine_gives_are_refused_with_their_bound(
    keys: list[str | int], value: float, rule: str
) -> None:
    bad = json.loads(json.dumps(FULL))
    inner = bad
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    [fault] = refusal(parse_timings, json.dumps(bad))
    assert fault.startswith(".".join(map(str, keys)) + ": ") and re.search(rule, fault) and len(fault) < 200


def test_a_fault_far_down_is_told_with_a_short_key() -> None:
    deep = '{"version": 1, "machine": ' + '{"a": ' * 500 + "1" + "}" * 500 + "}"
    [fault] = refusal(parse_timings, deep)
    assert fault.startswith("machine") and "…" in fault and len(fault) < 300


@pytest.mark.parametrize(("spread", "doubted"), [(1.0, False), (9.0, True)])
def test_a_model_far_off_its_own_samples_is_doubted_in_words(spread: float, doubted: bool) -> None:
    known = ((100, 1.0), (110, spread), (120, 1.0), (130, spread))
    _, used = draw(profile([shape(1, length, [seconds]) for length, seconds in known]), Plan([(1, 105), (1, 100)]))
    doubt = used["target"].doubt()
    assert (doubt is not None) == doubted
    if doubt is not None:
        assert doubt.startswith("target: 1 of 2 batches") and "profile again" in doubt and "\n" not in doubt


@pytest.mark.parametrize(("lengths", "beyond"), [((100, 130, 200), False), ((150, 200, 120), True)])
def test_batches_beyond_all_that_was_profiled_are_told_when_they_are_most(
    lengths: tuple[int, ...], beyond: bool
) -> None:
    known = profile([shape(1, length, [length / 100]) for length in (100, 110, 120, 130)])
    _, used = draw(known, Plan([(1, length) for length in lengths]))
    told = "target: 2 of 3 batches lie beyond all that was profiled; profile with these data"
    assert used["target"].doubt() == (told if beyond else None)


def test_every_fault_is_named_in_one_pass() -> None:
    bad = json.loads(json.dumps(FULL))
    bad["target"]["samples"][0]["seconds"][1] = -1
    bad["target"]["first_secnds"] = [1]
    bad["drafter"]["samples"][0]["batch_size"] = "32"
    del bad["drafter"]["samples"][0]["length"]
    bad["step"]["seconds"] = []
    bad["loader"] = None
    bad["hidden_bytes_per_token"] = True
    faults = refusal(parse_timings, json.dumps(bad))
    assert all("\n" not in fault for fault in faults)
    keys = {fault.split(":")[0] for fault in faults}
    assert keys == {
        "target.samples.0.seconds.1",
        "target.first_secnds",
        "drafter.samples.0.batch_size",
        "drafter.samples.0.length",
        "step.seconds",
        "hidden_bytes_per_token",
    }
    assert any("did you mean first_seconds?" in fault for fault in faults)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        (b"\xff\xfe\xfa", "not JSON"),
        ("[]", "(file): []"),
        ("{}", "version"),
        ('{"version": 2}', "this program reads version 1"),
        ('{"version": true}', "version: True"),
        ('{"version": 1, "version": 1}', "version: given twice"),
        ('{"version": 1, "memory": {"peak": NaN}}', "memory.peak: NaN: numbers must be finite"),
        ('{"version": 1, "step": {"seconds": [-Infinity]}}', "step.seconds.0: -Infinity: numbers must be finite"),
        ('{"version": 1, "step": {"seconds": [1e999]}}', "step.seconds.0: Infinity: numbers must be finite"),
        ('{"version": 1, "target": {"samples": 3}}', "target.samples: 3: should be a list"),
        ('{"version": 1, "step": {"seconds": [1' + "0" * 400 + "]}}", "step.seconds.0"),
        ('{"version": 1, "step": {"seconds": [1' + "0" * 5000 + "]}}", "not JSON"),
        ('{"version": 1, "memory": ' + '{"a":' * 5000 + "1" + "}" * 5001, ""),
        ('{"version": 1, "memory": ' + '{"a":' * 100_000 + "1" + "}" * 100_001, "nested too deeply"),
        ('{"version": 1, "target": {"samples": []}}', "target.samples"),
        ('{"version": 1, "a\\nb": 1}', "'a\\nb'"),
    ],
)
def test_a_malformed_file_gives_faults(text: str | bytes, part: str) -> None:
    faults = refusal(parse_timings, text)
    assert part in faults[0] and "\n" not in faults[0]


def test_numbers_that_are_not_finite_and_repeated_keys_are_told_by_key_among_all_other_faults() -> None:
    samples = '[{"batch_size": 1, "batch_size": 2, "length": 3, "seconds": [NaN, -1]}]'
    text = (
        '{"version": 1, "target": {"samples": %s}, "machine": {"a": [0, {"b": Infinity}], "c": NaN},'
        ' "memory": {"d": {"e": 1, "e": 2}}, "setings": {}}'
    )
    faults = refusal(parse_timings, text % samples)
    assert [fault.split(":")[0] for fault in faults] == [
        "target.samples.0.batch_size",
        "memory.d.e",
        "machine.a.1.b",
        "machine.c",
        "target.samples.0.seconds.0",
        "target.samples.0.seconds.1",
        "setings",
    ]
    assert all("given twice" in fault for fault in faults[:2])


def test_a_list_of_another_size_is_called_a_list() -> None:
    trio = {"workers": ["target"] * 3, "shared": "cuda:0", "factors": [1, 1, 1, 1]}
    [fault] = refusal(parse_timings, json.dumps({"version": 1, "interference": {"trios": [trio]}}))
    assert "the list should have at most 3 items, not 4" in fault


def test_a_file_with_thousands_of_faults_names_the_first_fifty() -> None:
    bad = FULL | {"step": {"seconds": [-1.0] * 5000}}
    faults = refusal(parse_timings, json.dumps(bad))
    assert len(faults) == 51 and "4950 more" in faults[-1]


def test_a_file_that_cannot_be_read_is_a_fault_with_its_path(tmp_path: Path) -> None:
    assert refusal(read_timings, tmp_path / "none.json")[0].startswith(f"{tmp_path / 'none.json'}: ")
    assert refusal(read_timings, tmp_path) == [f"{tmp_path}: it is a folder; give the path of a timings.json"]
    (tmp_path / "bad.json").write_text('{"version": 3}')
    assert refusal(read_timings, tmp_path / "bad.json")[0].startswith(f"{tmp_path / 'bad.json'}: version: 3")


def _paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(path for key, part in inner for path in _paths(part, (*here, key)))]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(path=st.sampled_from(_paths(FULL)[1:]), value=JSON_VALUES)
def test_any_value_anywhere_is_accepted_or_refused_with_faults(path: tuple[Any, ...], value: Any) -> None:
    content = json.loads(json.dumps(FULL))
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    try:
        parse_timings(json.dumps(content))
    except TimingsError as error:
        assert error.faults and all(fault and "\n" not in fault for fault in error.faults)


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_any_bytes_are_refused_with_faults(text: str | bytes) -> None:
    assert refusal(parse_timings, text)


# Fitting from events


def test_rows_become_samples_by_shape() -> None:
    rows = [("target", 0, 32, 2048, 8.0), ("target", 1, 32, 2048, 8.2), ("drafter", 0, 32, 2048, 3.0, 512)]
    made = fit_from_events(rows, step=[0.2], loader=[0.01], transfer=[0.1], machine={"gpu": "H200"})
    expected = {
        "machine": {"gpu": "H200"},
        "target": {"samples": [shape(32, 2048, [8.0, 8.2])]},
        "drafter": {"samples": [shape(32, 2048, [3.0], anchors=512)]},
        "step": {"seconds": [0.2]},
        "loader": {"seconds": [0.01]},
        "transfer": {"seconds": [0.1]},
    }
    assert made == build_profile(expected)


def test_a_workers_first_batch_far_from_its_others_becomes_first_seconds() -> None:
    rows = [("drafter", worker, 32, 2048, 60.0 + worker) for worker in (0, 1)]
    rows += [("drafter", worker, 32, 2048, 3.0 + 0.01 * k) for k in range(10) for worker in (0, 1)]
    made = fit_from_events(rows).drafter
    assert made is not None
    assert made.first_seconds == (60.0, 61.0)
    assert max(made.samples[0].seconds) < 4


def test_an_ordinary_first_batch_stays_among_the_samples() -> None:
    rows = [("drafter", 0, 32, 2048, seconds) for seconds in (3.2, 3.0, 3.1, 2.9, 3.0)]
    slow_worker = [("drafter", 1, 32, 2048, 12.0)] * 5
    short_first = [("target", 0, 1, 100, 0.1), *[("target", 0, 32, 2048, 65.0)] * 5]
    made = fit_from_events(rows + slow_worker + short_first)
    assert made.drafter is not None and made.target is not None
    assert made.drafter.first_seconds == made.target.first_seconds == ()


def test_a_first_batch_of_its_own_shape_is_compared_by_seconds_per_slot() -> None:
    others = [("target", 0, 32, length, 0.0005 * length) for length in range(100, 109)]
    made = fit_from_events([("target", 0, 32, 2048, 70.0), *others]).target
    assert made is not None and made.first_seconds == (70.0,)


def test_workers_may_get_factors_of_their_own() -> None:
    rows = [
        ("drafter", worker, 8, length, 0.001 * length * factor)
        for length in (512, 1024)
        for _ in range(5)
        for worker, factor in enumerate((1.0, 1.0, 2.5))
    ]
    made = fit_from_events(rows, per_worker=True).drafter
    assert made is not None
    assert made.worker_factors == pytest.approx((1.0, 1.0, 2.5))
    assert [sorted(set(np.round(each.seconds, 9))) for each in made.samples] == [[0.512], [1.024]]


def test_rows_of_numpy_numbers_are_accepted() -> None:
    row = ("target", np.int64(0), np.int32(32), np.int64(2048), np.float64(8.0))
    assert fit_from_events([row]) == fit_from_events([("target", 0, 32, 2048, 8.0)])


def test_every_unusable_row_is_named() -> None:
    good = ("target", 0, 32, 2048, 8.0)
    bad = [
        ("teacher", 0, 32, 2048, 8.0),
        ("target", 0, 32, 2048, float("nan")),
        ("target", 0, 32, 2048, 0.0),
        ("target", 0, 0, 2048, 1.0),
        ("target", 0, 1.5, 2048, 1.0),
        ("target", 0, 32),
    ]
    faults = refusal(fit_from_events, [good, *bad])
    assert [fault.split(":")[0] for fault in faults] == [f"rows.{number}" for number in range(1, 7)]


def test_unusable_durations_are_named_by_their_key() -> None:
    assert refusal(fit_from_events, [], step=[0.1, -1.0])[0].startswith("step.seconds.1: -1.0:")
    assert refusal(fit_from_events, [], machine={"clock": float("nan")})[0].startswith("machine.clock: NaN:")


def test_a_profile_fitted_from_drawn_times_predicts_the_same_times(tmp_path: Path) -> None:
    plan = Plan([(32, 2048), (8, 512)] * 200)
    truth, _ = draw(profile([shape(32, 2048, [8.0, 8.1, 8.4]), shape(8, 512, [0.5, 0.6])]), plan)
    rows = [
        (role, batch % 2, *plan.shapes[batch], times(batch % 2, batch))
        for role, times in (("target", truth.target), ("drafter", truth.drafter))
        for batch in range(plan.count)
    ]
    write_timings(fit_from_events(rows), tmp_path / "timings.json")
    again, _ = draw(read_timings(tmp_path / "timings.json"), plan, seed=9)
    assert again.target_times.times(0).mean() == pytest.approx(truth.target_times.times(0).mean(), rel=0.02)


def test_merging_keeps_every_sample() -> None:
    one = fit_from_events([("target", 0, 32, 2048, 8.0)], step=[0.1], versions={"torch": "2.11"})
    two = fit_from_events(
        [("target", 0, 32, 2048, 9.0), ("target", 0, 8, 512, 1.0), ("drafter", 0, 8, 512, 1.0)],
        step=[0.2],
        transfer=[0.5],
        versions={"torch": "2.12"},
        machine={"gpu": "H200"},
    )
    merged = merge_profiles([one, two])
    assert merged.target is not None and merged.step is not None and merged.drafter is not None
    assert [each.seconds for each in merged.target.samples] == [(8.0, 9.0), (1.0,)]
    assert merged.step.seconds == (0.1, 0.2)
    assert merged.versions == {"torch": "2.11 | 2.12"}
    assert merged.machine == {"gpu": "H200"}
    assert merge_profiles([parse_timings(json.dumps(FULL))]) == parse_timings(json.dumps(FULL))


def test_sources_of_different_settings_are_not_merged_and_each_difference_is_named() -> None:
    one, two = (
        build_profile({"settings": {"dtype": dtype, "tp": 1}, "machine": {"gpu": gpu}})
        for dtype, gpu in (("bf16", "H200"), ("fp8", "A100"))
    )
    faults = refusal(merge_profiles, [one, two])
    assert [fault.split(":")[0] for fault in faults] == ["machine.gpu", "settings.dtype"]
    assert "'fp8': another source has 'bf16'" in faults[1]
