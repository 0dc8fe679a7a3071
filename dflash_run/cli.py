"""The command `dflash-run`: rehearse, profile, train (evaluate is to come)."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dflash_run.live import live_view
from dflash_run.outcome import tell
from dflash_run.rehearsal import CREWS, rehearse
from dflash_sim.cli import (
    AsJson,
    File,
    Out,
    Overrides,
    Seed,
    check_outputs,
    console,
    described,
    guarded,
    name_of,
    read,
    status_of,
)
from dflash_sim.interrupts import interruptible
from dflash_sim.prediction import summary_of
from policies.faults import Fault, PipelineError
from policies.loading import load
from reports.commands import run_and_exit
from reports.summary import versions

COMPUTES = ("sleep", "torch")
Multiprocessors = Annotated[
    str | None,
    typer.Option(
        metavar="N,N,…", help="Of a GPU for each worker, targets first, with --compute torch; left out: evenly."
    ),
]

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Run a pipeline with real workers.")


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Show versions and end.")] = False) -> None:
    if version:
        typer.echo(", ".join(f"{name} {number}" for name, number in versions().items()))
        raise typer.Exit


@app.command("rehearse")
def rehearse_command(
    file: File,
    speedup: Annotated[float, typer.Option(help="Model seconds per wall second.")] = 1.0,
    driver: Annotated[str, typer.Option(help=f"How workers are run: {' or '.join(CREWS)}.")] = "threads",
    multiprocessors: Multiprocessors = None,
    compute: Annotated[str, typer.Option(help=f"What they do: {' or '.join(COMPUTES)}.")] = "sleep",
    overrides: Overrides = None,
    out: Out = None,
    as_json: AsJson = False,
    seed: Seed = None,
) -> None:
    """Real workers and queues; their computing is a timed sleep. All times told are model seconds.

    With --compute torch a training's file is rehearsed with real batches and kernels: every worker is a thread on its
    own part of one GPU.
    """
    faults = []
    if compute not in COMPUTES:
        faults.append(Fault("--compute", compute, f"must be {' or '.join(COMPUTES)}"))
    if compute == "torch" and (driver, speedup) != ("threads", 1.0):
        given = [f"--driver {driver}"] * (driver != "threads") + [f"--speedup {speedup:g}"] * (speedup != 1.0)
        rule = f"goes with threads and real time, not {' '.join(given)}"
        faults.append(Fault("--compute", compute, rule, "leave them out"))
    if multiprocessors is not None and compute != "torch":
        rule = "goes with --compute torch: workers that sleep need none"
        faults.append(Fault("--multiprocessors", multiprocessors, rule, "leave one out"))
    if driver not in CREWS:
        faults.append(Fault("--driver", driver, f"must be {' or '.join(CREWS)}"))
    if not 1e-6 <= speedup < float("inf"):
        faults.append(Fault("--speedup", speedup, "must be a number of at least 1e-6"))
    if faults:
        raise PipelineError(faults)
    if compute == "torch":
        from dflash_run.partitions.command import rehearse_computing

        changes = [*(overrides or ()), *([] if seed is None else [f"seed={seed}"])]
        sizes = _sizes(multiprocessors)
        raise typer.Exit(rehearse_computing(load(file, changes), file, sizes=sizes, out=out, as_json=as_json))
    pipeline = read(file, overrides, seed)
    folder = out if out is not None else Path("runs") / name_of(pipeline, file)
    check_outputs(folder)
    title = f"{name_of(pipeline, file)}: {described(pipeline)}, {driver} × {speedup:g}"
    people = Console(stderr=True) if as_json else console()
    people.print(f"in {folder}", style="dim", highlight=False, markup=False, soft_wrap=True)
    with interruptible() as interrupted:  # until the summary is there
        with live_view(title) as watch:
            run = rehearse(
                pipeline, folder, driver=driver, speedup=speedup, watch=watch, interrupted=interrupted
            )  # fmt: skip
        summary = summary_of(run, kind="rehearsal", driver=driver, speedup=speedup)
        tell(people, summary, title, folder, as_json=as_json)
    raise typer.Exit(status_of([summary]))


@app.command("profile")
def profile_command(
    file: File,
    out: Annotated[Path, typer.Option("-o", "--out", help="The timings.json to write.", show_default=False)],
    overrides: Overrides = None,
    multiprocessors: Multiprocessors = None,
    rehearsal: Annotated[bool, typer.Option(help="Of `rehearse --compute torch`, not of a training.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The timings alone on stdout, as JSON.")] = False,
    seed: Seed = None,
) -> None:
    """Measure a training's targets, drafters, copies and memory on this machine, without training."""
    from dflash_run.profiling.command import profile_file

    status = profile_file(
        file, overrides, out=out, as_json=as_json, seed=seed, rehearsal=rehearsal, sizes=_sizes(multiprocessors)
    )  # fmt: skip
    raise typer.Exit(status)


@app.command("train")
def train_command(
    file: Annotated[Path | None, typer.Argument(help="The pipeline file; left out: the resumed checkpoint's.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on from this run's newest checkpoint, or this one.")] = None,
    verify: Annotated[bool, typer.Option(help="Compare every batch that arrives by a checksum.")] = False,
    predict: Annotated[
        Path | None, typer.Option(metavar="TIMINGS", help="Predict with this timings.json first; compare on the way.")
    ] = None,
    overrides: Overrides = None,
    out: Out = None,
    as_json: AsJson = False,
    seed: Seed = None,
) -> None:
    """Train a drafter on the hidden states of a frozen target."""
    from dflash_run.training.command import train_file

    status = train_file(
        file,
        resume=resume,
        verify=verify,
        overrides=overrides,
        out=out,
        as_json=as_json,
        seed=seed,
        predict=predict,
    )
    raise typer.Exit(status)


def _sizes(given: str | None) -> list[int] | None:
    """Raises PipelineError."""
    if given is None:
        return None
    parts = [part.strip() for part in given.split(",")]
    if not all(part.isdecimal() and 0 < int(part) <= 4096 for part in parts):
        rule = "must be whole numbers, one for each worker, targets first"
        raise PipelineError([Fault("--multiprocessors", given, rule, "e.g. 16,16,8")])
    return [int(part) for part in parts]


def main() -> None:
    """The console script."""
    run_and_exit(lambda: guarded(app, sys.argv[1:]))
