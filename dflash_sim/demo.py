"""`make demo`: the field record of a real eight-GPU run, explained from two measured rates.

What one team measured stands beside what the simulator says. The two rates were fitted to two of the rows; every other
figure is a prediction.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dflash_sim.cli import console
from dflash_sim.comparison import compare, predict
from policies.builtin import BUILTIN
from policies.loading import load, replaced
from policies.pipeline import Pipeline
from reports.table import print_comparison, size
from reports.verdict import ktok

RECORD: Final = Path("examples/field_record.yaml")
WEEK_TOKENS: Final = 11.06e9
"""19.4 Ktok/s for the 6.6 days that the team's display announced."""


@dataclass(frozen=True)
class Row:
    """One set-up of the record."""

    name: str
    measured: float | None
    """Tokens per second; None where nobody measured it."""
    fitted: str
    """Which rate was fitted to this row; empty for a prediction."""
    changes: Mapping[str, object] = field(default_factory=dict)


ROWS: Final = (
    Row("5 + 3, one shared queue", 19_400, "target 3.88 = 19.4 / 5", {"dispatch.policy": "shared"}),
    Row(
        "6 + 2",
        13_500,
        "drafter 6.75 = 13.5 / 2",
        {"topology.targets": 6, "topology.drafters": 2, "dispatch.policy": "shared"},
    ),
    Row("5 + 3, one queue per drafter, i % 3", 17_500, ""),
    Row("6 + 1", 6_500, "", {"topology.targets": 6, "topology.drafters": 1, "dispatch.policy": "shared"}),
    Row("5 + 3, i % 3, loader deals in fixed turns", None, "", {"feed.policy": "rotating"}),
)

FULL_QUEUE: Final = {
    "dispatch.policy": "shared",
    "dispatch.depth": 20,
    "data.batches": 2000,
    "data.batch_tokens": 49152,
    "timings.target.tokens_per_second": 4040,
    "timings.drafter.tokens_per_second": 4200,
    "memory.hidden_size": 5120,
    "memory.taps": 5,
    "memory.host_limit": "60GB",
}
ON_DEVICE: Final = {
    "topology.targets": 6,
    "topology.drafters": 1,
    "dispatch.policy": "shared",
    "dispatch.capacity": 120,
    "data.batches": 600,
    "data.batch_tokens": 7812,
    "memory.hidden_bytes_per_token": 51200,
    "memory.staging": "device",
    "memory.drafter_model_bytes": "46GB",
    "memory.device_limit": "96GB",
}
"""Six targets with 20 places of 400 MB each on the only drafter's device."""
WRONG_DEVICE: Final = {
    "topology.targets": 2,
    "topology.drafters": 2,
    "data.batches": 2000,
    "timings.target.cv": 0.1,
    "timings.drafter.cv": 0.1,
    "timings.transfer.seconds": 4.0,
    "dispatch.policy": "shared",
    "timings.drafter.tokens_per_second": 3000,
}


def main() -> None:
    """Print the record beside the model."""
    out, pipeline = console(), load(RECORD, for_simulation=True)
    out.print("[bold]1. Throughput of the record[/bold], from 3.88 Ktok/s a target and 6.75 Ktok/s a drafter\n")
    out.print(_throughput_table(pipeline))
    out.print("\n[bold]2. The same week of work under every policy[/bold]\n")
    week = replaced(pipeline, {"data.tokens": WEEK_TOKENS, "data.batch_tokens": 65536})
    print_comparison(out, compare(week, list(BUILTIN)), "11.06 G tokens on 5 targets + 3 drafters")
    out.print("\n[bold]3. The queue that told the truth[/bold]: 60 of 60 waiting, drafters at 4.2 Ktok/s each\n")
    _print_full_queue(out, pipeline)
    out.print("\n[bold]4. Queues on the drafter's own device[/bold]: 94 of 96 GB were used\n")
    _print_device(out, pipeline)
    out.print("\n[bold]5. Hidden states packed onto the wrong drafter[/bold]: 2 + 2, 4 s for another copy\n")
    _print_placement(out, pipeline)


def _throughput_table(pipeline: Pipeline) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("set-up", "measured", "model", "difference", "drafters busy", ""):
        table.add_column(name, justify="left" if name in ("set-up", "") else "right")
    for row in ROWS:
        summary = _summary(replaced(pipeline, row.changes))
        rate = summary["throughput"]["steady_tokens_per_s"]
        difference = "" if row.measured is None else f"{rate / row.measured - 1:+.1%}"
        kind = f"fitted: {row.fitted}" if row.fitted else "[bold]predicted[/bold]"
        measured = "–" if row.measured is None else ktok(row.measured)
        table.add_row(escape(row.name), measured, ktok(rate), difference, _busy(summary), kind)
    return table


def _summary(pipeline: Pipeline) -> dict[str, Any]:
    return predict(pipeline)[1]


def _busy(summary: Mapping[str, Any]) -> str:
    drafters = (worker for worker in summary["workers"] if worker["role"] == "drafter")
    return " ".join(f"{worker['utilization']:.0%}" for worker in drafters)


def _print_full_queue(out: Console, pipeline: Pipeline) -> None:
    for depth in (20, 4):
        summary = _summary(replaced(pipeline, {**FULL_QUEUE, "dispatch.depth": depth}))
        lane, memory = summary["lanes"][0], summary["memory"]
        staged, peak = size(memory.get("host_staged_peak_bytes")), size(memory.get("host_peak_bytes"))
        held = f"{staged} staged, {peak} with those in hand"
        text = f"depth {depth}: at most {lane['max']}/{lane['capacity']} waiting, {held}; {summary['verdict']['text']}"
        out.print(escape(text), highlight=False, soft_wrap=True)


def _print_device(out: Console, pipeline: Pipeline) -> None:
    summary = _summary(replaced(pipeline, ON_DEVICE))
    (peak,), lane = summary["memory"]["drafter_peak_bytes"], summary["lanes"][0]
    text = f"6 + 1, {lane['max']}/{lane['capacity']} batches of 400 MB beside a 46 GB drafter: {size(peak)} of 96 GB"
    out.print(text, highlight=False)


def _print_placement(out: Console, pipeline: Pipeline) -> None:
    for placement, policy in (("producer", "shared"), ("producer", "round_robin"), ("taker", "shared")):
        changes = {**WRONG_DEVICE, "dispatch.placement": placement, "dispatch.policy": policy}
        summary = _summary(replaced(pipeline, changes))
        copies = sum(worker["transfer_s"] for worker in summary["workers"]) / 4.0
        rate = ktok(summary["throughput"]["steady_tokens_per_s"])
        share = copies / summary["batches"]["trained"]
        text = f"{policy}, placed by the {placement}: {share:.0%} of the takes copy again, {rate}"
        out.print(escape(text), highlight=False)


if __name__ == "__main__":
    main()
