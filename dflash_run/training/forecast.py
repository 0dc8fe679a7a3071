"""The prediction of a training, made before it starts and held beside it: its file, and the summary's part."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from dflash_run.profiling.machine import all_settings, compared_here
from dflash_run.training.preparation import Preparation
from dflash_sim.doubts import elsewhere, not_known
from dflash_sim.foresight import Course, Foresight
from dflash_sim.prediction import Run, simulate, summary_of
from dflash_sim.settings import PROCESSES, WORKERS, setting_faults, settings_of, unknown_settings
from dflash_sim.timings import MeasuredTimes
from dflash_sim.timings_file import Profile, read_timings
from policies.batches import BatchPlan
from policies.faults import PipelineError
from policies.loading import from_mapping, resolved
from policies.pipeline import Pipeline
from reports.summary import to_json
from reports.writing import write_text

FILE: Final = "prediction.json"
RESTS_ON: Final = ("timings_used", "timings_doubted")
"""Keys of a summary that say where its times came from."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a profile says of a training."""

    run: Run
    """The simulation, which is over."""
    course: Course
    summary: dict[str, Any]
    profile: Path
    sha256: str
    """Of the profile's file."""

    def beside(self, run: Run) -> Foresight:
        """To follow a training of the same plan."""
        return Foresight(self.run, self.course, run)

    def write(self, folder: Path) -> None:
        """Before the training starts: what is written then was not fitted to it."""
        told = {
            "kind": "prediction",
            "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "profile": {"path": str(self.profile), "sha256": self.sha256},
            "plan_hash": self.run.plan.content_hash,
            "summary": self.summary,
        }
        write_text(folder / FILE, to_json(told))


def forecast(prepared: Preparation, profile: Path, place: str = PROCESSES) -> Forecast:
    """Simulate the training with a profile. Raises TimingsError, and PipelineError for a profile of other settings."""
    known, ours = read_timings(profile), all_settings(prepared, place)
    if faults := setting_faults(known, ours, profile):
        raise PipelineError(faults)
    return foretold(placed(prepared), prepared.leg, profile, _doubts(prepared, known, ours))


def _doubts(prepared: Preparation, profile: Profile, ours: Mapping[str, Any]) -> list[str]:
    """What was measured elsewhere, and what could not be compared since the profile does not say it."""
    here = compared_here(prepared.placement)
    told = {f"{part}.{key}": value for part in ("machine", "versions") for key, value in getattr(profile, part).items()}
    if profile.interference.in_samples:  # fitted from a trace, which says neither machine nor all settings
        asked: list[str] = [*settings_of(resolved(prepared.pipeline)), WORKERS]
        return [*not_known(unknown_settings(profile, asked)), *elsewhere(told, here)]
    unknown = [*unknown_settings(profile, ours), *(key for key in here if told.get(key) is None)]
    return [*not_known(unknown), *elsewhere(told, here)]


def foretold(pipeline: Pipeline, plan: BatchPlan, profile: Path, doubts: list[str] | None = None) -> Forecast:
    """Simulate this plan with a profile, whatever its settings. `doubts`: as of a `Run`."""
    pipeline = from_mapping(resolved(pipeline) | {"timings": {"file": str(profile)}})
    measured = MeasuredTimes(read_timings(profile), anchors=pipeline.training.anchors)
    courses: list[Course] = []

    def watching(run: Run) -> Course:
        courses.append(Course(run))
        return courses[0]

    run = replace(simulate(pipeline, plan=plan, measured=measured, watching=watching), doubts=doubts)
    return Forecast(
        run=run,
        course=courses[0],
        summary=summary_of(run),
        profile=profile,
        sha256=hashlib.sha256(profile.read_bytes()).hexdigest(),
    )


def placed(prepared: Preparation) -> Pipeline:
    """The pipeline with the devices that its workers have here; of a target's the first, as a file names them."""
    mapping = resolved(prepared.pipeline)
    targets = [names[0] for names in prepared.placement.targets]
    mapping["topology"]["devices"] = {"targets": targets, "drafters": list(prepared.placement.drafters)}
    return from_mapping(mapping)


def compared(forecast: Forecast, foresight: Foresight, measured: Mapping[str, Any]) -> dict[str, Any]:
    """The summary's `prediction`: predicted, measured and their relative difference; what moved; the warnings."""
    moved = foresight.over_all()
    return {
        "profile": str(forecast.profile),
        "profile_sha256": forecast.sha256,
        **{key: forecast.summary[key] for key in RESTS_ON if key in forecast.summary},
        **compared_rates(forecast.summary, measured, foresight.end),
        "moved": None if moved is None else moved.sentence(),
        "warnings": list(foresight.warnings),
    }


def compared_rates(
    predicted: Mapping[str, Any],
    measured: Mapping[str, Any],
    end: Callable[[], float | None] = lambda: None,
) -> dict[str, dict[str, Any]]:
    """Of two summaries: rates and time as predicted and as measured, and their relative difference.

    `end`: when a run that stopped on the way would have ended.
    """
    rates = ("tokens_per_s", "steady_tokens_per_s")
    rows = {name: _row(predicted["throughput"][name], measured["throughput"][name]) for name in rates}
    return rows | {"makespan_s": _spans(predicted, measured, end)}


def _spans(
    predicted: Mapping[str, Any], measured: Mapping[str, Any], end: Callable[[], float | None]
) -> dict[str, Any]:
    """Times to the end: of all planned batches, or up to the same limit; what stopped on the way has none.

    `foreseen` is when a run that did not train all of them would have ended at its own pace.
    """
    if _as_far(predicted, measured):
        return _row(predicted["makespan_s"], measured["makespan_s"])
    return _row(predicted["makespan_s"], None) | {"foreseen": None if _whole(measured) else end()}


def _as_far(predicted: Mapping[str, Any], measured: Mapping[str, Any]) -> bool:
    if _whole(predicted) and _whole(measured):
        return True
    return bool(measured["stop_reason"] == predicted["stop_reason"] == "max_steps")


def _whole(summary: Mapping[str, Any]) -> bool:
    return bool(summary["batches"]["trained"] == summary["batches"]["planned"])


def _row(predicted: float | None, measured: float | None) -> dict[str, Any]:
    difference = predicted / measured - 1 if predicted is not None and measured else None
    return {"predicted": predicted, "measured": measured, "difference": difference}
