"""Staging memory: the field record's cases, where bytes lie under every staging, and books that always close."""

import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_sim.service import service_times
from dflash_sim.simulator import PlannedFault, Simulator
from policies.batches import Arrangement, BatchPlan, equal_batches, listed_batches
from policies.builtin import BUILTIN
from policies.dispatcher import Dispatcher
from policies.effects import Admit, Deliver, Effect, PutBack, Recall, Recompute
from policies.ledger import HELD, PLACES, RECEIVED, STAGED, TAKEN
from policies.policy import LaneSpec, Shape
from policies.sections.limits import Memory
from reports.memory import MemoryMeter, MemoryReport, batch_bytes, forecast, pinned_bytes
from reports.observer import Log

HIDDEN = 5 * 5_120 * 2
"""Bytes per token in the record: five taps."""
BATCH = 49_152 * HIDDEN
RECORD = {"hidden_size": 5_120, "taps": 5}
GB = 10**9


@dataclass
class Run:
    """One simulated run and what is known of it."""

    dispatcher: Dispatcher
    meter: MemoryMeter
    worst: MemoryReport

    @property
    def report(self) -> MemoryReport:
        return self.meter.report()


class Watching:
    """Passes everything on to the meter, and after every answer compares its books with the ledger."""

    def __init__(self, meter: MemoryMeter, dispatcher: Dispatcher, sizes: list[int]) -> None:
        self.meter, self.dispatcher, self.sizes = meter, dispatcher, sizes

    def observe(self, exchanges: Any) -> None:
        self.meter.observe(exchanges)
        stores = [self.meter.host, *self.meter.drafters, *self.meter.targets]
        for place in (HELD, STAGED, TAKEN):
            expected = sum(self.sizes[batch] for batch in self.dispatcher.ledger.at(place))
            assert sum(store.terms[place] for store in stores) == expected, PLACES[place]
        for drafter in self.dispatcher.dispatch.consumers:
            hand = self.dispatcher.windows[drafter].holding(drafter)
            received = [batch for batch in hand if self.dispatcher.ledger.place(batch) == RECEIVED]
            assert self.meter.drafters[drafter].terms[RECEIVED] == sum(self.sizes[batch] for batch in received)
        for store in stores:
            assert store.level == sum(store.terms) <= store.peak == sum(store.at_peak)
            assert min(store.terms) >= 0


class Prompt(list[Any]):
    """Pending exchanges that are handed on as soon as they come."""

    def __init__(self, observer: Any) -> None:
        self.observer = observer

    def append(self, exchange: Any) -> None:
        self.observer.observe([exchange])


def role(seconds: Any) -> SimpleNamespace:
    return SimpleNamespace(
        seconds=seconds, tokens_per_second=None, cv=None, distribution=None, first_seconds=None
    )


def simulate(
    memory: Memory,
    plan: BatchPlan,
    *,
    targets: int,
    drafters: int,
    policy: str = "shared",
    capacity: int | None = None,
    target_s: Any = 1.0,
    drafter_s: Any = 1.0,
    transfer_s: float | None = None,
    placement: str | None = None,
    sync: str = "none",
    accumulate: int = 1,
    prefetch: int = 0,
    faults: tuple[PlannedFault, ...] = (),
    check: bool = False,
) -> Run:
    buckets = tuple(plan.bucket_names)
    shape = Shape(producers=targets, consumers=drafters, depth=2, capacity=capacity, buckets=buckets)
    dispatcher = Dispatcher(
        feed=BUILTIN["shared"](),
        feed_shape=Shape(producers=1, consumers=targets, depth=4),
        dispatch=BUILTIN[policy](),
        dispatch_shape=shape,
        bucket_of=plan.bucket.tolist(),
        sync=sync,
        accumulate=accumulate,
        prefetch=prefetch,
    )
    lanes = dispatcher.dispatch.lanes
    meter = MemoryMeter(
        memory=memory,
        slots=plan.slots,
        targets=targets,
        drafters=drafters,
        readers=[lane.reader for lane in lanes],
        placement=placement,
    )
    sizes = batch_bytes(memory, plan.slots)
    transfer = None if transfer_s is None else SimpleNamespace(seconds=transfer_s, bytes_per_second=None)
    timings = SimpleNamespace(
        target=role(target_s), drafter=role(drafter_s), loader=None, transfer=transfer, step=None
    )
    times = service_times(timings=timings, plan=plan, targets=targets, drafters=drafters)
    worst = forecast(
        memory,
        targets=targets,
        drafters=drafters,
        lanes=lanes,
        bound=dispatcher.dispatch.bound,
        largest=None if sizes is None else int(sizes.max()),
        prefetch=prefetch,
        placement=placement,
    )
    watch = Watching(meter, dispatcher, sizes.tolist()) if check and sizes is not None else meter
    log = Log(meter)
    if watch is not meter:
        log.pending = Prompt(watch)
    Simulator(
        dispatcher=dispatcher,
        times=times,
        log=log,
        batches=plan.count,
        placement=placement,
        faults=faults,
    ).run()
    return Run(dispatcher, meter, worst)


def by_hand(memory: Memory, *, drafters: int = 2, targets: int = 2, placement: str | None = None, **lane: Any) -> Any:
    """A meter of ten batches of 10 bytes and one lane."""
    return MemoryMeter(
        memory=memory,
        slots=[10] * 10,
        targets=targets,
        drafters=drafters,
        readers=[lane.get("reader")],
        placement=placement,
    )


def put(meter: MemoryMeter, *effects: Effect) -> None:
    meter.observe([(0.0, "", (), effects)])


def tell(meter: MemoryMeter, name: str, worker: int, batch: int) -> None:
    meter.observe([(0.0, name, (worker, batch), ())])


def levels(meter: MemoryMeter) -> tuple[int, list[int], list[int]]:
    return meter.host.level, [s.level for s in meter.drafters], [s.level for s in meter.targets]


# Sizes ----------------------------------------------------------------------------------------------------------


def test_the_last_state_adds_one_hidden_size() -> None:
    given = batch_bytes(Memory(hidden_size=100, taps=5, dtype_bytes=2, keep_last=True), [3, 4])
    assert given is not None and given.tolist() == [3_600, 4_800]


def test_bytes_follow_the_padded_slots_in_whole_numbers() -> None:
    given = batch_bytes(Memory(hidden_bytes_per_token=HIDDEN), np.array([49_152, 1]))
    assert given is not None and given.dtype == np.int64
    assert given.tolist() == [2_516_582_400, 51_200]


def test_the_pinned_allocator_takes_the_next_power_of_two() -> None:
    sizes = np.array([0, 1, 2, 3, 4, 5, BATCH, 2**40, 2**40 + 1])
    assert pinned_bytes(sizes).tolist() == [0, 1, 2, 4, 4, 8, 4 * 2**30, 2**40, 2**41]


@given(st.integers(1, 2**50))
def test_a_pinned_block_is_the_least_power_of_two_that_holds_the_buffer(size: int) -> None:
    assert int(pinned_bytes(np.array([size]))[0]) == 1 << (size - 1).bit_length()


# The record's cases -----------------------------------------------------------------------------------------------


def test_a_full_queue_of_60_long_batches_stages_151_gb_of_host_memory() -> None:
    plan = equal_batches(200, 49_152)
    run = simulate(Memory(**RECORD), plan, targets=5, drafters=3, capacity=60, drafter_s=30.0)
    assert run.report["host_staged_peak_bytes"] == 60 * BATCH == 150_994_944_000
    assert run.report["host_peak_bytes"] == (60 + 5) * BATCH
    assert run.report["host_pinned_peak_bytes"] == run.report["host_peak_bytes"]


def test_a_queue_of_12_stages_30_gb_and_stays_in_its_60_gb_with_those_in_hand() -> None:
    memory = Memory(**RECORD, host_limit=60 * GB)
    plan = equal_batches(200, 49_152)
    run = simulate(memory, plan, targets=5, drafters=3, capacity=12, drafter_s=30.0, transfer_s=0.5)
    assert run.report["host_staged_peak_bytes"] == 12 * BATCH == 30_198_988_800
    assert run.report["fits"] is True and run.report["over"] == []
    worst = run.worst["host_peak_bytes"]
    assert run.worst["fits"] is True and worst == (12 + 5 + 3) * BATCH == 50_331_648_000


def test_pinned_buffers_of_a_long_batch_take_4_gib_each() -> None:
    plan = equal_batches(100, 49_152)
    run = simulate(Memory(**RECORD, pinned=True), plan, targets=5, drafters=3, capacity=12, drafter_s=30.0)
    assert run.report["host_peak_bytes"] == 17 * BATCH
    assert run.report["host_pinned_peak_bytes"] == 17 * 4 * 2**30
    assert run.report["host_staged_peak_bytes"] == 12 * BATCH


def test_queues_on_the_drafter_gpu_fill_94_of_its_96_gb_and_the_batch_in_hand_comes_on_top() -> None:
    memory = Memory(
        hidden_bytes_per_token=50_000, staging="device", drafter_model_bytes=46 * GB, device_limit=96 * GB
    )
    plan = equal_batches(400, 8_000)
    run = simulate(memory, plan, targets=6, drafters=1, capacity=6 * 20, drafter_s=10.0)
    peaks = run.report["at_peak"]
    assert peaks is not None
    assert peaks["drafters"][0] == {"model": 46 * GB, "staged": 48 * GB, "taken": 0, "received": 400_000_000}
    assert run.report["drafter_peak_bytes"] == [94_400_000_000]
    assert run.report["target_peak_bytes"] == [400_000_000] * 6
    assert run.report["host_peak_bytes"] == 0
    assert run.report["fits"] is True
    assert run.worst["drafter_peak_bytes"] == [94_400_000_000]


# Where bytes lie --------------------------------------------------------------------------------------------------


def test_host_bytes_last_from_the_offer_to_the_arrival_and_device_bytes_until_computed() -> None:
    meter = by_hand(Memory(hidden_bytes_per_token=1))
    seen = []
    tell(meter, "offer", 1, 0)
    put(meter)
    seen.append(levels(meter))
    put(meter, Admit(1, 0, 0), Deliver(0, 0, 0, 1, 0, True))
    seen.append(levels(meter))
    tell(meter, "received", 0, 0)
    seen.append(levels(meter))
    tell(meter, "computed", 0, 0)
    seen.append(levels(meter))
    assert [host for host, _, _ in seen] == [10, 10, 0, 0]
    assert [drafters for _, drafters, _ in seen] == [[0, 0], [0, 0], [10, 0], [0, 0]]


def test_a_shared_lane_on_devices_lies_where_its_target_packs_and_moves_when_another_drafter_receives() -> None:
    meter = by_hand(Memory(hidden_bytes_per_token=1, staging="device"))
    tell(meter, "offer", 1, 0)
    put(meter)
    assert levels(meter) == (0, [0, 0], [0, 10])
    put(meter, Admit(1, 0, 0))
    assert levels(meter) == (0, [0, 10], [0, 0])
    put(meter, Deliver(0, 0, 0, 1, 0, True))
    assert levels(meter) == (0, [0, 10], [0, 0])
    tell(meter, "received", 0, 0)
    assert levels(meter) == (0, [10, 0], [0, 0])
    tell(meter, "computed", 0, 0)
    assert levels(meter) == (0, [0, 0], [0, 0])


def test_a_lane_with_one_reader_lies_on_that_drafter_whichever_target_filled_it() -> None:
    meter = by_hand(Memory(hidden_bytes_per_token=1, staging="device"), reader=0)
    tell(meter, "offer", 1, 0)
    put(meter, Admit(1, 0, 0))
    assert levels(meter) == (0, [10, 0], [0, 0])


def test_what_a_lost_drafter_had_not_received_still_lies_on_its_device() -> None:
    meter = by_hand(Memory(hidden_bytes_per_token=1, staging="device"), reader=0)
    tell(meter, "offer", 1, 0)
    put(meter, Admit(1, 0, 0), Deliver(0, 0, 0, 1, 0, True))
    meter.observe([(0.0, "drafter_lost", (0,), ())])
    put(meter, PutBack(0, 0, 0), Deliver(1, 0, 0, 1, 0, True))
    assert levels(meter) == (0, [10, 0], [0, 0])
    tell(meter, "received", 1, 0)
    assert levels(meter) == (0, [0, 10], [0, 0])


def test_pulled_hidden_states_stay_with_their_target_until_received() -> None:
    meter = by_hand(Memory(hidden_bytes_per_token=1, staging="device"), placement="taker")
    tell(meter, "offer", 1, 0)
    put(meter, Admit(1, 0, 0), Deliver(0, 0, 0, 1, 0, True))
    assert levels(meter) == (0, [0, 0], [0, 10])
    tell(meter, "received", 0, 0)
    assert levels(meter) == (0, [10, 0], [0, 0])
    assert meter.report()["target_peak_bytes"] == [0, 10]


def test_a_recalled_batch_frees_its_bytes_and_takes_them_again_when_computed_again() -> None:
    meter = by_hand(Memory(hidden_bytes_per_token=1))
    tell(meter, "offer", 1, 0)
    put(meter, Admit(1, 0, 0), Deliver(0, 0, 0, 1, 0, True))
    meter.observe([(0.0, "target_lost", (1,), ())])
    put(meter, Recompute(0, TAKEN, -1, 0), Recall(0, 0))
    assert levels(meter) == (0, [0, 0], [0, 0])
    tell(meter, "offer", 0, 0)
    put(meter)
    assert levels(meter) == (10, [0, 0], [0, 0])


def test_a_batch_that_is_computed_again_after_it_was_trained_on_has_no_bytes_to_lose() -> None:
    meter = by_hand(Memory(hidden_bytes_per_token=1))
    tell(meter, "offer", 1, 0)
    put(meter, Admit(1, 0, 0), Deliver(0, 0, 0, 1, 0, True))
    tell(meter, "received", 0, 0)
    tell(meter, "computed", 0, 0)
    put(meter, Recompute(0, RECEIVED, -1, 0))
    assert levels(meter) == (0, [0, 0], [0, 0])


def test_a_batch_admitted_at_once_counts_as_waiting_at_the_peak_and_not_as_held() -> None:
    meter = by_hand(Memory(hidden_bytes_per_token=1))
    meter.observe([(0.0, "offer", (1, 0), (Admit(1, 0, 0),))])
    peaks = meter.report()["at_peak"]
    assert peaks is not None and peaks["host"] == {"held": 0, "staged": 10, "taken": 0}


# The verdict ------------------------------------------------------------------------------------------------------


def test_without_a_size_every_figure_is_null() -> None:
    run = simulate(Memory(host_limit=1), equal_batches(20, 7), targets=2, drafters=2)
    report = run.report
    assert report == run.worst
    assert report["host_peak_bytes"] is report["host_pinned_peak_bytes"] is report["fits"] is None
    assert report["drafter_peak_bytes"] == [None, None]
    assert report["notes"] and not report["over"]


def test_without_a_limit_nothing_is_judged() -> None:
    assert by_hand(Memory(hidden_bytes_per_token=1)).report()["fits"] is None


def test_a_host_over_its_limit_is_named_with_its_terms_in_falling_order() -> None:
    memory = Memory(**RECORD, host_limit=60 * GB)
    run = simulate(memory, equal_batches(200, 49_152), targets=5, drafters=3, capacity=60, drafter_s=30.0)
    assert run.report["fits"] is False
    assert run.report["over"] == [
        "host memory needs 163.6 GB (151 GB waiting in lanes, 12.58 GB held by targets): "
        "103.6 GB over memory.host_limit (60 GB)"
    ]


def test_the_pinned_figure_is_what_the_limit_is_held_against() -> None:
    limits = {**RECORD, "host_limit": 50 * GB}
    plan = equal_batches(100, 49_152)
    exact, pinned = (
        simulate(Memory(**limits, pinned=flag), plan, targets=5, drafters=3, capacity=12, drafter_s=30.0).report
        for flag in (False, True)
    )
    assert exact["host_peak_bytes"] == pinned["host_peak_bytes"] == 17 * BATCH < 50 * GB
    assert exact["fits"] is True and pinned["fits"] is False


def test_a_device_over_its_limit_is_named_by_its_drafter() -> None:
    memory = Memory(hidden_bytes_per_token=1, staging="device", drafter_model_bytes=100, device_limit=105)
    meter = by_hand(memory)
    tell(meter, "offer", 1, 0)
    put(meter, Admit(1, 0, 0))
    report = meter.report()
    assert report["drafter_peak_bytes"] == [100, 110]
    assert report["over"] == [
        "drafter/1 needs 110 B (100 B the drafter's model, 10 B waiting in lanes): "
        "5 B over memory.device_limit (105 B)"
    ]


def test_a_missing_model_size_is_said() -> None:
    assert "memory.drafter_model_bytes" in by_hand(Memory(hidden_bytes_per_token=1)).report()["notes"][0]
    assert by_hand(Memory(hidden_bytes_per_token=1, drafter_model_bytes=0)).report()["notes"] == []


# The forecast -----------------------------------------------------------------------------------------------------


def test_a_shared_lane_may_fill_the_device_of_every_drafter_that_a_target_packs_for() -> None:
    memory = Memory(hidden_bytes_per_token=1, staging="device")
    lane = LaneSpec(name="shared", capacity=8)
    worst = forecast(memory, targets=2, drafters=3, lanes=[lane], largest=10)
    assert worst["drafter_peak_bytes"] == [(8 + 2 + 1) * 10, (8 + 2 + 1) * 10, 10]


def test_a_lane_of_ones_own_fills_only_that_drafters_device() -> None:
    memory = Memory(hidden_bytes_per_token=1, staging="device")
    lanes = [LaneSpec(name=f"lane/{d}", capacity=d, reader=d) for d in (1, 2)]
    worst = forecast(memory, targets=2, drafters=3, lanes=lanes, largest=10, prefetch=2)
    assert worst["drafter_peak_bytes"] == [30, 40, 50]


def test_a_bound_over_all_lanes_caps_what_waits() -> None:
    lanes = [LaneSpec(name=str(k), capacity=5) for k in range(4)]
    worst = forecast(Memory(hidden_bytes_per_token=1), targets=1, drafters=1, lanes=lanes, bound=5, largest=10)
    assert worst["host_staged_peak_bytes"] == 50 and worst["host_peak_bytes"] == 70


def test_a_lane_of_capacity_0_stages_what_it_hands_over_for_an_instant() -> None:
    run = simulate(Memory(hidden_bytes_per_token=1), equal_batches(20, 10), targets=2, drafters=2, capacity=0)
    assert run.report["host_staged_peak_bytes"] == run.worst["host_staged_peak_bytes"] == 10


# Any run ----------------------------------------------------------------------------------------------------------


@st.composite
def runs(draw: st.DrawFn) -> Run:
    targets, drafters = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    seconds = st.sampled_from([0.3, 1.0, 2.7])
    policy = draw(st.sampled_from(sorted(BUILTIN)))
    listed = draw(st.lists(st.integers(1, 4), min_size=1, max_size=30))
    plan = listed_batches([(1001 * k, 8**k, 1.0, 1.0) for k in listed], Arrangement(buckets=(8, 64, 512)))
    fewest = len(plan.bucket_names) if policy == "bucketed" else 0
    # One worker of each role is left, so that most runs end their data.
    mortal = [("target", t) for t in range(1, targets)] + [("drafter", d) for d in range(1, drafters)]
    faulty = draw(st.lists(st.sampled_from(mortal), max_size=1, unique=True)) if mortal else []
    return simulate(
        Memory(
            hidden_bytes_per_token=draw(st.integers(1, 3)),
            staging=draw(st.sampled_from(["host", "device"])),
            pinned=draw(st.booleans()),
            drafter_model_bytes=draw(st.sampled_from([None, 17])),
            host_limit=draw(st.sampled_from([None, 5_000])),
        ),
        plan,
        targets=targets,
        drafters=drafters,
        policy=policy,
        capacity=draw(st.none() | st.integers(fewest, 6)),
        target_s=[draw(seconds) for _ in range(targets)],
        drafter_s=[draw(seconds) for _ in range(drafters)],
        transfer_s=draw(st.sampled_from([None, 0.2, 1.0])),
        placement=draw(st.sampled_from([None, "taker", "producer"])),
        sync=draw(st.sampled_from(["none", "step", "pooled"])),
        accumulate=draw(st.integers(1, 3)),
        prefetch=draw(st.integers(0, 1)),
        faults=tuple(
            PlannedFault(role=name, worker=number, at_batch=draw(st.integers(1, 5)), kind="crash")
            for name, number in faulty
        ),
        check=True,
    )


@settings(max_examples=300, deadline=None)
@given(runs())
def test_the_books_follow_the_ledger_close_at_zero_and_stay_below_the_forecast(run: Run) -> None:
    meter, report, worst = run.meter, run.report, run.worst
    if run.dispatcher.ended == "data_exhausted":
        assert levels(meter) == (0, [0] * len(meter.drafters), [0] * len(meter.targets))
        for store in (meter.host, meter.blocks, *meter.drafters, *meter.targets):
            assert not any(store.terms)
    nobody_lost = len(run.dispatcher.dispatch.consumers) == len(meter.drafters)
    for key in ("host_peak_bytes", "host_pinned_peak_bytes", *["host_staged_peak_bytes"] * nobody_lost):
        assert report[key] <= worst[key]  # type: ignore[literal-required]
    for key in ("drafter_peak_bytes", "target_peak_bytes"):
        pairs = zip(report[key], worst[key], strict=True)  # type: ignore[literal-required]
        assert all(peak <= most for peak, most in pairs)
    assert report.keys() == worst.keys()
    assert json.loads(json.dumps(report, allow_nan=False)) == report


@pytest.mark.parametrize("policy", sorted(BUILTIN))
def test_a_batch_of_no_tokens_needs_no_memory(policy: str) -> None:
    run = simulate(Memory(hidden_bytes_per_token=0), equal_batches(9, 5), targets=2, drafters=2, policy=policy)
    assert run.report["host_peak_bytes"] == 0 and run.report["drafter_peak_bytes"] == [0, 0]
