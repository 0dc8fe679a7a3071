"""The command `dflash-report`: a page from runs, and what moved between two of them."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table as Grid

from policies.faults import ABSENT, Fault, PipelineError, one_line
from policies.trace import TraceError
from reports.commands import COMPLETE, console, guarded, run_and_exit
from reports.difference import difference_json, difference_tables, difference_text
from reports.outcome import contradictions, verdict_text
from reports.runs import Given, Run, load_given
from reports.summary import to_json, versions
from reports.tables import Table, shown
from reports.verdict import ktok
from reports.whatif import Answer, Questions, question_of

_DIFF = "`dflash-report diff A B` says what differs between two runs, and which side moved."

report_app = typer.Typer(add_completion=False, help="Turn runs into one HTML page.")
diff_app = typer.Typer(add_completion=False, help="What differs between two runs.")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(", ".join(f"{name} {number}" for name, number in versions().items()))
        raise typer.Exit


Seconds = Annotated[
    float, typer.Option("--what-if", metavar="SECONDS", help="Time for simulations of changes; 0: none.", min=0)
]
Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show versions and end.")]


@report_app.command(epilog=_DIFF)
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN…", help="Run folders, summary.json files, comparisons, plans.", show_default=False),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="The folder to write.", show_default=False)],
    what_if: Seconds = 10.0,
    perfetto: Annotated[bool, typer.Option("--perfetto", help="Also write the traces for ui.perfetto.dev.")] = False,
    version: Version = False,
) -> None:
    """Turn runs into one HTML page that opens offline, with its figures and tables as files."""
    _check_extra()
    _check_folder(out)
    given = load_given(runs)
    if not given.runs and given.plan is None:
        raise PipelineError([Fault("RUN", ABSENT, "nothing to report: the comparisons given hold no run")])
    unasked: dict[str, str] = {}
    asked = _ask(given, what_if, unasked)
    from reports.page.build import build  # matplotlib and pandas load slowly; the questions run meanwhile

    traces = _export(given.runs, out) if perfetto else []
    answers: dict[str, list[Answer]] = {name: questions.answers(what_if) for name, questions in asked.items()}
    for run in given.runs:
        if run.name in asked and (why := asked[run.name].why):
            run.missing.append(f"simulations of changes: {why}")
            unasked[run.name] = f"not all was simulated: {why}"
    page = build(given, out, answers, traces, unasked)
    for run in given.runs:
        _say(run)
    _wrote(page)
    raise typer.Exit(COMPLETE)


@diff_app.command()
def diff(
    before: Annotated[Path, typer.Argument(metavar="A", help="A run's folder or summary.json.", show_default=False)],
    after: Annotated[Path, typer.Argument(metavar="B", help="The run to hold against it.", show_default=False)],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Also write a page into this folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="What moved alone on stdout, as JSON.")] = False,
    version: Version = False,
) -> None:
    """What differs between two runs: settings, versions, lengths of the data, and how far each side moved."""
    if out is not None:
        _check_extra()
        _check_folder(out)
    runs = load_given([before, after]).runs
    if len(runs) != 2:
        raise PipelineError([Fault("A B", ABSENT, f"must be two runs; these files hold {len(runs)}")])
    first, second = runs
    if as_json:
        sys.stdout.write(to_json(difference_json(first, second)))
    else:
        _print_difference(first, second)
    if out is not None:
        from reports.page.build import build_difference

        page = build_difference(first, second, out)
        if not as_json:
            _wrote(page)
    raise typer.Exit(COMPLETE)


def _print_difference(first: Run, second: Run) -> None:
    console().print(f"[bold]{escape(one_line(second.name))} against {escape(one_line(first.name))}[/bold]")
    console().print(one_line(difference_text(first, second)), highlight=False, markup=False)
    for table in difference_tables(first, second):
        _print_table(table)
    for run in (first, second):
        _say_missing(run)


def main() -> None:
    """The console script."""
    words = sys.argv[1:]
    if words[:1] == ["diff"]:
        run_and_exit(lambda: guarded(diff_app, words[1:], name="dflash-report diff"))
    run_and_exit(lambda: guarded(report_app, words or ["--help"]))


def _check_extra() -> None:
    """Drawing needs the extra `reports`."""
    lacking = [name for name in ("matplotlib", "pandas") if find_spec(name) is None]
    if lacking:
        remedy = "pip install 'dflash-pipeline[reports]'"
        raise PipelineError([Fault("dflash-report", ABSENT, f"needs {' and '.join(lacking)}", remedy)])


def _check_folder(folder: Path) -> None:
    """What will be written can be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        rule = f"must be a folder that can be written: {error.strerror}"
        raise PipelineError([Fault("-o", str(folder), rule)]) from error


def _ask(given: Given, seconds: float, unasked: dict[str, str]) -> dict[str, Questions]:
    """Start the simulations of what changes would bring, for a run that stands alone; `unasked` gets why not."""
    why: list[str] = []
    if seconds <= 0:
        why.append("--what-if 0")
    elif len(given.runs) != 1:
        why.append("several runs: report on one alone")
    else:
        (run,) = given.runs
        question = question_of(run, why)
        if question is not None:
            return {run.name: Questions(question, policies=not run.summary["alternatives"])}
    unasked.update((run.name, f"nothing was simulated: {'; '.join(why)}") for run in given.runs)
    return {}


def _export(runs: Sequence[Run], out: Path) -> list[str]:
    """The traces as Chrome JSON; their names within the folder."""
    from reports.perfetto import export_perfetto
    from reports.tracefile import read_trace

    found = []
    for run in runs:
        if run.recorded is None:
            continue
        name = f"perfetto/{run.slug}.json"
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            export_perfetto(read_trace(run.path), out / name)
        except TraceError as error:
            run.missing.append(f"no trace for ui.perfetto.dev: {error}")
            continue
        found.append(name)
    return found


def _say(run: Run) -> None:
    rate = run.summary["throughput"]["steady_tokens_per_s"]
    said = f"{run.name}: {ktok(rate) + ' steady; ' if rate is not None else ''}{verdict_text(run.summary)}"
    console().print(one_line(said), highlight=False, markup=False)
    _say_missing(run)


def _say_missing(run: Run) -> None:
    for line in [*contradictions(run), *run.missing]:
        console().print(one_line(f"{run.name}: {line}"), highlight=False, markup=False)


def _wrote(page: Path) -> None:
    console().print(one_line(f"wrote {page}"), highlight=False, soft_wrap=True, markup=False)


def _print_table(table: Table) -> None:
    out = console()
    note = "" if table.rows else f": {escape(one_line(table.note))}"
    out.print(f"\n[bold]{escape(one_line(table.title))}[/bold]{note}", highlight=False)
    if not table.rows:
        return
    grid = Grid(box=None, pad_edge=False, header_style="dim")
    for number, column in enumerate(table.columns):
        numeric = all(not isinstance(row[number], str) for row in table.rows)
        grid.add_column(escape(one_line(column)), justify="right" if numeric else "left", overflow="fold")
    for row in table.rows:
        grid.add_row(*(escape(one_line(shown(value))) for value in row))
    out.print(grid)
