"""Puts a report together and writes it: the page, every figure as PNG and SVG, every table as CSV."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from reports.draw.style import Rendered, render
from reports.page.csvfiles import csv_of
from reports.page.elements import Child, Markup, details, document, figure_of, joined, table_of, tag
from reports.page.firstscreen import first_screen
from reports.page.runfigures import key, plates_of, tables_of
from reports.runs import Given, Run
from reports.summary import versions
from reports.tables import Table
from reports.whatif import Answer

PAGE: Final = "index.html"
FIGURES: Final = "figures"
TABLES: Final = "tables"


class Book:
    """Collects figures and tables while the page is built, and writes them as files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: list[Path] = []

    def figure(self, rendered: Rendered) -> Markup:
        """Keep the figure; its place on the page."""
        name = rendered.plate.key
        self.write(f"{FIGURES}/{name}.svg", rendered.svg.encode())
        self.write(f"{FIGURES}/{name}.png", rendered.png)
        return figure_of(rendered, FIGURES)

    def table(self, table: Table) -> Markup:
        """Keep the table; its place on the page."""
        self.write(f"{TABLES}/{table.key}.csv", csv_of(table).encode())
        return table_of(table)

    def write(self, name: str, content: bytes) -> None:
        """A file that a reader never sees a part of."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        self.written.append(path)


def build(given: Given, folder: Path, answers: Mapping[str, Sequence[Answer]]) -> Path:
    """Write the report into the folder; returns the page. `answers`: what changes would bring, by run."""
    book = Book(folder)
    sections = [run_section(book, run, answers.get(run.name), alone=len(given.runs) == 1) for run in given.runs]
    title = "dflash report: " + ", ".join(run.name for run in given.runs)
    body = joined([header(title, [run.name for run in given.runs]), tag("main", *sections, id="main"), footer()])
    book.write(PAGE, document(title, body).encode())
    return folder / PAGE


def run_section(book: Book, run: Run, answers: Sequence[Answer] | None, *, alone: bool) -> Markup:
    """Everything about one run."""
    plates = [book.figure(render(plate)) for plate in plates_of(run)]
    tables = [book.table(table) for table in tables_of(run)]
    grid = tag("div", *plates, class_="grid")
    parts: list[Child] = [tag("h2", run.name), first_screen(run, answers)]
    parts += [grid if alone else details("Figures of this run", grid)]
    parts += [details("Tables of this run", *tables)]
    return tag("section", *parts, id=key(run, "run"))


def header(title: str, names: Sequence[str]) -> Markup:
    """The page's head, with links to the runs where there are several."""
    links: list[Child] = []
    if len(names) > 1:
        items = (tag("li", tag("a", name, href=f"#{key_of(name)}")) for name in names)
        links = [tag("nav", tag("ul", *items), aria_label="Runs")]
    return tag("header", tag("h1", title), *links)


def key_of(name: str) -> str:
    """The anchor of a run's section."""
    from reports.page.elements import anchor

    return anchor(name, "run")


def footer() -> Markup:
    made = ", ".join(f"{package} {version}" for package, version in versions().items())
    return tag("footer", tag("p", f"Made by dflash-report with {made}. All times are model seconds of the run."))
