"""The picture of a validation: the prediction's progress and lanes over those of the run."""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from dflash_run.training.forecast import FILE as PREDICTION
from dflash_run.validation.kept import PROFILE, SUMMARY, kept_pipeline, plan_of_trace
from dflash_sim.prediction import simulate, summary_of
from dflash_sim.timings import MeasuredTimes
from dflash_sim.timings_file import read_timings
from policies.loading import replaced
from reports.runs import load_given
from reports.summary import to_json
from reports.tracefile import read_trace
from reports.writing import write_text

PICTURE: Final = "overlay.svg"


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
        plate = comparing.overlay([foretold, replace(real, name="measured")])
    assert plate is not None, "both have traces"
    write_text(folder / PICTURE, render(plate).svg)


def draw_missing(folder: Path) -> None:
    """The picture, where there is none yet."""
    if (folder / PICTURE).exists():
        return
    try:
        draw(folder)
    except ImportError as error:
        print(f"{folder.name}: not drawn: {error}; install the extra reports, then `make validate`", file=sys.stderr)
