"""The command `dflash-report`: a page from runs, and what moved between two of them."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from policies.faults import ABSENT, Fault, PipelineError
from reports.commands import COMPLETE, console, guarded
from reports.runs import Given, Run, load_given
from reports.verdict import ktok
from reports.whatif import Answer, Questions, can_ask

report_app = typer.Typer(add_completion=False, help="Turn runs into one HTML page.")

Seconds = Annotated[
    float, typer.Option("--what-if", metavar="SECONDS", help="Time for simulations of changes; 0: none.", min=0)
]


@report_app.command(
    epilog="`dflash-report diff A B` says what differs between two runs and which side moved; see its --help."
)
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN…", help="Run folders, summary.json files, comparisons, plans.", show_default=False),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="The folder to write.", show_default=False)],
    what_if: Seconds = 10.0,
) -> None:
    """Turn runs into one HTML page that opens offline, with its figures and tables as files."""
    check_extra()
    check_folder(out)
    given = load_given(runs)
    asked = _ask(given) if what_if > 0 else {}
    from reports.page.build import build  # matplotlib and pandas load slowly

    answers: dict[str, list[Answer]] = {name: questions.answers(what_if) for name, questions in asked.items()}
    page = build(given, out, answers)
    for run in given.runs:
        _say(run)
    console().print(f"wrote {page}", highlight=False, soft_wrap=True, markup=False)
    raise typer.Exit(COMPLETE)


def main() -> None:
    """The console script."""
    sys.exit(guarded(report_app, sys.argv[1:]))


def check_extra() -> None:
    """Drawing needs the extra `reports`."""
    lacking = [name for name in ("matplotlib", "pandas") if find_spec(name) is None]
    if lacking:
        remedy = "pip install 'dflash-pipeline[reports]'"
        raise PipelineError([Fault("dflash-report", ABSENT, f"needs {' and '.join(lacking)}", remedy)])


def check_folder(folder: Path) -> None:
    """What will be written can be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        rule = f"must be a folder that can be written: {error.strerror}"
        raise PipelineError([Fault("-o", str(folder), rule)]) from error


def _ask(given: Given) -> dict[str, Questions]:
    """Start the simulations of what changes would bring, for a run that stands alone."""
    if len(given.runs) != 1:
        return {}
    run = given.runs[0]
    if not can_ask(run.summary["config"]) or run.summary["throughput"]["tokens_per_s"] is None:
        return {}
    return {run.name: Questions(run.summary["config"], policies=not run.summary["alternatives"])}


def _say(run: Run) -> None:
    rate = run.summary["throughput"]["steady_tokens_per_s"]
    said = f"{run.name}: {ktok(rate) + ', ' if rate is not None else ''}{run.summary['verdict']['text']}"
    out = console()
    out.print(said, highlight=False, markup=False)
    for line in run.missing:
        out.print(f"{run.name}: {line}", highlight=False, markup=False)
