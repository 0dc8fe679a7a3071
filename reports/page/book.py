"""Collects what a report is made of while its page is built, and writes it: figures, tables, the page."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from reports.draw.style import Plate, render
from reports.page.csvfiles import csv_of
from reports.page.elements import Child, Markup, details, document, figure_of, joined, table_of, tag
from reports.page.manifest import replace_earlier
from reports.page.zoom import Zoom, zoom_element, zoom_script
from reports.summary import versions
from reports.tables import Table
from reports.writing import write_bytes

PAGE: Final = "index.html"
FIGURES: Final = "figures"
TABLES: Final = "tables"


class Book:
    """One report in one folder."""

    def __init__(self, folder: Path, more: Iterable[str] = ()) -> None:
        """`more`: files of this report that lie in the folder already."""
        self.folder = folder
        self._zooms = False
        self._made = set(more)

    def grid(self, figures: Iterable[Plate | Zoom]) -> Markup:
        """The figures, two in a row; details folded away after the others of their kind."""
        return tag("div", *self._figures(figures), class_="grid")

    def figure(self, plate: Plate) -> Markup:
        """Keep the figure as files; its place on the page."""
        rendered = render(plate)
        self.write(f"{FIGURES}/{plate.key}.svg", rendered.svg.encode())
        self.write(f"{FIGURES}/{plate.key}.png", rendered.png)
        return figure_of(rendered, FIGURES)

    def table(self, table: Table) -> Markup:
        """Keep the table as a file; its place on the page."""
        self.write(f"{TABLES}/{table.key}.csv", csv_of(table).encode())
        return table_of(table)

    def page(
        self, title: str, sections: Iterable[Child], links: Iterable[tuple[str, str]] = (), kinds: Iterable[str] = ()
    ) -> Path:
        """Write the page; `links` are (name, anchor) of its sections, `kinds` those of its runs."""
        main = tag("main", *sections, id="main")
        body = joined([_header(title, list(links)), main, _footer(set(kinds))])
        self.write(PAGE, document(title, body, [zoom_script()] if self._zooms else []).encode())
        replace_earlier(self.folder, self._made)
        return self.folder / PAGE

    def write(self, name: str, content: bytes) -> None:
        """A file that a reader never sees a part of; no two have one name."""
        if name in self._made:
            raise ValueError(f"two parts of the report are called {name}")
        self._made.add(name)
        write_bytes(self.folder / name, content)

    def _figures(self, figures: Iterable[Plate | Zoom]) -> Iterator[Markup]:
        folded: list[Markup] = []
        for each in figures:
            if isinstance(each, Plate) and each.detail:
                folded.append(self.figure(each))
                continue
            if folded:
                yield tag("div", details("Beginning, middle and end, span by span", *folded), class_="wide")
                folded = []
            yield self._zoom(each) if isinstance(each, Zoom) else self.figure(each)
        if folded:
            yield tag("div", details("Beginning, middle and end, span by span", *folded), class_="wide")

    def _zoom(self, zoom: Zoom) -> Markup:
        self._zooms = True
        return zoom_element(zoom)


def _header(title: str, links: list[tuple[str, str]]) -> Markup:
    parts: list[Child] = [tag("h1", title)]
    if len(links) > 1:
        items = (tag("li", tag("a", tag("bdi", name), href=f"#{anchor}")) for name, anchor in links)
        parts.append(tag("nav", tag("ul", *items), aria_label="Parts of this report"))
    return tag("header", *parts)


def _footer(kinds: set[str]) -> Markup:
    made = ", ".join(f"{package} {version}" for package, version in versions().items())
    return tag("footer", tag("p", f"Made by dflash-report with {made}.{_times(kinds)}"))


def _times(kinds: set[str]) -> str:
    """What a second is: of the model in simulations and rehearsals, of the clock in trainings."""
    modelled = kinds & {"simulation", "rehearsal"}
    if not modelled:
        return " Times are seconds of the clock." if kinds else ""
    if modelled == kinds:
        return " Times are model seconds of the run."
    return f" Times of a {' or a '.join(sorted(modelled))} are model seconds, those of others seconds of the clock."
