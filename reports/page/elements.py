"""HTML, safely: everything that comes from files is escaped here, once."""

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Final

from reports.draw.style import Rendered
from reports.tables import Table, Value, shown

_POLICY: Final = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src "
"""What a page may load: nothing from outside; and it runs its own scripts only, each known by its hash."""


_UNSHOWN: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_CODE: Final = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Markup:
    """Text that is HTML already."""

    text: str

    def __str__(self) -> str:
        return self.text


Child = Markup | str
"""A str is plain text and is escaped."""


def text_of(child: Child) -> str:
    return child.text if isinstance(child, Markup) else _escaped(child)


def _escaped(text: str) -> str:
    """Safe in HTML; what would turn the direction of the text around it, or is no text, is shown by its number."""
    return escape(_UNSHOWN.sub(lambda found: found[0].encode("unicode_escape").decode(), text), quote=True)


def coded(text: str) -> Markup:
    """Text with `what stands in backticks` as code."""
    parts = _CODE.split(text)
    return joined(tag("code", part) if number % 2 else part for number, part in enumerate(parts))


def tag(name: str, *children: Child, **attributes: str | None) -> Markup:
    """An element; `class_` and `for_` lose their underscore, others turn theirs into hyphens; None leaves one out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{''.join(map(text_of, children))}</{name}>")


def joined(parts: Iterable[Child]) -> Markup:
    return Markup("".join(map(text_of, parts)))


def table_of(table: Table) -> Markup:
    """A table in a region that scrolls by itself and can be reached by the keyboard."""
    numeric = [_numeric(row[column] for row in table.rows) for column in range(len(table.columns))]
    head = joined(
        tag("th", name, scope="col", class_="n" if number else None)
        for name, number in zip(table.columns, numeric, strict=True)
    )
    body = joined(tag("tr", _row(row, numeric)) for row in table.rows)
    inner = tag("table", tag("caption", table.title), tag("thead", tag("tr", head)), tag("tbody", body))
    note = tag("p", table.note, class_="note") if table.note else ""
    return joined([tag("div", inner, class_="scroll rows", tabindex="0", role="region", aria_label=table.title), note])


def figure_of(rendered: Rendered, files_at: str) -> Markup:
    """A figure with its caption and the files that it is kept in, too."""
    plate = rendered.plate
    drawing = Markup(rendered.inline)
    image = tag("div", drawing, role="img", aria_label=plate.alt, class_="plate wide" if plate.wide else "plate")
    scroller = tag("div", image, class_="scroll", tabindex="0", role="region", aria_label=f"Figure: {plate.title}")
    links = tag(
        "span",
        tag("a", "PNG", href=f"{files_at}/{plate.key}.png"),
        " ",
        tag("a", "SVG", href=f"{files_at}/{plate.key}.svg"),
        class_="files",
    )
    caption = tag("figcaption", tag("strong", plate.title), " ", plate.caption, " ", links)
    return tag("figure", scroller, caption, class_="wide" if plate.wide else None, id=plate.key)


def details(summary: str, *children: Child, open_: bool = False, id_: str | None = None) -> Markup:
    """A part that opens and closes."""
    opened = {"open": ""} if open_ else {}
    return tag("details", tag("summary", summary), *children, id=id_, **opened)


def document(title: str, body: Markup, scripts: Sequence[str] = ()) -> str:
    """The whole page; it loads nothing."""
    hashes = [b64encode(sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = _POLICY + (" ".join(f"'sha256-{each}'" for each in hashes) or "'none'")
    style = files("reports.page").joinpath("page.css").read_text(encoding="utf-8")
    head = joined([
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{allowed}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<meta name="color-scheme" content="light dark">'),
        Markup('<link rel="icon" href="data:,">'),
        tag("title", title),
        Markup(f"<style>{style}</style>"),
    ])
    skip = tag("a", "Skip to the figures", href="#main", class_="skip")
    code = joined(Markup(f"<script>{script}</script>") for script in scripts)
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>{skip}{body}{code}</body></html>\n'


def _row(row: Sequence[Value], numeric: Sequence[bool]) -> Markup:
    first = tag("th", shown(row[0]), scope="row")
    cells = (tag("td", shown(value), class_="n" if n else None) for value, n in zip(row[1:], numeric[1:], strict=True))
    return joined([first, *cells])


def _numeric(values: Iterable[Value]) -> bool:
    return all(value is None or isinstance(value, int | float) for value in values)
