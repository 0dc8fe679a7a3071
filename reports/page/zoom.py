"""The timeline that a reader can zoom: shares of every state in many bins, packed into the page."""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reports.draw.style import STATE_COLOURS, short_worker
from reports.metrics import STATES
from reports.page.elements import Markup, joined, tag
from reports.spans import WorkerSpans
from reports.table import duration

_BINS: Final = 8_192
_MOST_BYTES: Final = 1_500_000
"""What the packed shares of one run may take in the page; more workers get fewer bins."""
_BUTTONS: Final = (("in", "Zoom in"), ("out", "Zoom out"), ("left", "Earlier"), ("right", "Later"), ("all", "All"))


@dataclass(frozen=True, eq=False, kw_only=True)
class Zoom:
    """Shares of W workers in S states and K bins over a run."""

    key: str
    names: tuple[str, ...]
    states: tuple[str, ...]
    shares: NDArray[np.uint8]
    """uint8[W, S, K]: 255 is the whole bin; what is missing to 255 the worker did not live."""
    end_s: float


def zoom_of(key: str, spans: Sequence[WorkerSpans], end_s: float) -> Zoom:
    """The shares of these workers, in as many bins as the page may carry."""
    seen = {int(state) for each in spans for state in np.unique(each.state)}
    states = [state for state in range(len(STATES)) if state in seen] or [0]
    bins = max(min(_BINS, _MOST_BYTES // (len(spans) * len(states))), 64)
    edges = np.linspace(0.0, end_s, bins + 1)
    packed = np.zeros((len(spans), len(states), bins), np.uint8)
    for row, each in enumerate(spans):
        # Rounded as sums over the states, so that what a bin holds in all is never rounded away.
        sums = np.rint(255 * np.cumsum(each.shares(edges)[states], axis=0)).clip(0, 255)
        packed[row] = np.diff(sums, axis=0, prepend=0.0)
    names = tuple(short_worker(each.name) for each in spans)
    return Zoom(key=key, names=names, states=tuple(STATES[state] for state in states), shares=packed, end_s=end_s)


def zoom_element(zoom: Zoom) -> Markup:
    """The element; without scripts it stays hidden."""
    bins = zoom.shares.shape[2]
    data = {
        "names": zoom.names,
        "colours": [STATE_COLOURS[state] for state in zoom.states],
        "bins": bins,
        "end": zoom.end_s,
        "shares": base64.b64encode(zoom.shares.tobytes()).decode(),
    }
    packed = json.dumps(data).replace("<", "\\u003c")
    buttons = [tag("button", label, type="button", data_do=what) for what, label in _BUTTONS]
    alt = f"Timeline of {len(zoom.names)} workers that can be zoomed; plus, minus and the arrow keys work here."
    canvas = tag("canvas", alt, tabindex="0", role="img", aria_label=alt)
    caption = tag(
        "figcaption",
        tag("strong", "Timeline to zoom into"),
        f" The run in {bins:,} bins of {duration(zoom.end_s / bins)}; a column that covers several bins shows their "
        "mean shares, a bin wider than a column is drawn as wide as it is. Drag, or use the buttons, + − 0 ← →, or "
        "Ctrl and the wheel. Colours as in the timeline above.",
    )
    parts = [
        tag("div", *buttons, tag("output", "", aria_live="polite"), class_="buttons"),
        canvas,
        Markup(f'<script type="application/json">{packed}</script>'),
        caption,
    ]
    return tag("figure", joined(parts), class_="zoom wide", id=zoom.key, hidden="")


def zoom_script() -> str:
    return files("reports.page").joinpath("zoom.js").read_text(encoding="utf-8")
