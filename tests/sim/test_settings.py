"""A profile taken with other settings than the file's is refused where a training's file uses it."""

from pathlib import Path
from typing import Any

import pytest

from dflash_sim.comparison import predict
from dflash_sim.doubts import elsewhere
from dflash_sim.prediction import measured_times
from dflash_sim.settings import agree, settings_of
from dflash_sim.timings_file import TimingsError, build_profile, write_timings
from dflash_sim.timings_merge import merge_profiles
from policies.faults import PipelineError
from policies.loading import from_mapping, resolved
from policies.pipeline import Pipeline
from tests.helpers import pipeline_of

MODEL = {"name_or_path": "there/Qwen3-8B", "taps": [1, 9, 17], "drafter_layers": 3}


def using(folder: Path, settings: dict[str, Any], **sections: Any) -> Pipeline:
    role = {"samples": [{"batch_size": 1, "length": 100, "seconds": [1.0]}]}
    path = folder / "timings.json"
    write_timings(build_profile({"target": role, "drafter": role, "settings": settings}), path)
    return from_mapping({"data": {"batches": 3}, "timings": {"file": str(path)}, **sections}, for_simulation=True)


def test_each_setting_that_differs_is_a_line_with_both_values(tmp_path: Path) -> None:
    settings = settings_of(resolved(pipeline_of(data={"batches": 3}, model=MODEL)))
    assert settings["model"] == "there/Qwen3-8B" and settings["taps"] == 3
    others = {"model": "here/Qwen3-8B", "taps": 5, "block_size": 8, "staging": "device", "unknown": 1}
    with pytest.raises(PipelineError) as refused:
        measured_times(using(tmp_path, settings | others, model=MODEL))
    lines = sorted(str(fault) for fault in refused.value.faults)
    assert len(lines) == 2 and all(line.startswith("timings.file: got ") for line in lines)
    assert "was measured with block_size 8, and here it is 16" in lines[0]
    assert "was measured with taps 5, and here it is 3" in lines[1]


def test_a_profile_with_prefetch_is_refused_without_and_one_that_does_not_say_is_taken(tmp_path: Path) -> None:
    ahead = {"model": MODEL, "dispatch": {"prefetch": 1}}
    assert settings_of(resolved(pipeline_of(data={"batches": 3}, **ahead)))["prefetch"] == "on"
    with pytest.raises(PipelineError, match="was measured with prefetch 'off', and here it is 'on'"):
        measured_times(using(tmp_path, {"prefetch": "off"}, **ahead))
    assert measured_times(using(tmp_path, {"prefetch": "on"}, **ahead)) is not None
    assert measured_times(using(tmp_path, {"block_size": 16}, **ahead)) is not None


def test_a_number_that_is_text_is_told_as_text(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="was measured with block_size '16', and here it is 16"):
        measured_times(using(tmp_path, {"block_size": "16"}, model=MODEL))


def test_a_file_without_a_model_and_a_profile_without_settings_are_no_fault(tmp_path: Path) -> None:
    assert measured_times(using(tmp_path, {"block_size": 8})) is not None
    assert measured_times(using(tmp_path, {}, model=MODEL)) is not None


def not_known(pipeline: Pipeline) -> list[str]:
    doubts: list[str] = predict(pipeline)[1].get("timings_doubted", [])
    return [text for text in doubts if text.startswith("not known")]


def test_settings_that_the_profile_does_not_say_are_told_as_not_known(tmp_path: Path) -> None:
    ours = settings_of(resolved(pipeline_of(data={"batches": 3}, model=MODEL)))
    assert not_known(using(tmp_path, ours, model=MODEL)) == []
    [doubt] = not_known(using(tmp_path, ours | {"block_size": None}, model=MODEL))
    assert doubt.startswith("not known: block_size: the timings do not say")
    [doubt] = not_known(using(tmp_path, {}, model=MODEL))
    assert all(key in doubt for key in ours)
    assert not_known(using(tmp_path, {})) == [], "a file without a model says nothing of settings"


def test_another_machine_or_version_than_here_is_one_line_with_both() -> None:
    here = {"machine.gpu": "NVIDIA H200", "machine.cpu": "a", "versions.torch": "2.11.0"}
    assert elsewhere(here, here) == [] == elsewhere({"machine.cores": 4}, here)
    [doubt] = elsewhere(here | {"machine.gpu": "NVIDIA A100", "versions.torch": "2.9.0"}, here)
    assert "machine.gpu 'NVIDIA A100', and here it is 'NVIDIA H200'; versions.torch '2.9.0', and here" in doubt


def test_threads_of_unknown_groups_are_any_threads_but_two_known_groups_differ() -> None:
    told = ["threads", "threads, groups of 8", "threads", "threads, groups of 16"]
    merged = merge_profiles([build_profile({"settings": {"workers": place}}) for place in told[:3]])
    assert merged.settings == {"workers": "threads, groups of 8"}
    with pytest.raises(TimingsError, match="'threads, groups of 16': another source has 'threads, groups of 8'"):
        merge_profiles([build_profile({"settings": {"workers": place}}) for place in told])
    assert not agree("workers", "threads", "processes") and not agree("model", "/a/x", "/a/y")
