"""The accumulator's numbers, counted from a trace's columns: for a run that left a trace and no summary.

Stepping through the events of a week's run takes a minute and more than a gigabyte; this takes seconds. A test holds
the two against each other for every kind of run. How long drafters waited for one that was then lost is not counted.
"""

from array import array

import numpy as np
from numpy.typing import NDArray

from policies.ledger import HELD, LOST, STAGED, TAKEN, TARGET, TRAINED
from policies.trace import CODE, KINDS, REASONS
from reports.durations import Durations, durations
from reports.flow import commits, owners
from reports.levels import lane_levels
from reports.metrics import BUSY, TRANSFER, LaneMeter, Metrics, WorkerMeter
from reports.recorded import Recorded
from reports.spans import WorkerSpans, worker_spans

I64 = NDArray[np.int64]

_PLACES = {
    "recompute": 0, "assign": TARGET, "offer": HELD, "admit": STAGED, "put_back": STAGED, "deliver": TAKEN,
    "received": TAKEN, "commit": TRAINED, "lose": LOST,
}  # fmt: skip
"""Where an event leaves its batch."""


def metrics_of_columns(recorded: Recorded) -> Metrics:
    """A finished accumulator; what a summary reads of it is what the events would have given."""
    header, plan = recorded.header, recorded.plan
    nothing = _Work(header.planned)
    metrics = Metrics(targets=header.targets, drafters=header.drafters, lanes=header.lanes, work=nothing)
    meters = [*metrics.targets, *metrics.drafters]
    lives = list(zip(meters, worker_spans(recorded), durations(recorded), strict=True))
    for meter, spans, done in lives:
        _fill(meter, spans, done, plan["tokens"])
    for kind, mine in (("target_lost", metrics.targets), ("drafter_lost", metrics.drafters)):
        for worker in recorded.worker[recorded.rows(kind)].tolist():
            mine[worker].lost = True
    _fill_lanes(metrics.lanes, recorded)
    _fill_steps(metrics, recorded)
    assigned = recorded.rows("assign")
    metrics.to_assign = header.planned - len(assigned) + len(recorded.rows("recompute"))
    if metrics.to_assign == 0 and len(assigned):
        metrics.fed_at = float(recorded.time_s[assigned[-1]])
    for meter, spans, done in lives[header.targets :]:
        _fill_fed(meter, spans, done, plan["tokens"], metrics.fed_at)
    metrics.place = places_of(recorded)
    metrics.trained_by = _trained_by(recorded)
    metrics.max_outstanding = _most_outstanding(recorded)
    metrics.loader_busy, metrics.loaded_tokens = _loader(recorded)
    metrics.now = recorded.end_s
    ended = recorded.rows("end")
    metrics.ended = REASONS[recorded.extra[ended[-1]]] if len(ended) else None
    return metrics


class _Work:
    """As many batches as were planned; the accumulator looks at them only when it observes."""

    def __init__(self, count: int) -> None:
        self.tokens = self.bucket = self.length = [0] * count


def _fill(meter: WorkerMeter, spans: WorkerSpans, done: Durations, tokens: I64) -> None:
    meter.seconds = spans.seconds().tolist()
    meter.end = meter.since = spans.end_s
    meter.stuck_since = spans.end_s - spans.stuck_s
    if spans.stuck_s > 0:
        meter.state = int(spans.state[-1])
        if meter.state in (BUSY, TRANSFER):
            meter.unfinished = spans.stuck_s
    meter.batches = len(done.batch)
    meter.tokens = int(tokens[done.batch].sum())
    if meter.batches:
        meter.first_working = float(done.busy_s[0] + done.transfer_s[0])
        meter.first_tokens = int(tokens[done.batch[0]])


def _fill_fed(meter: WorkerMeter, spans: WorkerSpans, done: Durations, tokens: I64, until: float | None) -> None:
    """What a drafter had done by the time that the last batch was given to a target, if it was."""
    count = len(done.end_s) if until is None else int((done.end_s <= until).sum())
    if count:
        seconds = spans.between(0.0, float(done.end_s[count - 1])).seconds()
        meter.fed_batches, meter.fed_tokens = count, int(tokens[done.batch[:count]].sum())
        meter.fed_working = float(seconds[BUSY] + seconds[TRANSFER])


def _fill_lanes(meters: list[LaneMeter], recorded: Recorded) -> None:
    for meter, level in zip(meters, lane_levels(recorded), strict=True):
        meter.area = (level.mean or 0.0) * recorded.end_s
        meter.most = level.most


def _fill_steps(metrics: Metrics, recorded: Recorded) -> None:
    done = commits(recorded)
    metrics.times = array("d", done.time_s.tolist())
    metrics.trained_tokens = array("q", done.tokens.tolist())
    metrics.window_lengths = array("d", done.length.tolist())
    metrics.firsts = done.firsts
    metrics.windows = len(done.time_s)
    metrics.mixed_windows = int((done.buckets > 1).sum())
    metrics.bucket_sum = int(done.buckets.sum())


def places_of(recorded: Recorded) -> bytearray:
    """The place where each batch was left by its last event."""
    rows = recorded.rows(*_PLACES)
    rows = rows[recorded.batch[rows] >= 0]
    place_of = np.zeros(len(KINDS), np.uint8)
    for kind, place in _PLACES.items():
        place_of[CODE[kind]] = place
    places = np.zeros(recorded.header.planned, np.uint8)
    places[recorded.batch[rows]] = place_of[recorded.kind[rows]]  # of several the last is kept
    return bytearray(places.tobytes())


def _trained_by(recorded: Recorded) -> list[list[int]]:
    """Batches and tokens that each drafter trained, without what was lost again."""
    owner, tokens, count = owners(recorded), recorded.plan["tokens"], recorded.header.drafters
    found = np.zeros((count, 2), np.int64)
    for kind, sign in (("commit", 1), ("lose", -1)):
        batch = recorded.batch[recorded.rows(kind)]
        batch = batch[batch >= 0]
        np.add.at(found, owner[batch], sign * np.column_stack([np.ones(len(batch), np.int64), tokens[batch]]))
    return [[int(batches), int(total)] for batches, total in found]


def _most_outstanding(recorded: Recorded) -> int:
    """The most batches that were computed and not yet taken; two effects of one answer are not told apart in time."""
    rows = recorded.rows("offer", "put_back", "deliver", "recompute")
    kind = recorded.kind[rows]
    change = np.where(np.isin(kind, (CODE["offer"], CODE["put_back"])), 1, -1)
    again = kind == CODE["recompute"]
    change[again & ~np.isin(recorded.extra[rows], (STAGED, HELD))] = 0
    level = np.cumsum(change)
    return int(level[kind == CODE["offer"]].max(initial=0))


def _loader(recorded: Recorded) -> tuple[float, int]:
    """Seconds that the loader worked, and the tokens that it loaded."""
    rows = recorded.rows("load", "loaded")
    loaded = recorded.kind[rows] == CODE["loaded"]
    times = np.append(0.0, recorded.time_s[rows])
    latest = np.maximum.accumulate(np.append(0, np.where(loaded, np.arange(1, len(rows) + 1), 0)))[:-1]
    busy = float((times[1:] - times[latest])[~loaded].sum())
    first, count = recorded.batch[rows[~loaded]].astype(np.int64), recorded.extra[rows[~loaded]]
    sums = np.append(0, np.cumsum(recorded.plan["tokens"]))
    return busy, int((sums[first + count] - sums[first]).sum())
