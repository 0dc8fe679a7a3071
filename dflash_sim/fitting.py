"""Timings from what was recorded: traces and profiles become one profile, the faults of all of them told at once."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from dflash_sim.durations import Durations, Factors
from dflash_sim.settings import computed, settings_of_run
from dflash_sim.simulator import charged
from dflash_sim.timings_file import (
    LEAST_SECONDS,
    MOST_SECONDS,
    ROLES,
    InterferenceProfile,
    Profile,
    TimingsError,
    read_timings,
    write_timings,
)
from dflash_sim.timings_fit import fit_from_events
from dflash_sim.timings_merge import left_out, merge_profiles, topology_lacking
from policies.batches import plan_batches
from policies.faults import Fault, PipelineError, one_line
from policies.loading import from_mapping
from policies.pipeline import Pipeline
from reports.tracefile import Header, Trace, TraceError, feed, read_trace
from reports.tracelayout import FILE, PARTS

Source = str | os.PathLike[str]

_MULTIPLIED: Final = ("simulation", "rehearsal")
"""Kinds of runs whose times are multiplied by the factors of listed batches; a training takes what it takes."""
_PARQUET: Final = b"PAR1"
_GIVE: Final = "give a timings.json, a trace.parquet or a run's folder"


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """One profile of several sources, and what people should know of how it came about."""

    profile: Profile
    left_out: tuple[str, ...]
    """What runs timed, so that profiles with interference do not time it."""

    topology_lacking: bool = False
    """Whether some timings of runs do not say of which topology they are."""

    def remarks(self) -> list[str]:
        """A line where something was left out, and one where it is not known whether the topologies agree."""
        told = []
        if self.left_out:
            told.append(
                f"left out: the profile's interference, and its times of {', '.join(self.left_out)}: those of the "
                "traces hold it already, and predict runs of that topology"
            )
        if self.topology_lacking:
            told.append(
                "not known: of which topology some of the timings are, whose interference they hold; fit them anew "
                "from their traces"
            )
        return told


def fit_sources(sources: Iterable[Source], *, per_worker: bool = False) -> Profile:
    """As `fit`; the profile alone."""
    return fit(sources, per_worker=per_worker).profile


def fit(sources: Iterable[Source], *, per_worker: bool = False) -> Fitted:
    """One profile of all sources: each a timings.json, a trace.parquet, a run's folder, or a killed run's trace.parts.

    With `per_worker` the workers of a trace keep factors of their own; else they are pooled. Raises TimingsError, each
    fault beginning with the path of the source that cannot be used, or cannot be used with those before it.
    """
    faults: list[str] = []
    usable: list[tuple[Source, Profile]] = []
    for source in sources:
        try:
            usable.append((source, _profile(source, per_worker)))
        except TimingsError as error:
            faults += map(one_line, error.faults)
        except TraceError as error:
            faults.append(one_line(str(error)))
    profiles = [profile for _, profile in usable]
    try:
        merged = merge_profiles(profiles)
    except TimingsError:
        faults += _disagreements(usable)
    if faults:
        raise TimingsError(faults)
    return Fitted(profile=merged, left_out=left_out(profiles), topology_lacking=topology_lacking(profiles))


def _readers(config: Any, drafters: int) -> Sequence[int]:
    """The readers of the lanes: drafter by drafter under fixed assignment, anybody under other policies."""
    fixed = _value(config, "dispatch", "policy") in ("round_robin", "rotating")
    return range(drafters) if fixed else ()


def fit_trace(trace: Trace, *, per_worker: bool = False) -> Profile:
    """What a recorded run measured. Raises TimingsError for a run in which nothing was."""
    header, config = trace.header, trace.header.config
    real = computed(header.kind, config)
    durations = Durations(
        work=trace.work,
        drafters=header.drafters,
        anchors=_whole(_value(config, "training", "anchors")),
        factors=_factors(header),
        placement=charged(_value(config, "dispatch", "placement"), _value(config, "memory", "staging")),
        readers=_readers(config, header.drafters),
        hidden=not real,
    )
    try:
        feed(trace, durations)
    except LookupError as error:
        raise TimingsError([f"an event tells the end of what never began ({error}); record the run again"]) from error
    _check(durations)
    fitted = fit_from_events(
        durations.rows,
        step=_where_any(durations.steps),
        loader=_where_any(durations.loader),
        transfer=_where_any(durations.transfer),
        hidden_bytes_per_token=_bytes_per_token(config),
        settings=settings_of_run(header.kind, config),
        per_worker=per_worker,
    )
    return fitted.model_copy(update={"interference": InterferenceProfile(in_samples=True)}) if real else fitted


def save_timings(profile: Profile, path: Path) -> None:
    """Write a `timings.json` so that a reader never sees a part of it. Raises PipelineError where it cannot be."""
    try:
        write_timings(profile, path)
    except OSError as error:  # told with the name that was asked for, not with the temporary one
        rule = f"must be a file that can be written ({error.strerror or error})"
        raise PipelineError([Fault("-o", str(path), rule, "give another with -o, or make room")]) from None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a profile holds of one role, or of one other cost, for people."""

    name: str
    shapes: int | None
    """None where there are no shapes."""
    samples: int
    median: float
    """Seconds, over all shapes."""
    first: float | None
    """Median seconds of the first batches that were set apart; None where none were."""


def measured_parts(profile: Profile) -> list[Measured]:
    """What was measured, a line each."""
    parts = []
    for role in ROLES:
        timed = getattr(profile, role)
        if timed is not None:
            seconds = [value for each in timed.samples for value in each.seconds]
            first = median(timed.first_seconds) if timed.first_seconds else None
            shapes = len({(each.batch_size, each.length, each.anchors) for each in timed.samples})
            parts.append(Measured(name=role, shapes=shapes, samples=len(seconds), median=median(seconds), first=first))
    for name in ("step", "loader", "transfer"):
        part = getattr(profile, name)
        if part is not None and part.seconds:
            count = len(part.seconds)
            parts.append(Measured(name=name, shapes=None, samples=count, median=median(part.seconds), first=None))
    return parts


# Sources ---------------------------------------------------------------------------------------------------------


def _profile(source: Source, per_worker: bool) -> Profile:
    if not os.fspath(source).strip():
        raise TimingsError([str(Fault("TRACE_OR_PROFILE", source, "must not be empty", _GIVE))])
    path = Path(source)
    # A killed run's trace is given by the name it would have had: its parts lie beside it.
    if not path.exists() and not (path.name == FILE and path.with_name(PARTS).is_dir()):
        raise TimingsError([f"{path}: there is no such file; {_GIVE}"])
    if not is_trace(path):
        return read_timings(path)
    trace = read_trace(path)
    try:
        return fit_trace(trace, per_worker=per_worker)
    except TimingsError as error:
        raise TimingsError(f"{path}: {fault}" for fault in error.faults) from None


def is_trace(path: Path) -> bool:
    """A folder, a Parquet file by name, or one by content that was renamed."""
    if path.suffix == ".parquet" or not path.is_file():
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(_PARQUET)) == _PARQUET
    except OSError:
        return False  # reading it as timings tells why it cannot be read


def _disagreements(sources: Sequence[tuple[Source, Profile]]) -> list[str]:
    """Which source differs from those before it, and in what."""
    faults: list[str] = []
    merged = Profile()
    for source, profile in sources:
        try:
            merged = merge_profiles([merged, profile])
        except TimingsError as error:
            faults += [one_line(f"{os.fspath(source)}: {fault}") for fault in error.faults]
    return faults


# What a trace says ----------------------------------------------------------------------------------------------


def _check(durations: Durations) -> None:
    """Raises TimingsError for a role whose times are all 0, and where nobody finished a batch."""
    measured = {row.role for row in durations.rows}
    if not measured and not durations.unmeasurable:
        raise TimingsError(["no batch was computed in it; leave it out, or record a longer run"])
    faults = [
        f"{role}.seconds: 0: every one of {count} batches took no time; leave it out, or give times above 0"
        for role, count in durations.unmeasurable.items()
        if role not in measured
    ]
    if faults:
        raise TimingsError(faults)
    _check_range(durations)


def _check_range(durations: Durations) -> None:
    """Raises TimingsError, one line for all times that no machine gives."""
    computing = [row.seconds for row in durations.rows]
    found = [value for value in computing if value < LEAST_SECONDS]
    for seconds in (computing, durations.steps, durations.loader, durations.transfer):
        found += [value for value in seconds if not value <= MOST_SECONDS]
    if found:
        rule = f"must be {LEAST_SECONDS:g} to {MOST_SECONDS:g} s long: {len(found)} are not; record the run again"
        raise TimingsError([f"its times: {min(found):g} to {max(found):g} s: {rule}"])


def _where_any(seconds: Sequence[float]) -> Sequence[float]:
    """Nothing where all are 0: such a cost was not there (or not simulated)."""
    return seconds if any(seconds) else ()


def _value(config: Any, *keys: str) -> Any:
    """What stands at the dotted key of a configuration; None where nothing does."""
    for key in keys:
        config = config.get(key) if isinstance(config, Mapping) else None
    return config


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _bytes_per_token(config: Any) -> int | None:
    memory = _value(config, "memory")
    return _checked({"memory": memory}).memory.bytes_per_token if memory else None


def _checked(sections: Mapping[str, Any]) -> Pipeline:
    """These sections of a configuration. Not all of it: what is not needed may come from another version."""
    try:
        return from_mapping(sections)
    except PipelineError as error:
        raise TimingsError(f"its configuration: {fault}" for fault in error.faults) from None


def _factors(header: Header) -> Factors | None:
    """The factors of listed batches. A trace keeps sizes only, so the batches are planned again."""
    listed = _value(header.config, "data", "batches")
    if header.kind not in _MULTIPLIED or not isinstance(listed, list):
        return None
    given = {key: header.config[key] for key in ("seed", "data") if key in header.config}
    pipeline = _checked(given)
    assert pipeline.data is not None
    plan = plan_batches(pipeline.data, seed=pipeline.seed)
    if plan.content_hash != header.plan_hash:
        raise TimingsError(["data.batches: its list makes other batches than were run; record the run again"])
    return {"target": plan.target_factor.tolist(), "drafter": plan.drafter_factor.tolist()}
