"""How figures look: colours that colour-blind readers can tell apart, axes with units, one drawing for light and dark.

Text, lines and grid are drawn in marked colours that the SVG turns into CSS variables, so the page's theme sets them;
data colours are those of Okabe and Ito and hold on both grounds.
"""

import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, Literal, ParamSpec, TypeVar

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from policies.faults import one_line

P = ParamSpec("P")
R = TypeVar("R")

STATE_COLOURS: Final = {
    "busy": "#0072B2",
    "blocked": "#D55E00",
    "starved": "#F0E442",
    "sync": "#CC79A7",
    "transfer": "#999999",
}
LINES: Final = ("#0072b3", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES: Final = ("-", "--", "-.", ":")
"""Series differ by dash, too: colour is never the only sign."""
INK: Final = "#1b1b1c"
MUTED: Final = "#5b5b5c"
GRID: Final = "#d6d6d7"
_VARIABLES: Final = {INK: "ink", MUTED: "muted", GRID: "grid", LINES[0]: "line"}
_THEMES: Final = (
    "svg{background:#fff}@media (prefers-color-scheme:dark){svg"
    "{--ink:#ececed;--muted:#aaaaab;--grid:#3a3a3b;--line:#3d9fe0;background:#17181b}}"
)

HALF: Final = 5.4
WIDE: Final = 12.8
"""Inches: half of the page's width, and all of it."""
_DPI: Final = 130

_RC: Final[Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "svg.hashsalt": "dflash-report",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "lines.linewidth": 1.5,
    "path.simplify": True,
    "image.composite_image": False,
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Plate:
    """A figure and what is said of it."""

    key: str
    """The name of its files and of its anchor."""
    title: str
    alt: str
    """What the figure shows, in words and numbers, for those who do not see it."""
    caption: str
    """How it was made, and how to read it."""
    figure: Figure
    wide: bool = False
    detail: bool = False
    """Shown only to those who ask for it."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Rendered:
    """A plate as bytes."""

    plate: Plate
    svg: str
    """A document of its own, light or dark as the reader likes it."""
    png: bytes
    """On white."""

    @property
    def inline(self) -> str:
        """The <svg> element for a page that sets the variables; its ids are the plate's own."""
        body = self.svg[self.svg.index("<svg") :].replace(f"<style>{_THEMES}</style>", "")
        key = re.sub(r"[^\w-]", "-", self.plate.key)
        body = re.sub(r'\bid="', f'id="{key}-', body)
        body = re.sub(r'(url\(#|xlink:href="#)', rf"\1{key}-", body)
        return re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.S)


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Everything that the function draws is in the report's style."""

    @wraps(draw)
    def drawn(*arguments: P.args, **named: P.kwargs) -> R:
        with matplotlib.rc_context(_RC), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # matplotlib's words about long names and empty axes
            return draw(*arguments, **named)

    return drawn


def new_figure(width: float = HALF, height: float = 3.0) -> Figure:
    """An empty figure."""
    return Figure(figsize=(width, height), layout="constrained")


def axes_of(figure: Figure, rows: int = 1, columns: int = 1, **more: Any) -> list[Axes]:
    """The figure's axes, row by row."""
    grid = figure.subplots(rows, columns, squeeze=False, **more)
    return [axis for row in grid for axis in row]


def _below(figure: Figure) -> Literal["outside lower left", "outside lower center"]:
    """A wide figure scrolls on a narrow screen: its legend is where the reader begins."""
    return "outside lower left" if figure.get_figwidth() > HALF else "outside lower center"


def legend_below(figure: Figure, axis: Axes, columns: int = 3) -> None:
    """The axis's legend under the figure, where it covers nothing."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc=_below(figure), ncols=columns)


@styled
def render(plate: Plate) -> Rendered:
    """Draw the plate as SVG and as PNG."""
    FigureCanvasAgg(plate.figure)
    raster, text = io.BytesIO(), io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a name in a script that the font lacks, or too long to fit
        plate.figure.savefig(raster, format="png", dpi=_DPI, facecolor="white", metadata={"Software": None})
        plate.figure.set_layout_engine("none")  # laid out once
        plate.figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return Rendered(plate=plate, svg=_themed(text.getvalue()), png=raster.getvalue())


def _themed(svg: str) -> str:
    for colour, name in _VARIABLES.items():
        svg = svg.replace(colour, f"var(--{name},{colour})")
    end = svg.index(">", svg.index("<svg")) + 1
    return f"{svg[:end]}<style>{_THEMES}</style>{svg[end:]}"


def state_legend(figure: Figure, states: Sequence[str]) -> None:
    """The states' colours, below the axes."""
    handles = [Patch(facecolor=STATE_COLOURS[state], label=state) for state in states]
    figure.legend(handles=handles, loc=_below(figure), ncols=max(len(handles), 1))


def colour(number: int) -> str:
    return LINES[number % len(LINES)]


def dash(number: int) -> str:
    return DASHES[number % len(DASHES)]


def short(name: str, most: int = 22) -> str:
    """A name from outside as a label: one line, not long, and none that matplotlib would hide."""
    text = one_line(name)
    text = text if len(text) <= most else f"{text[: most - 1]}…"
    return f" {text}" if text.startswith("_") else text


def short_worker(name: str) -> str:
    """A worker's name as a label: of a long one its beginning and its end, which tells it from its neighbours."""
    text = one_line(name)
    return short(text if len(text) <= 22 else f"{text[:10]}…{text[-11:]}")


def rows_height(count: int, each: float, most: float = 8.0) -> float:
    """Inches for so many rows: `each` apart, closer where there are too many of them."""
    return max(min(each * count, most), 0.09 * count)


def some(count: int, most: int = 16) -> list[int]:
    """Positions to label, evenly spaced where there are too many."""
    return list(range(0, count, max(-(-count // most), 1)))


def time_unit(end_s: float) -> tuple[float, str]:
    """Seconds in the unit that suits a run of this length, and its sign."""
    for seconds, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if end_s >= 3 * seconds:
            return seconds, unit
    return 1.0, "s"


def byte_unit(most: float) -> tuple[float, str]:
    """Bytes in the unit that suits this size, and its sign."""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if most >= size:
            return size, unit
    return 1.0, "B"


def rate_unit(most: float) -> tuple[float, str]:
    """Tokens per second in the unit that suits this rate, and its sign."""
    for size, unit in ((1e6, "Mtok/s"), (2e3, "Ktok/s")):
        if most >= size:
            return 1e6 if unit[0] == "M" else 1e3, unit
    return 1.0, "tok/s"
