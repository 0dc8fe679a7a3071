"""The batch plan: the cases of the contract, and what holds for any lengths, limits, buckets and orders."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.batches import (
    ALL,
    Arrangement,
    BatchPlan,
    BatchPlanError,
    batches_for_total,
    batches_from_lengths,
    equal_batches,
    lag1_length_correlation,
    listed_batches,
    plan_batches,
)


@dataclass
class Limit:
    samples: int | None = None
    max_tokens: int | None = None


@dataclass
class Law:
    mean: float
    sigma: float
    min: int | None = None
    max: int | None = None


@dataclass
class Drawn:
    lognormal: Law
    count: int


@dataclass
class Entry:
    tokens: int | None = None
    length: int | None = None
    seconds: float | None = None
    target_seconds: float | None = None


@dataclass
class Data:
    """The attributes of the file's `data:` with its defaults."""

    batches: Any = None
    batch_tokens: int = 1
    tokens: float | None = None
    lengths: Any = None
    batch: Limit | None = field(default_factory=Limit)
    buckets: list[int] | None = None
    order: str | None = None
    epochs: int = 1


def members(plan: BatchPlan) -> list[list[int]]:
    return [plan.samples_of(k).tolist() for k in range(plan.count)]


# --- the cases ---


def test_the_last_smaller_batch_is_kept():
    plan = plan_batches(Data(lengths=[100] * 64, batch=Limit(samples=6)), seed=0)
    assert plan.count == len(plan) == 11
    assert plan.samples.sum() == 64 and sorted(plan.samples.tolist()) == [4] + [6] * 10


def test_one_batch_shorter_than_its_limit_is_planned():
    plan = plan_batches(Data(lengths=[100] * 5, batch=Limit(samples=128)), seed=0)
    assert plan.samples.tolist() == [5]


def test_padding_is_counted_as_slots_and_not_as_tokens():
    plan = plan_batches(Data(lengths=[100, 100, 100, 4000], batch=Limit(samples=4)), seed=0)
    assert (plan.tokens.tolist(), plan.slots.tolist(), plan.length.tolist()) == ([4300], [16000], [4000])
    assert 1 - plan.tokens.sum() / plan.slots.sum() == pytest.approx(0.73125)


def test_sorted_lengths_correlate_in_the_given_order_and_less_with_interleaved_buckets():
    data = Data(
        lengths=list(range(1, 4001)), batch=Limit(samples=4), order="given", buckets=[1000, 2000, 3000]
    )
    assert lag1_length_correlation(plan_batches(data, seed=0).length) > 0.999
    data.order = "interleaved"
    assert lag1_length_correlation(plan_batches(data, seed=0).length) < 0.1


def test_a_number_of_batches_makes_equal_batches_of_one_sample_in_one_bucket():
    plan = plan_batches(Data(batches=3, batch_tokens=65536), seed=0)
    assert plan.tokens.tolist() == plan.slots.tolist() == plan.length.tolist() == [65536] * 3
    assert plan.samples.tolist() == [1, 1, 1] and plan.bucket_names == (ALL,)
    assert plan.target_factor.tolist() == plan.drafter_factor.tolist() == [1.0] * 3


def test_a_batch_list_keeps_its_order_and_its_factors():
    entries = [Entry(tokens=65536, length=2048, seconds=8.0), Entry(target_seconds=2.5)]
    plan = plan_batches(Data(batches=entries, batch_tokens=7), seed=0)
    assert plan.tokens.tolist() == plan.slots.tolist() == [65536, 7]
    assert plan.length.tolist() == [2048, 7]
    assert plan.drafter_factor.tolist() == [8.0, 1.0] and plan.target_factor.tolist() == [1.0, 2.5]


def test_a_shuffled_batch_list_keeps_each_factor_with_its_batch():
    plan = listed_batches(
        [(n, n, n / 2, n * 3.0) for n in range(1, 50)], Arrangement(order="shuffled", buckets=(9,))
    )
    assert plan.tokens.tolist() != sorted(plan.tokens.tolist())
    assert np.array_equal(plan.drafter_factor, plan.tokens / 2)
    assert np.array_equal(plan.target_factor, plan.tokens * 3.0)
    assert np.array_equal(plan.sample_ids, plan.tokens - 1)


def test_a_total_of_tokens_makes_as_many_batches_as_it_needs_and_the_last_holds_the_rest():
    assert plan_batches(Data(tokens=10.0, batch_tokens=4), seed=0).tokens.tolist() == [4, 4, 2]
    assert batches_for_total(8, 4).tokens.tolist() == [4, 4]
    assert batches_for_total(11.06e9, 65536).tokens.sum() == 11_060_000_000


def test_a_total_without_a_batch_size_is_refused_before_it_fills_the_memory():
    with pytest.raises(
        BatchPlanError, match=r"^data\.tokens: 11060000000\.0: .*set data\.batch_tokens"
    ) as fault:
        plan_batches(Data(tokens=11.06e9), seed=0)
    assert (fault.value.key, fault.value.value) == ("data.tokens", 11.06e9)
    with pytest.raises(BatchPlanError, match=r"data\.lengths\.count"):
        plan_batches(Data(lengths=Drawn(Law(10, 1), 10**8)), seed=0)


def test_a_section_that_names_no_data_is_refused():
    with pytest.raises(BatchPlanError, match=r"set data\.batches"):
        plan_batches(Data(), seed=0)


# --- buckets and orders ---


def test_an_edge_belongs_to_its_bucket_and_longer_samples_to_the_overflow():
    plan = batches_from_lengths([512, 513, 5000, 1], Arrangement(buckets=(512, 1024, 4096)))
    assert [plan.bucket_names[b] for b in plan.bucket] == ["<=512", "<=1024", ">4096", "<=512"]
    assert plan.bucket_names == ("<=512", "<=1024", ">4096")  # nothing is planned for <=4096


def test_given_emits_batches_as_they_fill_and_partial_ones_last_in_bucket_order():
    lengths = [900, 10, 910, 20, 30, 920]
    plan = batches_from_lengths(lengths, Arrangement(buckets=(100,)), samples=2)
    assert members(plan) == [[0, 2], [1, 3], [4], [5]]


def test_a_sample_longer_than_the_limit_goes_alone_and_is_counted():
    plan = batches_from_lengths([10, 99, 10, 10, 50], Arrangement(), max_tokens=50)
    assert members(plan) == [[0], [1], [2, 3], [4]]
    assert plan.oversized == 1 and batches_from_lengths([99], samples=1).oversized == 0


def test_interleaved_deals_buckets_in_proportion():
    lengths = [10] * 6 + [900] * 3
    plan = batches_from_lengths(lengths, Arrangement(buckets=(100,), order="interleaved"))
    assert plan.bucket.tolist() == [0, 1, 0, 0, 1, 0, 0, 1, 0]
    assert [ids for (ids,) in members(plan) if ids < 6] == list(range(6))


def test_the_arrays_are_read_only_and_have_their_types():
    plan = batches_from_lengths([5, 6, 7], samples=2)
    for name in ("tokens", "slots", "samples", "length", "sample_ids", "sample_offsets"):
        assert getattr(plan, name).dtype == np.int64
    assert plan.bucket.dtype == plan.epoch.dtype == np.int32
    assert plan.target_factor.dtype == plan.drafter_factor.dtype == np.float64
    with pytest.raises(ValueError, match="read-only"):
        plan.tokens[0] = 1
    lengths = np.array([5, 6, 7])
    batches_from_lengths(lengths)
    assert lengths.flags.writeable


def test_the_content_hash_tells_changed_plans_apart():
    lengths = list(range(1, 30))
    shuffled = Arrangement(order="shuffled", seed=1)
    plan = batches_from_lengths(lengths, shuffled, samples=4)
    assert plan.content_hash == batches_from_lengths(lengths, shuffled, samples=4).content_hash
    assert plan.content_hash != batches_from_lengths(lengths, shuffled, samples=5).content_hash
    assert plan.content_hash != batches_from_lengths([*lengths[:-1], 30], shuffled, samples=4).content_hash
    edges = Arrangement(order="shuffled", seed=1, buckets=(99,))
    assert plan.content_hash != batches_from_lengths(lengths, edges, samples=4).content_hash


# --- nothing to do ---


@pytest.mark.parametrize("order", ["given", "shuffled", "interleaved"])
@pytest.mark.parametrize("buckets", [None, [512, 1024]])
@pytest.mark.parametrize(
    "nothing",
    [
        {"batches": 0},
        {"batches": []},
        {"tokens": 0.0},
        {"lengths": []},
        {"lengths": [], "batch": Limit(samples=4)},
        {"lengths": [], "batch": Limit(max_tokens=4)},
        {"lengths": Drawn(Law(100, 0.5), 0)},
    ],
    ids=str,
)
def test_no_data_makes_an_empty_plan_with_one_bucket(nothing, buckets, order):
    plan = plan_batches(Data(**nothing, buckets=buckets, order=order, epochs=2), seed=0)
    assert len(plan) == plan.count == 0
    assert plan.bucket_names == (ALL,) and plan.sample_offsets.tolist() == [0]
    for name in ("tokens", "slots", "samples", "length", "bucket", "target_factor", "epoch", "sample_ids"):
        assert getattr(plan, name).size == 0
    assert plan.content_hash


# --- what always holds ---

lengths_lists = st.lists(st.integers(1, 60), max_size=60)
limits = st.one_of(
    st.builds(lambda n: {"samples": n}, st.integers(1, 9)),
    st.builds(lambda m: {"max_tokens": m}, st.integers(1, 150)),
)
edge_lists = st.lists(st.integers(1, 60), max_size=4, unique=True).map(lambda edges: tuple(sorted(edges)))
arrangements = st.builds(
    Arrangement,
    buckets=edge_lists,
    order=st.sampled_from(["given", "shuffled", "interleaved"]),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 5),
)


@given(lengths_lists, limits, arrangements)
def test_each_epoch_holds_every_sample_once(lengths, limit, arrangement):
    plan = batches_from_lengths(lengths, arrangement, **limit)
    assert np.all(np.diff(plan.epoch) >= 0)
    for epoch in range(arrangement.epochs):
        ids = [i for k in np.flatnonzero(plan.epoch == epoch) for i in plan.samples_of(int(k)).tolist()]
        assert sorted(ids) == list(range(len(lengths)))


@given(lengths_lists, limits, arrangements)
def test_each_batch_keeps_its_limit_and_adds_up(lengths, limit, arrangement):
    plan = batches_from_lengths(lengths, arrangement, **limit)
    alone = 0
    for k, ids in enumerate(members(plan)):
        own = [lengths[i] for i in ids]
        assert (plan.samples[k], plan.tokens[k], plan.length[k]) == (len(own), sum(own), max(own))
        assert plan.slots[k] == len(own) * max(own)
        if "samples" in limit:
            assert len(own) <= limit["samples"]
        elif plan.slots[k] > limit["max_tokens"]:
            alone += 1
            assert len(own) == 1
    assert plan.oversized == alone


@given(lengths_lists, limits, arrangements)
def test_each_batch_lies_within_one_bucket_and_each_named_bucket_has_a_batch(lengths, limit, arrangement):
    plan = batches_from_lengths(lengths, arrangement, **limit)
    edges = arrangement.buckets
    for k, ids in enumerate(members(plan)):
        name = plan.bucket_names[plan.bucket[k]]
        for length in (lengths[i] for i in ids):
            fitting = [edge for edge in edges if length <= edge]
            assert name == (ALL if not edges else f"<={fitting[0]}" if fitting else f">{edges[-1]}")
    assert set(plan.bucket.tolist()) == set(range(len(plan.bucket_names))) or not lengths
    bounds = [(name.startswith(">"), int(name.lstrip("<=>"))) for name in plan.bucket_names if name != ALL]
    assert bounds == sorted(bounds)


@given(lengths_lists, limits, edge_lists)
def test_given_is_what_a_loader_that_reads_the_file_once_would_emit(lengths, limit, edges):
    plan = batches_from_lengths(lengths, Arrangement(buckets=edges), **limit)
    assert members(plan) == streamed(lengths, edges, **limit)


def streamed(
    lengths: list[int], edges: tuple[int, ...], samples: int | None = None, max_tokens: int = 0
) -> list[list[int]]:
    """One open batch a bucket, sent off when no sample would fit any more, or when the next one does not."""

    def fits(ids: list[int], more: int) -> bool:
        if samples is not None:
            return len(ids) < samples
        return (len(ids) + 1) * max([lengths[i] for i in ids] + [more]) <= max_tokens

    sent: list[list[int]] = []
    waiting: dict[int, list[int]] = {}
    for i, length in enumerate(lengths):
        bucket = sum(edge < length for edge in edges)
        if bucket in waiting and not fits(waiting[bucket], length):
            sent.append(waiting.pop(bucket))
        waiting.setdefault(bucket, []).append(i)
        if not fits(waiting[bucket], 1):
            sent.append(waiting.pop(bucket))
    return sent + [waiting[bucket] for bucket in sorted(waiting)]


@given(lengths_lists, edge_lists)
def test_interleaved_keeps_every_bucket_near_its_share_all_the_way(lengths, edges):
    plan = batches_from_lengths(lengths, Arrangement(buckets=edges, order="interleaved"))
    counts, dealt = Counter(plan.bucket.tolist()), Counter()
    for k, bucket in enumerate(plan.bucket.tolist(), start=1):
        dealt[bucket] += 1
        # Each bucket's rounding is at most half a batch either way; the buckets' roundings add up.
        for other, count in counts.items():
            assert abs(dealt[other] - k * count / plan.count) <= 1 + len(counts) / 2


@given(lengths_lists, limits, arrangements)
def test_the_same_seed_makes_the_same_plan(lengths, limit, arrangement):
    first = batches_from_lengths(lengths, arrangement, **limit)
    again = batches_from_lengths(np.array(lengths, dtype=np.int32), arrangement, **limit)
    assert first.content_hash == again.content_hash


@given(st.integers(0, 2**64), st.integers(1, 5))
def test_epochs_and_seeds_differ_in_order_and_agree_in_content(seed, samples):
    lengths = list(range(1, 61))
    plan, other = (
        batches_from_lengths(lengths, Arrangement(order="shuffled", epochs=2, seed=s), samples=samples)
        for s in (seed, seed + 1)
    )
    halves = plan.sample_ids[:60].tolist(), plan.sample_ids[60:].tolist(), other.sample_ids[:60].tolist()
    assert len({tuple(half) for half in halves}) == 3
    assert all(sorted(half) == list(range(60)) for half in halves)


def test_more_epochs_leave_the_first_ones_as_they_were():
    one, three = (equal_batches(50, 8, Arrangement(order="shuffled", epochs=e, seed=4)) for e in (1, 3))
    assert np.array_equal(one.sample_ids, three.sample_ids[:50])
    assert three.epoch.tolist() == [0] * 50 + [1] * 50 + [2] * 50


def test_drawn_lengths_follow_the_seed_and_are_the_same_in_each_epoch():
    data = Data(lengths=Drawn(Law(200, 0.6, 16, 4096), 100), epochs=2)
    plan = plan_batches(data, seed=3)
    assert (
        plan.content_hash
        == plan_batches(data, seed=3).content_hash
        != plan_batches(data, seed=4).content_hash
    )
    assert sorted(plan.length[:100]) == sorted(plan.length[100:])
