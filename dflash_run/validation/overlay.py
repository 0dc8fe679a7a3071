"""The picture of a validation: the prediction's progress and lanes over those of the run."""

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from dflash_run.training.forecast import FILE as PREDICTION
from dflash_run.validation.kept import PROFILE, SUMMARY, kept_pipeline, plan_of_trace
from dflash_sim.prediction import simulate, summary_of
from dflash_sim.timings import MeasuredTimes
from dflash_sim.timings_file import read_timings
from policies.loading import replaced
from reports.runs import load_given
from reports.summary import to_json
from reports.tracefile import read_trace
from reports.writing import obstacle, write_text

PICTURE: Final = "overlay.svg"
MEASURED: Final = "measured"
"""The run's name in the picture; the prediction's is that of its file."""
DRAW: Final = "draw it with `python -m dflash_run.validation --draw`"
REDRAW: Final = f"delete it, and {DRAW}"
_SVG: Final = "{http://www.w3.org/2000/svg}"


def draw(folder: Path) -> None:
    """Simulate a case again from what is kept of it, and draw both. Raises ImportError without matplotlib."""
    from reports.draw import comparing
    from reports.draw.style import render

    plan = plan_of_trace(read_trace(folder))
    pipeline = replaced(kept_pipeline(folder), {"timings": {"file": str(folder / PROFILE)}})
    measured = MeasuredTimes(read_timings(folder / PROFILE), anchors=pipeline.training.anchors)
    with tempfile.TemporaryDirectory(prefix="dflash-overlay-") as space:
        predicted = Path(space) / Path(PREDICTION).stem
        run = simulate(pipeline, plan=plan, measured=measured, trace_in=predicted)
        write_text(predicted / SUMMARY, to_json(summary_of(run)))
        foretold, real = load_given([predicted, folder]).runs
        plate = comparing.overlay([foretold, replace(real, name=MEASURED)])
    assert plate is not None, "both have traces"
    write_text(folder / PICTURE, render(plate).svg)


def picture_faults(folder: Path) -> list[str]:
    """What is wrong with the kept picture, by itself: to draw it anew to compare would take a third of all the time."""
    path = folder / PICTURE
    if not os.path.lexists(path):
        return [f"{folder.name}: {PICTURE}: missing; {DRAW}"]
    found = obstacle(path) or _damage(path)
    return [] if found is None else [f"{folder.name}: {PICTURE}: must be as it was drawn; it is {found}; {REDRAW}"]


def _damage(path: Path) -> str | None:
    try:
        root = ElementTree.fromstring(path.read_bytes())
    except (OSError, ElementTree.ParseError, ValueError, RecursionError) as error:
        return f"damaged ({error})"
    words = {text.strip() for each in root.iter(f"{_SVG}text") for text in each.itertext()}
    lacking = sorted({Path(PREDICTION).stem, MEASURED} - words)
    return f"without {' and '.join(lacking)}" if root.tag != f"{_SVG}svg" or lacking else None


def draw_missing(folder: Path) -> None:
    """The picture, where there is none yet."""
    if (folder / PICTURE).exists():
        return
    try:
        draw(folder)
    except ImportError as error:
        print(f"{folder.name}: not drawn: {error}; install the extra reports, then {DRAW}", file=sys.stderr)
