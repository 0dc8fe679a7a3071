"""`make validate-rehearsal`: rehearsals beside the simulator's predictions, as docs/validation.md.

The record's topology and timings under every policy, in threads and in processes. Each row is one run of a few hundred
batches; nothing is averaged and nothing left out.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dflash_run.rehearsal import rehearse
from dflash_sim.comparison import predict
from dflash_sim.prediction import summary_of
from dflash_sim.records import RECORDS, check_records
from dflash_sim.replay import dispatcher_of, replay
from policies.loading import load, replaced
from policies.pipeline import Pipeline
from reports.commands import UNUSABLE, run_and_exit
from reports.summary import versions
from reports.tracefile import read_trace
from reports.writing import file_fault, write_text

RECORD: Final = Path("examples/field_record.yaml")
CASES: Final = (
    ("round_robin", "none"),
    ("rotating", "none"),
    ("shared", "none"),
    ("bucketed", "none"),
    ("shared", "step"),
    ("shared", "pooled"),
)
FASTER: Final = (240.0, 960.0, 3840.0)
"""Speed-ups at which sleeps become short beside what messages and decisions cost; reported without a limit."""
RATE_LIMIT: Final = 0.03
"""Largest relative difference of the throughput."""
SHARE_LIMIT: Final = 0.03
"""Largest difference of a role's mean share, in shares of the lifetime."""
_SHARES: Final = (("drafter", "starved"), ("target", "blocked"), ("drafter", "sync"))


@dataclass(frozen=True)
class Row:
    """One rehearsal beside its prediction."""

    name: str
    predicted: Mapping[str, Any]
    measured: Mapping[str, Any]
    replayed: bool
    """The trace replays without a difference, and the workers' records match."""

    def rate(self) -> tuple[float, float, float]:
        """(predicted, measured, relative difference) of the whole run's tokens per second."""
        before, after = (summary["throughput"]["tokens_per_s"] for summary in (self.predicted, self.measured))
        return before, after, after / before - 1

    def shares(self) -> list[tuple[float, float]]:
        """(predicted, measured) mean share of each of `_SHARES`."""
        return [
            (_mean_share(self.predicted, role, state), _mean_share(self.measured, role, state))
            for role, state in _SHARES
        ]

    def within(self) -> bool:
        """Whether every figure keeps its limit."""
        near = all(abs(after - before) <= SHARE_LIMIT for before, after in self.shares())
        return abs(self.rate()[2]) <= RATE_LIMIT and near and self.replayed


def main() -> int:
    """Run all cases and write the table; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=600)
    parser.add_argument("--speedup", type=float, default=60.0)
    parser.add_argument("--drivers", default="threads,processes")
    parser.add_argument("-o", "--out", type=Path, default=Path("docs/validation.md"))
    options = parser.parse_args()
    if fault := file_fault("--out", options.out):
        print(fault, file=sys.stderr)
        return UNUSABLE
    rows = []
    for row in _rows(options.batches, options.speedup, options.drivers.split(",")):
        print(_line(row), flush=True)
        rows.append(row)
    faster = []
    for row in _faster(options.batches, options.drivers.split(",")):
        print(_cost(row), flush=True)
        faster.append(row)
    write_text(options.out, _document(rows, faster, options))
    return 0 if all(row.within() for row in rows) else 1


def _rows(batches: int, speedup: float, drivers: Sequence[str]) -> Iterator[Row]:
    record = load(RECORD, for_simulation=True)
    for policy, sync in CASES:
        changes = {"dispatch.policy": policy, "training.sync": sync, "data.batches": batches}
        pipeline = replaced(record, changes)
        predicted = predict(pipeline)[1]
        for driver in drivers:
            yield _rehearsed(f"{policy}, {sync}, {driver}", pipeline, predicted, driver, speedup)


def _faster(batches: int, drivers: Sequence[str]) -> Iterator[Row]:
    pipeline = replaced(load(RECORD, for_simulation=True), {"dispatch.policy": "shared", "data.batches": batches})
    predicted = predict(pipeline)[1]
    for speedup in FASTER:
        for driver in drivers:
            yield _rehearsed(f"× {speedup:g}, {driver}", pipeline, predicted, driver, speedup)


def _rehearsed(name: str, pipeline: Pipeline, predicted: Mapping[str, Any], driver: str, speedup: float) -> Row:
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        run = rehearse(pipeline, Path(folder), driver=driver, speedup=speedup)
        trace = read_trace(folder)
        same = not replay(trace, dispatcher_of(trace)) and not check_records(trace, Path(folder) / RECORDS)
    return Row(name, predicted, summary_of(run, kind="rehearsal"), same)


def _mean_share(summary: Mapping[str, Any], role: str, state: str) -> float:
    shares = [w[f"{state}_s"] / w["lifetime_s"] for w in summary["workers"] if w["role"] == role]
    return float(sum(shares) / len(shares))


def _line(row: Row) -> str:
    before, after, difference = row.rate()
    cells = [f"{before / 1e3:.2f}", f"{after / 1e3:.2f}", f"{difference:+.1%}"]
    cells += [f"{old:.1%} → {new:.1%}" for old, new in row.shares()]
    verdict = "yes" if row.within() else "**no**"
    return f"| {row.name} | {' | '.join(cells)} | {'equal' if row.replayed else '**differs**'} | {verdict} |"


def _cost(row: Row) -> str:
    before, after, difference = row.rate()
    share = row.measured["launcher"]["deciding_share"]
    return f"| {row.name} | {before / 1e3:.2f} | {after / 1e3:.2f} | {difference:+.1%} | {share:.2%} |"


def _document(rows: Sequence[Row], faster: Sequence[Row], options: argparse.Namespace) -> str:
    kept = sum(row.within() for row in rows)
    names = ", ".join(f"{name} {number}" for name, number in versions().items())
    lines = [
        "# Rehearsals beside their predictions",
        "",
        f"Made by `make validate-rehearsal` ({options.batches} batches a run, speed-up {options.speedup:g}); {names}.",
        "",
        "The record's pipeline, 5 targets and 3 drafters. Throughput in Ktok/s over the whole run, at most "
        f"{RATE_LIMIT:.0%} apart; mean shares of a role's lifetime, predicted → rehearsed, at most "
        f"{SHARE_LIMIT * 100:.0f} points apart; the trace is replayed through a fresh dispatcher and joined with the "
        "workers' own records. "
        f"{kept} of {len(rows)} rows keep their limits.",
        "",
        "| run | predicted | rehearsed | difference | drafters starved | targets blocked | drafters in sync "
        "| replay | kept |",
        "|---|---|---|---|---|---|---|---|---|",
        *map(_line, rows),
        "",
        "Single workers, drafters starved and targets blocked, predicted → rehearsed:",
        "",
        *(f"* {row.name}: {_single(row)}" for row in rows),
        "",
        "Higher speed-ups, `shared` and `sync: none`: a sleep of seconds becomes milliseconds, and what messages, "
        "wake-ups and decisions cost shows. The last column is the dispatcher's own part of the wall time.",
        "",
        "| run | predicted | rehearsed | difference | dispatcher |",
        "|---|---|---|---|---|",
        *map(_cost, faster),
        "",
    ]
    return "\n".join(lines)


def _single(row: Row) -> str:
    """Single workers' shares: they are sensitive to a millisecond, so they have no limit."""
    cells = []
    for before, after in zip(row.predicted["workers"], row.measured["workers"], strict=True):
        state = "blocked_s" if before["role"] == "target" else "starved_s"
        old, new = (worker[state] / worker["lifetime_s"] for worker in (before, after))
        cells.append(f"{before['name']} {old:.0%} → {new:.0%}")
    return ", ".join(cells)


if __name__ == "__main__":
    run_and_exit(main)
