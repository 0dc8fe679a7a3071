"""Puts reports together: about one run or several, a prediction beside a measurement, a plan, a difference."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from reports.compared import pair_of, prediction_table, runs_table
from reports.difference import changes_of, difference_tables, difference_text
from reports.draw import changes, comparing
from reports.outcome import contradictions, verdict_text
from reports.page.book import Book
from reports.page.elements import Child, Markup, coded, details, tag
from reports.page.firstscreen import first_screen
from reports.page.runfigures import figures_of, key, tables_of
from reports.plans import plan_rows
from reports.runs import Given, Run
from reports.tables import versions_table
from reports.whatif import Answer


def build(
    given: Given,
    folder: Path,
    answers: Mapping[str, Sequence[Answer]],
    perfetto: Sequence[str] = (),
    unasked: Mapping[str, str] | None = None,
) -> Path:
    """Write the report into the folder; returns the page.

    `answers`: what changes would bring, by run; `unasked`: why some were not simulated, by run. `perfetto`: files for
    ui.perfetto.dev that lie in the folder.
    """
    book, runs = Book(folder, perfetto), given.runs
    sections: list[Child] = []
    links = []
    if len(runs) > 1:
        sections.append(_side_by_side(book, given))
        links.append(("Side by side", "compare"))
    if given.plan is not None:
        sections.append(_plan(book, given.plan))
        links.append(("Plan", "plan"))
    for run in runs:
        sections.append(_run(book, run, answers.get(run.name), (unasked or {}).get(run.name, ""), alone=len(runs) == 1))
        links.append((run.name, key(run, "run")))
    if perfetto:
        files = [tag("li", tag("a", name, href=name)) for name in perfetto]
        sections.append(tag("section", tag("h2", "Traces for ui.perfetto.dev"), tag("ul", *files)))
    names = [run.name for run in runs] or ["a plan"]
    kinds = {run.summary["kind"] for run in runs}
    return book.page(f"dflash report: {', '.join(names)}", sections, links, kinds)


def build_difference(before: Run, after: Run, folder: Path) -> Path:
    """Write a page about what differs between two runs."""
    book = Book(folder)
    plates = [changes.factors(changes_of(before, after), before.name, after.name), comparing.roles([before, after])]
    plates += [plate for plate in (comparing.overlay([before, after]),) if plate is not None]
    tables = [book.table(table) for table in difference_tables(before, after)]
    verdicts = [
        tag("li", tag("strong", tag("bdi", run.name)), " ", coded(verdict_text(run.summary))) for run in (before, after)
    ]
    lines = [(run.name, line) for run in (before, after) for line in (*contradictions(run), *run.missing)]
    missing = [tag("li", tag("bdi", name), ": ", coded(line)) for name, line in lines]
    parts: list[Child] = [
        tag("p", tag("strong", "What moved "), difference_text(before, after), class_="verdict"),
        tag("ul", *verdicts),
        *([tag("div", tag("strong", "What is missing"), tag("ul", *missing), class_="missing")] if missing else []),
        book.grid(plates),
        *tables,
    ]
    kinds = {run.summary["kind"] for run in (before, after)}
    return book.page(f"dflash report: {after.name} against {before.name}", [tag("section", *parts)], kinds=kinds)


def _run(book: Book, run: Run, answers: Sequence[Answer] | None, why: str, *, alone: bool) -> Markup:
    """Everything about one run; figures come first, since they may find that something is missing."""
    grid = book.grid(figures_of(run))
    tables = [book.table(table) for table in tables_of(run)]
    parts: list[Child] = [tag("h2", tag("bdi", run.name)), first_screen(run, answers, why)]
    parts += [grid if alone else details("Figures of this run", grid), details("Tables of this run", *tables)]
    return tag("section", *parts, id=key(run, "run"))


def _side_by_side(book: Book, given: Given) -> Markup:
    """The comparison of several runs."""
    runs = given.runs
    plates = [comparing.rates(runs), comparing.roles(runs)]
    plates += [plate for plate in (comparing.overlay(runs),) if plate is not None]
    parts: list[Child] = [tag("h2", "Side by side")]
    if given.outcome:
        parts.append(tag("p", tag("strong", "Outcome "), given.outcome, class_="verdict"))
    pair = pair_of(runs)
    if pair is not None:
        said = difference_text(*pair)
        parts.append(tag("p", tag("strong", "Measured against predicted "), said, class_="verdict"))
    parts += [book.grid(plates), book.table(runs_table(runs))]
    if pair is not None:
        parts.append(book.table(prediction_table(*pair)))
    summaries = {run.name: run.summary for run in runs}
    if len({tuple(sorted(summary["versions"].items())) for summary in summaries.values()}) > 1:
        parts.append(tag("p", "The runs were made by different versions; the table shows which.", class_="missing"))
        parts.append(book.table(versions_table("compare-versions", summaries)))
    return tag("section", *parts, id="compare")


def _plan(book: Book, plan: Mapping[str, object]) -> Markup:
    """A plan's candidates."""
    table, candidates = plan_rows(plan)
    plate = changes.frontier(candidates)
    figures = book.grid([plate]) if plate is not None else tag("p", "No candidate says a throughput.")
    return tag("section", tag("h2", "Plan"), figures, details("Candidates", book.table(table)), id="plan")
