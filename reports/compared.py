"""Several runs side by side, and a prediction beside what was measured; as tables."""

from collections.abc import Sequence
from typing import Any

from reports.difference import mean_share
from reports.runs import Run
from reports.tables import Table, Value


def runs_table(runs: Sequence[Run]) -> Table:
    """The main figures of every run, best first."""
    rows = []
    for run in sorted(runs, key=lambda run: -(rate_of(run) or 0.0)):
        interval = interval_of(run)
        starved, blocked = mean_share(run.summary, "drafter", "starved"), mean_share(run.summary, "target", "blocked")
        rows.append((
            run.name,
            run.summary["kind"],
            run.summary["policy"],
            rate_of(run),
            *(interval or (None, None)),
            None if run.gain is None else 100 * run.gain,
            *((None, None) if run.gain_ci95 is None else [100 * bound for bound in run.gain_ci95]),
            float(run.summary["makespan_s"]),
            *(None if share is None else 100 * share for share in (blocked, starved)),
            run.summary["memory"]["host_peak_bytes"],
            run.summary["verdict"]["bottleneck"],
        ))
    columns = (
        "run", "kind", "policy", "rate [tokens/s]", "95 % from", "to", "gain [%]", "paired 95 % from", "to ",
        "makespan [s]", "targets blocked [%]", "drafters starved [%]", "host peak [B]", "verdict",
    )  # fmt: skip
    note = "Rate: steady, or over the whole run where no steady rate is known."
    if bases := sorted({run.gain_over for run in runs if run.gain is not None and run.gain_over}):
        note += f" Gain: against {' or '.join(bases)}, the policy of the compared file."
    return Table(key="compare-runs", title="Runs side by side", columns=columns, rows=tuple(rows), note=note)


def pair_of(runs: Sequence[Run]) -> tuple[Run, Run] | None:
    """A prediction and a measurement, if the runs are one simulation and real runs: the first of each."""
    predicted = [run for run in runs if run.summary["kind"] == "simulation"]
    measured = [run for run in runs if run.summary["kind"] in ("rehearsal", "training")]
    return (predicted[0], measured[0]) if predicted and measured else None


def prediction_table(predicted: Run, measured: Run) -> Table:
    """Predicted, measured, difference."""
    rows: list[tuple[Value, ...]] = []
    for what, value in _measures(predicted).items():
        other = _measures(measured).get(what)
        relative = 100 * (other / value - 1) if value and other is not None and "[%]" not in what else None
        points = round(other - value, 6) if "[%]" in what and value is not None and other is not None else None
        rows.append((what, value, other, relative, points))
    columns = ("what", f"predicted: {predicted.name}", f"measured: {measured.name}", "difference [%]", "[points]")
    return Table(key="prediction", title="Prediction against measurement", columns=columns, rows=tuple(rows))


def rate_of(run: Run) -> float | None:
    """Steady rate, else that of the whole run [tokens/s]."""
    rates = run.summary["throughput"]
    rate = rates["steady_tokens_per_s"] or rates["tokens_per_s"]
    return None if rate is None else float(rate)


def interval_of(run: Run) -> tuple[float, float] | None:
    """The 95 % interval of that rate: over replications, else within the run."""
    rates = run.summary["throughput"]
    found = rates["ci95"] or rates["steady_ci95"]
    return (float(found[0]), float(found[1])) if found else None


def _measures(run: Run) -> dict[str, int | float | None]:
    summary: dict[str, Any] = run.summary
    found: dict[str, int | float | None] = {
        "rate [tokens/s]": rate_of(run),
        "makespan [s]": float(summary["makespan_s"]),
        "batches trained": summary["batches"]["trained"],
        "optimizer steps": summary["optimizer_steps"],
        "most outstanding [batches]": summary["max_outstanding"],
        "host peak [B]": summary["memory"]["host_peak_bytes"],
    }
    for worker in summary["workers"]:
        busy = 100 * worker["busy_s"] / worker["lifetime_s"] if worker["lifetime_s"] > 0 else None
        found[f"{worker['name']} busy [%]"] = busy
    for lane in summary["lanes"]:
        found[f"lane {lane['name']}: mean depth [batches]"] = lane["mean"]
    return found
