"""Draws docs/pictures/record.svg: who waits under `i % 3` and under one shared queue.

Run from the repository with the extra `reports` installed: `python docs/pictures/record.py`.
"""

from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt

from dflash_sim.comparison import predict
from policies.loading import load, replaced
from reports.verdict import ktok

# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = {"busy": "#0072B2", "blocked": "#D55E00", "starved": "#F0E442", "sync": "#CC79A7", "transfer": "#999999"}
POLICIES = {"round_robin": "one queue per drafter, i % 3", "shared": "one shared queue"}
MEASURED = {"round_robin": 17_500, "shared": 19_400}


def main() -> None:
    matplotlib.rcParams.update({"svg.hashsalt": "record", "svg.fonttype": "none", "font.size": 9})
    pipeline = load("examples/field_record.yaml", for_simulation=True)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3), sharey=True, layout="constrained")
    for axis, (policy, name) in zip(axes, POLICIES.items(), strict=True):
        summary = predict(replaced(pipeline, {"dispatch.policy": policy}))[1]
        rate = summary["throughput"]["steady_tokens_per_s"]
        draw(axis, summary["workers"])
        axis.set_title(f"{name}\nmodel {ktok(rate)}, measured {ktok(MEASURED[policy])}", fontsize=9)
    axes[0].invert_yaxis()  # shared by both
    used = [state for state in COLOURS if state in ("busy", "blocked", "starved")]
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[state]) for state in used]
    figure.legend(handles, used, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})


def draw(axis: plt.Axes, workers: list[dict]) -> None:
    """One bar per worker: shares of its lifetime."""
    for row, worker in enumerate(workers):
        left = 0.0
        for state, colour in COLOURS.items():
            share = 100 * worker[f"{state}_s"] / worker["lifetime_s"]
            axis.barh(row, share, left=left, color=colour, height=0.8)
            left += share
    axis.set_yticks(range(len(workers)), [worker["name"] for worker in workers])
    axis.set_xlim(0, 100)
    axis.set_xlabel("share of the run [%]")
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
