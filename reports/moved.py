"""Which side moved between two runs: the factor of each side's time, and a sentence that names the cause.

A side's pace is the time it took when nothing made it wait, per unit of its work. A full queue or an idle target
follows from paces and is never named as a cause. Used by `dflash-report diff` and by live views alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

SMALL: Final = 0.03
"""Factors within 3 % of 1 count as unchanged."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What one run took, side by side; None where nothing was measured."""

    target_s_per_slot: float | None
    """A target's computing seconds per padded slot, over all targets."""
    drafter_s_per_slot: float | None
    """A drafter's computing seconds per padded slot, optimizer steps included."""
    transfer_s_per_batch: float | None
    """Exposed copying per trained batch."""
    sync_s_per_batch: float | None
    """Waiting for other drafters at steps, per trained batch."""
    slots_per_batch: float | None
    """Padded slots of a batch."""
    tokens_per_sample: float | None
    """Mean length of a sample."""
    padding_share: float | None
    """Share of the slots that holds no token."""
    targets: int
    drafters: int
    tokens_per_s: float | None
    """The steady rate, over the whole run where there is no steady one."""
    lost: int = 0
    """Workers that were lost. What one never finished, and what others waited for it, is in no pace."""
    held_s_per_batch: float = 0.0
    """Seconds that lost workers spent on what they never finished, per trained batch."""


@dataclass(frozen=True)
class Moved:
    """One side's change: `after` is `factor` times `before`; the factor is None where one of them is missing or 0."""

    side: str
    what: str
    unit: str
    before: float | None
    after: float | None
    floor: float = 0.0
    """Both below it count as nothing."""

    @property
    def factor(self) -> float | None:
        if self.before is None or self.after is None or self.before <= 0:
            return None
        return self.after / self.before

    @property
    def known(self) -> bool:
        """Whether both runs measured it, or neither did."""
        return (self.before is None) == (self.after is None)

    @property
    def changed(self) -> bool:
        """Whether it is another number than before, by more than noise; what one run never measured is not."""
        factor = self.factor
        if not self.known:
            return False
        if max(self.before or 0.0, self.after or 0.0) < self.floor:
            return False
        return self.before != self.after if factor is None else abs(factor - 1) > SMALL


LOST: Final = "lost workers"
_SIDES: Final = (
    (LOST, LOST, "workers", "lost"),
    ("targets", "step time", "s/slot", "target_s_per_slot"),
    ("drafters", "step time", "s/slot", "drafter_s_per_slot"),
    ("transfer", "exposed copying", "s/batch", "transfer_s_per_batch"),
    ("sync", "waiting at steps", "s/batch", "sync_s_per_batch"),
    ("data", "batch size", "slots/batch", "slots_per_batch"),
    ("data", "mean length", "tokens/sample", "tokens_per_sample"),
    ("data", "padding", "share of slots", "padding_share"),
    ("topology", "targets", "workers", "targets"),
    ("topology", "drafters", "workers", "drafters"),
    ("run", "throughput", "tokens/s", "tokens_per_s"),
)


def pace_of_summary(summary: Mapping[str, Any]) -> Pace:
    """The paces of a summary, by the names of the contract."""
    tokens, batches, rates = summary["tokens"], summary["batches"], summary["throughput"]
    padding = tokens.get("padding_share")
    per_token = 1 / (1 - padding) if padding is not None and padding < 1 else 1.0
    workers = {role: [each for each in summary["workers"] if each["role"] == role] for role in ("target", "drafter")}
    done = {role: sum(each["batches"] for each in mine) for role, mine in workers.items()}
    slots = {role: per_token * sum(each["tokens"] for each in mine) for role, mine in workers.items()}
    spent = {
        (role, state): sum(each[f"{state}_s"] - (each.get("in_vain_s") or {}).get(state, 0.0) for each in mine)
        for role, mine in workers.items()
        for state in ("busy", "transfer", "sync")
    }
    planned = tokens.get("slots") if tokens.get("slots") is not None else tokens["planned"]
    samples = (summary.get("samples") or {}).get("planned")
    return Pace(
        target_s_per_slot=_ratio(spent["target", "busy"], slots["target"]),
        drafter_s_per_slot=_ratio(spent["drafter", "busy"], slots["drafter"]),
        transfer_s_per_batch=_ratio(spent["drafter", "transfer"], done["drafter"]),
        sync_s_per_batch=_ratio(spent["drafter", "sync"], done["drafter"]),
        slots_per_batch=_ratio(planned, batches["planned"]),
        tokens_per_sample=_ratio(tokens["planned"], samples or 0),
        padding_share=padding,
        targets=len(workers["target"]),
        drafters=len(workers["drafter"]),
        tokens_per_s=rates["steady_tokens_per_s"] or rates["tokens_per_s"],
        lost=sum(bool(each.get("lost")) for each in summary["workers"]),
    )


def moved(before: Pace, after: Pace) -> list[Moved]:
    """Every side's change, in a fixed order."""
    batch_s = (before.drafter_s_per_slot or 0.0) * (before.slots_per_batch or 0.0)
    floors = {"transfer": 0.01 * batch_s, "sync": 0.01 * batch_s, "data": 0.0}
    return [
        Moved(side, what, unit, getattr(before, name), getattr(after, name), floors.get(side, 0.0))
        for side, what, unit, name in _SIDES
    ]


def moved_text(before: Pace, after: Pace, named: str = "") -> str:
    """What moved, causes first: `drafters: step time 2.4× (99 → 238 µs/slot); …; throughput 0.62×`.

    Then what only one of the runs measured. `named`: a cause that paces do not show, in words; it goes first.
    """
    changes = moved(before, after)
    causes = [each for each in changes if each.side != "run" and each.changed]
    unknown = [each for each in changes if each.side != "run" and not each.known]
    rate = next(each for each in changes if each.side == "run")
    causes.sort(key=_weight, reverse=True)
    said = [*([named] if named else []), *(_said(each) for each in (*causes, *unknown))]
    end = "throughput unknown" if rate.factor is None else f"throughput {rate.factor:.2f}×"
    if not said:
        return f"no side moved by more than {SMALL:.0%}; {end}"
    if not causes and not named:
        said.insert(0, f"no side is known to have moved by more than {SMALL:.0%}")
    return "; ".join([*said, end])


def _said(each: Moved) -> str:
    name = each.what if each.side in ("topology", LOST) else f"{each.side}: {each.what}"
    scale, unit = (1e6, "µs/slot") if each.unit == "s/slot" else (1.0, each.unit)
    if unit == "share of slots":
        return f"{name} {_number(each.before, 100)} → {_number(each.after, 100)} %"
    values = f"{_number(each.before, scale)} → {_number(each.after, scale)}"
    if unit == "workers":
        return f"{name} {values}"
    factor = each.factor
    return f"{name} {values} {unit}" if factor is None else f"{name} {factor:.3g}× ({values} {unit})"


def _number(value: float | None, scale: float) -> str:
    if value is None:
        return "unknown"
    scaled = value * scale
    return f"{scaled:,.0f}" if abs(scaled) >= 1000 else f"{scaled:.3g}"


def _weight(each: Moved) -> tuple[bool, bool, float]:
    """Lost workers first, then paces and topology before the data's shape, the larger change first."""
    factor = each.factor
    size = 1.0 if factor is None or factor <= 0 else max(factor, 1 / factor)
    return each.side == LOST, each.side != "data", size


def _ratio(amount: float | None, per: float) -> float | None:
    return amount / per if amount is not None and per > 0 else None
