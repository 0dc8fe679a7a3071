"""Trainings and their timings: fitted from a trace, profiled, predicted, and compared while they run."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dflash_run.cli import app
from dflash_run.live import view
from dflash_run.profiling.measuring import Effort
from dflash_run.profiling.profile import profile
from dflash_run.training.command import _foretold, _outcome
from dflash_run.training.forecast import compared, forecast, foretold, placed
from dflash_run.training.preparation import Preparation, prepare_training
from dflash_run.training.train import train
from dflash_sim.cli import guarded
from dflash_sim.fitting import fit_sources, save_timings
from dflash_sim.prediction import prepare, summary_of
from dflash_sim.settings import settings_of_run
from dflash_sim.timings_file import InterferenceProfile, Profile, read_timings
from policies.faults import PipelineError
from policies.loading import resolved
from tests.run.training.cases import HIRED, PROFILED, training_file, training_pipeline

QUICK = Effort(repeats=3, most_repeats=3, least_s=0.0, flow_s=0.03, rounds=1)
SIZES: dict[str, Any] = {"samples": 120, "length": 60, "training": {"anchors": 8}}


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("case")


@pytest.fixture(scope="module")
def prepared(case: Path) -> Preparation:
    return prepare_training(training_pipeline(case, **SIZES), gpus=0)


@pytest.fixture(scope="module")
def timings(case: Path, prepared: Preparation) -> Path:
    save_timings(profile(prepared, effort=QUICK, hire=PROFILED), case / "timings.json")
    return case / "timings.json"


def test_a_prediction_by_a_doubtful_profile_is_told_with_a_line_of_doubt() -> None:
    rates = {"steady_tokens_per_s": None, "tokens_per_s": 1500.0}
    summary = {"throughput": rates, "makespan_s": 60.0, "verdict": {"text": "drafters"}}
    assert _foretold(summary) == "prediction: 1.50 Ktok/s, 60 s; drafters"
    assert _foretold(summary | {"timings_doubted": ["target: far off"]}).endswith("\ndoubtful: target: far off")
    assert "\ntimes: 3 of 9 extrapolated" in _foretold(summary | {"timings_used": ["3 of 9 extrapolated"]})


def test_timings_fitted_from_a_training_predict_that_training(prepared: Preparation, tmp_path: Path) -> None:
    run, told = train(prepared, tmp_path / "run", hire=HIRED)
    measured = summary_of(run, kind="training", **told)
    fitted = fit_sources([tmp_path / "run"])
    save_timings(fitted, tmp_path / "timings.json")
    assert fitted.target is not None and fitted.drafter is not None and fitted.step is not None
    for role in (fitted.target, fitted.drafter):
        # On a busy machine the launcher may hear of an arrival and of its computing in one turn: no time between.
        assert 50 <= sum(len(each.seconds) for each in role.samples) + len(role.first_seconds) <= 60
    assert len(fitted.step.seconds) == 60 and fitted.hidden_bytes_per_token == 64 * 4
    assert {"anchors": 8, "block_size": 4, "loss": "ce"}.items() <= fitted.settings.items()
    predicted = foretold(placed(prepared), prepared.leg, tmp_path / "timings.json").summary
    ratio = predicted["throughput"]["tokens_per_s"] / measured["throughput"]["tokens_per_s"]
    assert 0.6 < ratio < 1.6  # a few seconds on a processor that others use too


def test_a_training_is_compared_with_its_prediction_on_the_way_and_in_the_end(
    prepared: Preparation, timings: Path, tmp_path: Path
) -> None:
    told = forecast(prepared, timings)
    told.write(tmp_path)
    run = prepare(prepared.pipeline, plan=prepared.leg, timed=False)
    foresight, seen = told.beside(run), []

    def watch(now: float, run: Any, figures: Any) -> None:
        foresight.look(now)
        console = Console(file=io.StringIO(), width=200)
        console.print(view("title", now, run, figures, foresight))
        seen.append(console.file.getvalue())  # type: ignore[attr-defined]

    run, extra = train(prepared, tmp_path, hire=HIRED, watch=watch, run=run)
    assert any("predicted" in text and "the end at" in text for text in seen)
    assert any("by now at" in text and "to go" in text for text in seen)
    outcome = compared(told, foresight, summary_of(run, kind="training", **extra))
    assert outcome["profile_sha256"] == json.loads((tmp_path / "prediction.json").read_text())["profile"]["sha256"]
    rate = outcome["tokens_per_s"]
    assert rate["difference"] == pytest.approx(rate["predicted"] / rate["measured"] - 1)


def test_timings_of_a_rehearsal_with_threads_are_refused_for_a_training_and_used_for_a_rehearsal(
    prepared: Preparation, tmp_path: Path
) -> None:
    train(prepared, tmp_path / "run", hire=HIRED, kind="rehearsal")
    file = tmp_path / "timings.json"
    save_timings(fit_sources([tmp_path / "run"]), file)
    with pytest.raises(PipelineError) as refused:
        forecast(prepared, file)
    [fault] = refused.value.faults
    assert fault.rule == "was measured with workers 'threads', and here it is 'processes'"
    assert forecast(prepared, file, "threads, groups of 8, 8 multiprocessors").summary["throughput"]["tokens_per_s"] > 0


@pytest.mark.parametrize("empty", ["", "."])
def test_an_empty_name_of_a_profile_is_told_with_its_option(
    empty: str, case: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pipeline.json"
    file.write_text(json.dumps(training_file(case, **SIZES)))
    assert guarded(app, ["train", str(file), "--predict", empty, "-o", str(tmp_path / "run")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("--predict: got ") and "must name a timings.json" in line


def test_a_run_that_stopped_on_the_way_is_compared_by_its_rate_and_not_by_its_time(
    prepared: Preparation, timings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = forecast(prepared, timings)
    foresight = told.beside(prepare(prepared.pipeline, plan=prepared.leg, timed=False))
    monkeypatch.setattr(foresight, "end", lambda: 66.0)
    batches = {"planned": 60, "trained": 12}
    stopped = {**told.summary, "stop_reason": "interrupted", "makespan_s": 0.5, "batches": batches}
    outcome = compared(told, foresight, stopped)
    whole = told.summary["makespan_s"]
    assert outcome["makespan_s"] == {"predicted": whole, "measured": None, "difference": None, "foreseen": 66.0}
    assert outcome["tokens_per_s"]["difference"] == pytest.approx(0.0)
    assert outcome["timings_used"] == told.summary["timings_used"]
    said = _outcome(stopped | {"prediction": outcome})
    assert "not compared: the run ended after 0.5 s with 12 of 60 batches trained" in said
    assert said.endswith("and all of them would have taken 66 s at its pace") and "%" not in said.split("; ")[1]


def test_a_run_that_stops_where_its_prediction_does_is_compared_by_its_time(
    prepared: Preparation, timings: Path
) -> None:
    told = forecast(prepared, timings)
    foresight = told.beside(prepare(prepared.pipeline, plan=prepared.leg, timed=False))
    told.summary.update(stop_reason="max_steps", batches={"planned": 60, "trained": 12})
    outcome = compared(told, foresight, told.summary | {"makespan_s": 2 * told.summary["makespan_s"]})
    assert outcome["makespan_s"]["difference"] == pytest.approx(-0.5)


def doubts_by(profile: Profile, prepared: Preparation, file: Path) -> list[str]:
    save_timings(profile, file)
    doubts: list[str] = forecast(prepared, file).summary.get("timings_doubted", [])
    return [text for text in doubts if text.startswith(("not known", "measured with"))]


def test_a_profile_of_another_machine_or_of_unknown_settings_is_told_as_doubtful(
    prepared: Preparation, timings: Path, tmp_path: Path
) -> None:
    known, file = read_timings(timings), tmp_path / "timings.json"
    assert doubts_by(known, prepared, file) == []
    other = {"machine": known.machine | {"cpu": "another"}, "versions": known.versions | {"torch": "1.0"}}
    [doubt] = doubts_by(known.model_copy(update=other), prepared, file)
    assert doubt.startswith("measured with machine.cpu 'another', and here it is ") and "versions.torch '1.0'" in doubt
    kept = {key: value for key, value in known.settings.items() if key not in ("threads", "vocab_size")}
    [doubt] = doubts_by(known.model_copy(update={"settings": kept, "machine": {}}), prepared, file)
    assert sorted(doubt.split(": ")[1].split(", ")) == ["machine.cpu", "threads", "vocab_size"]


def test_of_timings_fitted_from_a_run_only_what_traces_say_is_missed(
    prepared: Preparation, timings: Path, tmp_path: Path
) -> None:
    known, file = read_timings(timings), tmp_path / "timings.json"
    said = settings_of_run("training", resolved(prepared.pipeline))
    fitted = {"settings": said, "machine": {}, "versions": {}, "interference": InterferenceProfile(in_samples=True)}
    assert doubts_by(known.model_copy(update=fitted), prepared, file) == []
    fitted["settings"] = {key: value for key, value in said.items() if key != "block_size"}
    [doubt] = doubts_by(known.model_copy(update=fitted), prepared, file)
    assert doubt.startswith("not known: block_size: ")


def test_a_profile_of_other_settings_ends_the_command_with_status_2_and_a_line_each(
    case: Path, timings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pipeline.json"
    changes = {**SIZES, "training": {"anchors": 16, "loss": "soft"}}
    file.write_text(json.dumps(training_file(case, **changes)))
    status = guarded(app, ["train", str(file), "--predict", str(timings), "-o", str(tmp_path / "run")])
    lines = capsys.readouterr().err.splitlines()
    assert status == 2 and len([line for line in lines if "timings.file" in line]) == 2
    assert any("was measured with anchors 8, and here it is 16" in line for line in lines)
    assert any("was measured with loss 'ce', and here it is 'soft'" in line for line in lines)
    assert not (tmp_path / "run" / "prediction.json").exists()
