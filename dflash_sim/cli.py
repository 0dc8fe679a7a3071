"""The command `dflash-sim`: predict, compare, replay, fit.

What reads or writes traces is imported where it is used: pyarrow would double the time that a command takes to start.
"""

import errno
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from dflash_sim.comparison import compare as compare_policies
from dflash_sim.comparison import predict, with_policy
from dflash_sim.folders import unwritable
from dflash_sim.interrupts import STATUS as INTERRUPTED
from dflash_sim.interrupts import interruptible
from dflash_sim.timings_file import TimingsError
from policies.builtin import BUILTIN
from policies.faults import Fault, PipelineError
from policies.loading import load
from policies.pipeline import Pipeline
from reports import commands
from reports.summary import is_incomplete, to_json, versions
from reports.table import duration, print_comparison, print_run
from reports.writing import file_fault, write_text

if TYPE_CHECKING:
    from dflash_sim.timings_file import Profile

COMPLETE: Final = commands.COMPLETE
UNUSABLE: Final = commands.UNUSABLE
INCOMPLETE: Final = commands.INCOMPLETE
console = commands.console
OUTPUTS: Final = ("summary.json", "prediction.json", "trace.parquet", "scalars.jsonl", "devices.jsonl")
"""Files that a run writes into its folder."""

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Predict a pipeline before renting GPUs.")

File = Annotated[Path, typer.Argument(help="The pipeline file (YAML or JSON).", show_default=False)]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace one key; repeatable.")
]


def _folder(text: str) -> Path:
    """An empty name, of a variable that is not set for instance, would be the folder one stands in."""
    if not text.strip():
        raise PipelineError([Fault("-o", text, "must name a folder", "give one, or leave -o out")])
    return Path(text)


Out = Annotated[
    Path | None,
    typer.Option("-o", "--out", help="Folder of the run; else runs/NAME.", parser=_folder, metavar="PATH"),
]
AsJson = Annotated[bool, typer.Option("--json", help="The summary alone on stdout, as JSON.")]
Seed = Annotated[int | None, typer.Option(help="Replace the file's seed.")]
Replications = Annotated[int, typer.Option(min=1, help="Runs with other draws, for intervals.")]


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Show versions and end.")] = False) -> None:
    if version:
        typer.echo(", ".join(f"{name} {number}" for name, number in versions().items()))
        raise typer.Exit


@app.command()
def run(
    file: File,
    overrides: Overrides = None,
    out: Out = None,
    as_json: AsJson = False,
    seed: Seed = None,
    replications: Replications = 1,
    trace: Annotated[bool, typer.Option("--trace", help="Keep every event in trace.parquet.")] = False,
    perfetto: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the trace for ui.perfetto.dev, too; implies --trace.")
    ] = None,
) -> None:
    """Predict one pipeline."""
    pipeline = read(file, overrides, seed)
    folder = out if out is not None else Path("runs") / name_of(pipeline, file)
    check_outputs(folder, perfetto)
    traced = folder if trace or perfetto is not None else None
    with progress_bar(pipeline, "simulating") as progress, interruptible() as interrupted, quiet_policies():
        _, summary = predict(pipeline, replications, progress, traced, interrupted)
    write_text(folder / "summary.json", to_json(summary))
    if perfetto is not None:
        from reports.perfetto import export_perfetto
        from reports.tracefile import read_trace

        perfetto.parent.mkdir(parents=True, exist_ok=True)
        export_perfetto(read_trace(folder), perfetto)
    if as_json:
        sys.stdout.write(to_json(summary))
    else:
        print_run(console(), summary, f"{name_of(pipeline, file)}: {described(pipeline)}")
    raise typer.Exit(status_of([summary]))


@app.command()
def compare(
    file: File,
    policy: Annotated[str, typer.Option(help="Policies to compare, separated by commas.")] = ",".join(BUILTIN),
    overrides: Overrides = None,
    out: Out = None,
    as_json: AsJson = False,
    seed: Seed = None,
    replications: Replications = 1,
) -> None:
    """The same work under several policies, with common random numbers."""
    pipeline = read(file, overrides, seed)
    names = list(dict.fromkeys(name.strip() for name in policy.split(",") if name.strip()))
    if not names:
        raise PipelineError([Fault("--policy", policy, f"must name policies, e.g. {','.join(BUILTIN)}")])
    check_policies(pipeline, names)
    folder = out if out is not None else Path("runs") / f"{name_of(pipeline, file)}-compare"
    check_outputs(folder)
    with progress_bar(pipeline, "comparing") as progress, interruptible() as interrupted, quiet_policies():
        comparison = compare_policies(pipeline, names, replications, progress, interrupted)
    write_text(folder / "summary.json", to_json(comparison))
    if as_json:
        sys.stdout.write(to_json(comparison))
    else:
        print_comparison(console(), comparison, f"{name_of(pipeline, file)}: {described(pipeline)}")
    raise typer.Exit(status_of([entry["summary"] for entry in comparison["policies"]]))


def check_policies(pipeline: Pipeline, names: Sequence[str]) -> None:
    """Every name is checked before the first run."""
    faults: list[Fault] = []
    for name in names:
        try:
            with_policy(pipeline, name)
        except PipelineError as error:
            faults += error.faults
    if faults:
        raise PipelineError(faults)


@app.command()
def replay(
    trace: Annotated[Path, typer.Argument(help="trace.parquet of a run, or the run's folder.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Feed a recorded run's inputs to a fresh dispatcher and compare its effects with the recorded ones.

    The own records of a real run's workers, where there are some, must match the trace, too.
    """
    from dflash_sim.records import RECORDS, check_records
    from dflash_sim.replay import dispatcher_of
    from dflash_sim.replay import replay as replay_trace
    from reports.tracefile import read_trace

    recorded = read_trace(trace)
    differences = [str(difference) for difference in replay_trace(recorded, dispatcher_of(recorded))]
    folder = (trace if trace.is_dir() else trace.parent) / RECORDS
    if folder.is_dir():
        differences += check_records(recorded, folder)
    verdict = "differs" if differences else "equal"
    if as_json:
        answer = {"kind": "replay", "rows": len(recorded), "complete": recorded.complete, "differences": differences}
        sys.stdout.write(to_json(answer))
    else:
        cut = "" if recorded.complete else " (the trace was cut off before the end of the run)"
        sys.stdout.write("\n".join([f"{verdict}: {len(recorded):,} rows replayed{cut}", *differences]) + "\n")
    raise typer.Exit(INCOMPLETE if differences else COMPLETE)


@app.command()
def fit(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="TRACE_OR_PROFILE", help="Traces, runs' folders, timings.json.", show_default=False),
    ],
    out: Annotated[str, typer.Option("-o", "--out", help="The timings.json to write.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="The timings alone on stdout, as JSON.")] = False,
    per_worker: Annotated[bool, typer.Option("--per-worker", help="Keep the workers of a role apart.")] = False,
) -> None:
    """Timings from the traces of runs, and from profiles."""
    from dflash_sim.fit_output import output_faults
    from dflash_sim.fitting import fit as fit_all
    from dflash_sim.fitting import save_timings

    faults = [str(fault) for fault in output_faults(out, sources)]
    try:
        fitted = fit_all(sources, per_worker=per_worker)
    except TimingsError as error:
        raise TimingsError([*faults, *error.faults]) from None
    if faults:
        raise TimingsError(faults)
    save_timings(fitted.profile, Path(out))
    if as_json:
        sys.stdout.write(Path(out).read_text(encoding="utf-8"))
    else:
        print_measured(fitted.profile)
    people = Console(stderr=True) if as_json else console()
    people.print(f"timings in {out}", highlight=False, markup=False, soft_wrap=True)
    for remark in fitted.remarks():
        people.print(remark, highlight=False, markup=False, soft_wrap=True)


def main() -> None:
    """The console script: runs a command and turns the user's mistakes into lines and exit status 2."""
    commands.run_and_exit(lambda: guarded(app, sys.argv[1:]))


def guarded(command: typer.Typer, arguments: list[str]) -> int:
    """Run a command of ours; what is wrong with its input is told in one line a fault, without a traceback."""
    return commands.guarded(command, arguments, TimingsError)


def check_outputs(folder: Path, perfetto: Path | None = None) -> None:
    """What will be written can be: a long simulation must not end at a file name."""
    faults = [*folder_faults(folder)]
    faults += filter(None, (file_fault(f"-o: {name}", folder / name) for name in OUTPUTS))
    if perfetto is not None and (fault := file_fault("--perfetto", perfetto)):
        faults.append(fault)
    if faults:
        raise PipelineError(faults)


def folder_faults(folder: Path) -> Iterator[Fault]:
    """What is wrong with a folder to write into, which is made where it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        yield unwritable(folder, error)


def status_of(summaries: Sequence[Mapping[str, Any]]) -> int:
    """The exit status of runs with these summaries."""
    if any(summary["stop_reason"] == "interrupted" for summary in summaries):
        return INTERRUPTED
    return INCOMPLETE if any(is_incomplete(summary) for summary in summaries) else COMPLETE


def read(file: Path, overrides: list[str] | None, seed: int | None) -> Pipeline:
    """The checked pipeline of a file, with the command line's changes."""
    changes = list(overrides or ())
    if seed is not None:
        changes.append(f"seed={seed}")
    return load(file, changes, for_simulation=True)


def name_of(pipeline: Pipeline, file: Path) -> str:
    """The name of the run, and of its folder."""
    return pipeline.name or file.stem


def described(pipeline: Pipeline) -> str:
    """The pipeline in a few words."""
    topology, training = pipeline.topology, pipeline.training
    return (
        f"{counted(topology.targets, 'target')} + {counted(topology.drafters, 'drafter')}, {pipeline.dispatch.policy}, "
        f"sync {training.sync}, accumulate {training.accumulate}"
    )


def counted(count: int, name: str) -> str:
    """`1 target`, `3 targets`."""
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def print_measured(profile: "Profile") -> None:
    """What timings hold, a line each."""
    from dflash_sim.fitting import measured_parts

    table = Table("measured", box=None, pad_edge=False, header_style="dim")
    for column in ("shapes", "samples", "median", "first"):
        table.add_column(column, justify="right")
    for part in measured_parts(profile):
        shapes = "–" if part.shapes is None else f"{part.shapes:,}"
        first = "–" if part.first is None else duration(part.first)
        table.add_row(part.name, shapes, f"{part.samples:,}", duration(part.median), first)
    console().print(table)


def quiet_policies() -> AbstractContextManager[object]:
    """What a user's policy prints goes to stderr: stdout is for the result."""
    return redirect_stdout(sys.stderr)


@contextmanager
def progress_bar(pipeline: Pipeline, what: str) -> Iterator[Callable[[float, float], None] | None]:
    """A bar on stderr over the share of trained batches, where a person watches; it starts again with each run."""
    errors = Console(stderr=True)
    if not errors.is_terminal:
        yield None
        return
    columns: list[Any] = [TextColumn(what), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task(what, total=1.0)
        yield lambda now, share: progress.update(task, completed=share)
