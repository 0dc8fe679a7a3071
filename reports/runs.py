"""The runs that a report is about: what lies in their folders, and what is missing there, said in words.

A report is made of whatever can be used. A trace that is cut off, damaged or of another run leaves the summary's
figures; a missing summary is made again from the trace. Only where neither can be used is the input refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from policies.faults import ABSENT, Fault, PipelineError
from policies.trace import TraceError
from reports.recorded import Recorded, read_recorded
from reports.remade import summary_of
from reports.sampled import Samples, read_devices, read_scalars
from reports.slugs import Slugs
from reports.summaryfile import FILE, checked_comparison, checked_summary, read_json
from reports.tracelayout import FILE as TRACE
from reports.tracelayout import PARTS

_SAME_S: Final = 1e-6
"""A summary and its trace may differ by rounding."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Run:
    """One run of a report."""

    name: str
    slug: str = "run"
    """The name as an id and a file's name; no two runs of a report have the same."""
    path: Path
    summary: dict[str, Any]
    """As the contract names it, with defaults for what an older version lacks."""
    recorded: Recorded | None = None
    """None where no trace was kept, or none that can be used."""
    scalars: Samples | None = None
    """Loss and the like over a training."""
    devices: Samples | None = None
    """Utilisation of the devices over time."""
    remade: bool = False
    """Whether the summary was computed again from the trace."""
    missing: list[str] = field(default_factory=list)
    """What is not there or cannot be used, a sentence each."""
    gain: float | None = None
    """Against the policy of the compared file."""
    gain_ci95: Sequence[float] | None = None
    gain_over: str = ""
    """The policy that the gain is measured against."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """Everything that was given to a report."""

    runs: list[Run]
    plan: Mapping[str, Any] | None = None
    """A plan with its candidates, if one was given."""
    outcome: str | None = None
    """Who wins, where a comparison was given."""


def load_given(paths: Sequence[Path]) -> Given:
    """The runs at these paths: run folders, summaries, comparisons, plans. Raises PipelineError, a fault for each."""
    runs: list[Run] = []
    faults: list[Fault] = []
    plan = outcome = None
    for path in paths:
        try:
            found = _load(path)
        except PipelineError as error:
            faults += error.faults
            continue
        runs += found.runs
        plan, outcome = found.plan or plan, found.outcome or outcome
    if faults:
        raise PipelineError(faults)
    return Given(runs=_named_apart(runs), plan=plan, outcome=outcome)


def _load(path: Path) -> Given:
    if path.is_file() and path.suffix == ".parquet":
        path = path.parent
    if not path.exists():
        raise _fault(path, "must be a run's folder or a summary.json; it does not exist")
    document = None
    if path.is_file() or (path / FILE).is_file():
        file = path if path.is_file() else path / FILE
        try:
            document = _read(file)
        except PipelineError as error:
            return _without_summary(file, error)
        if "candidates" in document:
            return Given(runs=[], plan=_plan(file, document))
        if document.get("kind") == "comparison":
            return _comparison(file, document)
        if path.is_file() and path.name != FILE:
            return Given(runs=[_of_summary(path, document)])
    return Given(runs=[_of_folder(path if path.is_dir() else path.parent, document)])


def _of_summary(path: Path, document: Mapping[str, Any]) -> Run:
    """A summary that stands alone, e.g. the output of `--json`."""
    missing = ["no trace beside this file: figures over time are left out"]
    return Run(name=path.stem, path=path, summary=checked_summary(document, path), missing=missing)


def _without_summary(file: Path, error: PipelineError) -> Given:
    """The run of a damaged summary from the trace beside it; raises the error where there is none that can be used."""
    if file.name != FILE:
        raise error
    said = "; ".join(str(fault) for fault in error.faults)
    try:
        return Given(runs=[_of_folder(file.parent, None, f"{FILE} cannot be used ({said})")])
    except PipelineError:
        raise error from None


def _of_folder(folder: Path, document: Mapping[str, Any] | None, damage: str = f"{FILE} is missing") -> Run:
    missing: list[str] = []
    recorded = _trace(folder, missing)
    if document is not None:
        try:
            summary = checked_summary(document, folder / FILE)
        except PipelineError as error:
            return _without_summary(folder / FILE, error).runs[0]
        if recorded is not None and (why := _of_another_run(summary, recorded)):
            missing.append(f"the trace is of another run than {FILE} ({why}): figures over time are left out")
            recorded = None
    elif recorded is not None:
        summary = checked_summary(summary_of(recorded), recorded.path)
        missing.append(f"{damage}: its figures were computed again from the trace; memory is left out")
    else:
        traced = (folder / TRACE).exists() or (folder / PARTS).exists()
        rule = "; ".join(missing) if traced else f"is no run: it holds neither {FILE} nor {TRACE}"
        raise _fault(folder, rule, "give a run's folder")
    scalars, devices = read_scalars(folder, missing), read_devices(folder, missing)
    name = folder.resolve().name
    return Run(
        name=name,
        path=folder,
        summary=summary,
        recorded=recorded,
        scalars=scalars,
        devices=devices,
        remade=document is None,
        missing=missing,
    )


def _trace(folder: Path, missing: list[str]) -> Recorded | None:
    """The folder's trace, or a sentence that says why there is none."""
    if not (folder / TRACE).exists() and not (folder / PARTS).exists():
        missing.append(f"no {TRACE}: figures over time are left out (simulations keep one with --trace)")
        return None
    try:
        recorded = read_recorded(folder, missing)
    except (TraceError, OSError) as error:
        missing.append(f"the trace cannot be used: {error}")
        return None
    if not recorded.complete:
        missing.append(f"the trace was cut off at {recorded.end_s:,.1f} s: later events are missing from figures")
    return recorded


def _of_another_run(summary: Mapping[str, Any], recorded: Recorded) -> str | None:
    header = recorded.header
    if header.kind != summary["kind"]:
        return f"of a {header.kind}, not of a {summary['kind']}"
    if header.planned != summary["batches"]["planned"]:
        return f"{header.planned:,} batches planned, not {summary['batches']['planned']:,}"
    if header.targets + header.drafters != len(summary["workers"]):
        return f"{header.targets + header.drafters} workers, not {len(summary['workers'])}"
    apart = abs(recorded.end_s - summary["makespan_s"])
    if recorded.complete and apart > _SAME_S * max(recorded.end_s, 1.0):
        return f"it ends at {recorded.end_s:,.1f} s, not at {summary['makespan_s']:,.1f} s"
    return None


def _comparison(path: Path, document: Mapping[str, Any]) -> Given:
    """The runs of `dflash-sim compare`, best first."""
    checked = checked_comparison(document, path)
    runs = [
        Run(
            name=entry["policy"],
            path=path,
            summary=entry["summary"],
            gain=entry["gain"],
            gain_ci95=entry["gain_ci95"],
            gain_over=checked["base"],
        )
        for entry in checked["policies"]
    ]
    return Given(runs=runs, outcome=checked["outcome"])


def _plan(path: Path, document: Mapping[str, Any]) -> Mapping[str, Any]:
    candidates = document["candidates"]
    if not isinstance(candidates, list) or not all(isinstance(each, dict) for each in candidates):
        raise _fault(path, "must hold a list of candidates", "give the JSON of a plan as it was written")
    return document


def _read(path: Path) -> Mapping[str, Any]:
    try:
        return read_json(path)
    except OSError as error:
        raise _fault(path, f"cannot be read: {error.strerror}") from error


def _fault(path: Path, rule: str, remedy: str = "") -> PipelineError:
    return PipelineError([Fault(str(path), ABSENT, rule, remedy)])


def _named_apart(runs: list[Run]) -> list[Run]:
    """Runs of one name are told apart by a number; each gets a slug of its own."""
    slugs, names, given = Slugs(), set[str](), {run.name for run in runs}
    found = []
    for run in runs:
        name, number = run.name, 1
        while name in names or (number > 1 and name in given):
            number += 1
            name = f"{run.name} ({number})"
        names.add(name)
        found.append(replace(run, name=name, slug=slugs.of(name)))
    return found
