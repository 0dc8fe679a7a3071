"""Rules between the keys of a pipeline: what no field can check alone.

Each rule names the keys that it reads, so that it stays silent where one of them is itself at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from policies.faults import ABSENT, Fault
from policies.sections.data import MAX_BATCHES, BatchSize, DrawnLengths
from policies.sections.fields import Section
from policies.sections.timings import LoaderTime, RoleTime

if TYPE_CHECKING:
    from policies.pipeline import Pipeline

Rule = Callable[["Pipeline"], Iterator[Fault]]


@dataclass(frozen=True, kw_only=True)
class Checking:
    """How a pipeline is to be checked; handed to pydantic as its validation context."""

    unsure: frozenset[str] = frozenset()
    """Dotted keys that were at fault and have been left out: rules that read them are skipped."""
    for_simulation: bool = False
    """Whether `data` and `timings` must be there."""


def broken(pipeline: Pipeline, checking: Checking) -> list[Fault]:
    """The faults between keys, in the order of the rules."""
    rules = RULES + (SIMULATION_RULES if checking.for_simulation else ())
    return [
        fault
        for reads, rule in rules
        if not any(_under(a, b) or _under(b, a) for a in reads for b in checking.unsure)
        for fault in rule(pipeline)
        if not any(_under(fault.key, key) for key in checking.unsure)
    ]


def _under(key: str, above: str) -> bool:
    return key == above or key.startswith(f"{above}.")


def capacity_fault(capacity: int, lanes: int) -> Fault | None:
    """The fault of a `bucketed` capacity that leaves a lane without a slot; None where it suffices.

    How many lanes there are only the batch plan says: the buckets, overflow included, that have batches.
    """
    if capacity >= lanes:
        return None
    rule = f"must be at least {lanes} under bucketed: one slot for each bucket that has batches"
    return Fault("dispatch.capacity", capacity, rule, f"set {lanes} or more, or give dispatch.depth instead")


def _devices(role: str) -> Rule:
    def rule(p: Pipeline) -> Iterator[Fault]:
        given = getattr(p.topology.devices, role, None)
        count = getattr(p.topology, role)
        if isinstance(given, tuple) and len(given) != count:
            told = f"must name {count} devices, as topology.{role} says"
            yield Fault(f"topology.devices.{role}", given, told, "a device may be named more than once")

    return rule


def _workers(role: str) -> Rule:
    def rule(p: Pipeline) -> Iterator[Fault]:
        count = getattr(p.topology, f"{role}s")
        for index, fault in enumerate(p.faults):
            name, number = fault.worker.split("/")
            if name == role and int(number) >= count:
                told = f"must be a worker of the topology: {role}/0 to {role}/{count - 1}"
                yield Fault(f"faults.{index}.worker", fault.worker, told)
            if name == role == "target" and fault.kind == "hang_in_step":
                yield Fault(f"faults.{index}.kind", fault.kind, "must be crash or hang for a target: it takes no steps")

    return rule


def _depth(p: Pipeline) -> Iterator[Fault]:
    if p.dispatch.depth is not None and p.dispatch.capacity is not None:
        rule = f"must not be given together with dispatch.depth ({p.dispatch.depth})"
        yield Fault("dispatch.capacity", p.dispatch.capacity, rule, "remove one of the two")


def _bucketed_capacity(p: Pipeline) -> Iterator[Fault]:
    if p.dispatch.policy == "bucketed" and p.dispatch.capacity is not None:
        fault = capacity_fault(p.dispatch.capacity, lanes=1)
        if fault is not None:
            yield fault


def _mix(p: Pipeline) -> Iterator[Fault]:
    dispatch, training = p.dispatch, p.training
    if dispatch.policy != "bucketed" or dispatch.mix != "require":
        return
    share = 1 if training.sync == "none" else p.topology.drafters
    if training.accumulate * share < dispatch.min_buckets:
        step = training.accumulate * share
        rule = f"must be at most {step} under mix: require: an optimizer step has no more micro-batches"
        least = -(-dispatch.min_buckets // share)
        remedy = f"set training.accumulate to {least} or more, or mix: prefer"
        yield Fault("dispatch.min_buckets", dispatch.min_buckets, rule, remedy)


def _work(p: Pipeline) -> Iterator[Fault]:
    if p.data is None:
        return
    given = [name for name in ("batches", "tokens", "lengths") if getattr(p.data, name) is not None]
    if len(given) > 1:
        yield Fault("data", given, "must give exactly one of batches, tokens, lengths", "remove the others")
    elif not given and p.data.path is None:
        rule = "must give one of batches, tokens, lengths (or path, to train)"
        yield Fault("data", ABSENT, rule, "e.g. batches: 240")


def _planned(p: Pipeline) -> Iterator[Fault]:
    if p.data is None or p.data.tokens is None:
        return
    if -(-p.data.tokens // p.data.batch_tokens) > MAX_BATCHES:
        rule = f"must make at most {MAX_BATCHES} batches of {p.data.batch_tokens} tokens"
        yield Fault("data.tokens", p.data.tokens, rule, "raise data.batch_tokens")


def _grouping(p: Pipeline) -> Iterator[Fault]:
    if p.data is None:
        return
    size = p.data.batch
    yield from _exactly_one("data.batch", size, "samples", "max_tokens")
    if p.data.lengths is None and p.data.path is None and size != BatchSize(samples=1):
        rule = "must be left out with batches and tokens: there, a batch is one sample"
        yield Fault("data.batch", size.model_dump(exclude_none=True), rule, "give data.lengths, or remove it")
    if p.data.lengths is not None and p.data.batch_tokens != 1:
        rule = "must be left out with lengths, which say what the batches hold"
        yield Fault("data.batch_tokens", p.data.batch_tokens, rule, "use data.batch.max_tokens for a limit")


def _drawn(p: Pipeline) -> Iterator[Fault]:
    drawn = p.data.lengths if p.data is not None else None
    if isinstance(drawn, DrawnLengths) and drawn.lognormal.min > drawn.lognormal.max:
        rule = f"must be at most max ({drawn.lognormal.max})"
        yield Fault("data.lengths.lognormal.min", drawn.lognormal.min, rule)


def _one_rate(name: str, *rates: str) -> tuple[tuple[str, ...], Rule]:
    """The rule that `timings.NAME` gives exactly one of `rates`, with the keys that it reads."""

    def rule(p: Pipeline) -> Iterator[Fault]:
        time = getattr(p.timings, name, None)
        if time is not None:
            yield from _exactly_one(f"timings.{name}", time, *rates)

    return tuple(f"timings.{name}.{rate}" for rate in rates), rule


def _exactly_one(key: str, section: Section, *names: str) -> Iterator[Fault]:
    given = [name for name in names if getattr(section, name) is not None]
    if len(given) != 1:
        yield Fault(key, given or ABSENT, f"must give exactly one of {' and '.join(names)}")


def _per_worker(role: str) -> Rule:
    def rule(p: Pipeline) -> Iterator[Fault]:
        count = getattr(p.topology, f"{role}s")
        for name in ("seconds", "tokens_per_second"):
            value = getattr(getattr(p.timings, role, None), name, None)
            if isinstance(value, tuple) and len(value) != count:
                told = f"must be one number, or a list of {count}: one for each of topology.{role}s"
                yield Fault(f"timings.{role}.{name}", value, told, f"the list has {len(value)}")

    return rule


def _variation(p: Pipeline) -> Iterator[Fault]:
    for name in ("target", "drafter", "loader"):
        time: RoleTime | LoaderTime | None = getattr(p.timings, name, None)
        if time is not None and time.cv is not None and time.distribution is not None:
            rule = "must not be given together with distribution"
            yield Fault(f"timings.{name}.cv", time.cv, rule, "remove one: cv means a lognormal")


def _measured(p: Pipeline) -> Iterator[Fault]:
    for role in ("target", "drafter"):
        time: RoleTime | None = getattr(p.timings, role, None)
        if time is not None and p.timings is not None and p.timings.file is not None:
            rule = "must be left out with timings.file, which holds measured times of both roles"
            yield Fault(f"timings.{role}", time.model_dump(exclude_none=True), rule, "remove one of the two")


def _hidden(p: Pipeline) -> Iterator[Fault]:
    memory = p.memory
    parts = {"hidden_size": memory.hidden_size, "taps": memory.taps, "keep_last": memory.keep_last or None}
    given = [name for name, value in parts.items() if value is not None]
    if memory.hidden_bytes_per_token is not None and given:
        rule = f"must not be given together with {', '.join(given)}"
        value = memory.hidden_bytes_per_token
        yield Fault("memory.hidden_bytes_per_token", value, rule, "it counts all of them: remove one")
    elif (memory.hidden_size is None) != (memory.taps is None):
        rule = "must give hidden_size and taps together, or hidden_bytes_per_token"
        yield Fault("memory", given, rule)


def _copied(p: Pipeline) -> Iterator[Fault]:
    transfer = p.timings.transfer if p.timings is not None else None
    if transfer is not None and transfer.bytes_per_second is not None and p.memory.bytes_per_token is None:
        rule = "must come with the size of what is copied"
        remedy = "give memory.hidden_bytes_per_token, or memory.hidden_size and memory.taps"
        yield Fault("timings.transfer.bytes_per_second", transfer.bytes_per_second, rule, remedy)


def _has_work(p: Pipeline) -> Iterator[Fault]:
    if p.data is None:
        yield Fault("data", ABSENT, "must be given: the work to predict", "e.g. `data: {batches: 240}`")
    elif (p.data.batches, p.data.tokens, p.data.lengths) == (None, None, None) and p.data.path is not None:
        yield Fault("data", ["path"], "must give one of batches, tokens, lengths for a prediction")


def _has_times(p: Pipeline) -> Iterator[Fault]:
    if p.timings is not None and p.timings.file is not None:
        return
    rule = "must be given: the seconds or tokens_per_second of a {}, or timings.file"
    for role in ("target", "drafter"):
        if p.timings is None or getattr(p.timings, role) is None:
            remedy = f"e.g. `timings: {{{role}: {{seconds: 1.0}}}}`"
            yield Fault(f"timings.{role}", ABSENT, rule.format(role), remedy)


_SIZES: Final = ("memory.hidden_bytes_per_token", "memory.hidden_size", "memory.taps", "memory.keep_last")
_WORK: Final = ("data.batches", "data.tokens", "data.lengths", "data.path")

RULES: Final[tuple[tuple[tuple[str, ...], Rule], ...]] = (
    (("topology.targets",), _devices("targets")),
    (("topology.drafters",), _devices("drafters")),
    (("topology.targets",), _workers("target")),
    (("topology.drafters",), _workers("drafter")),
    (("dispatch.depth", "dispatch.capacity"), _depth),
    (("dispatch.policy", "dispatch.capacity"), _bucketed_capacity),
    (
        (
            "dispatch.policy",
            "dispatch.mix",
            "dispatch.min_buckets",
            "training.accumulate",
            "training.sync",
            "topology.drafters",
        ),
        _mix,
    ),
    (_WORK, _work),
    (("data.tokens", "data.batch_tokens"), _planned),
    ((*_WORK, "data.batch", "data.batch_tokens"), _grouping),
    (("data.lengths",), _drawn),
    _one_rate("target", "seconds", "tokens_per_second"),
    _one_rate("drafter", "seconds", "tokens_per_second"),
    _one_rate("transfer", "seconds", "bytes_per_second"),
    (("topology.targets",), _per_worker("target")),
    (("topology.drafters",), _per_worker("drafter")),
    ((), _variation),
    (("timings.file",), _measured),
    (_SIZES, _hidden),
    ((*_SIZES, "timings.transfer"), _copied),
)
SIMULATION_RULES: Final[tuple[tuple[tuple[str, ...], Rule], ...]] = (
    (_WORK, _has_work),
    (("timings.file",), _has_times),
)
