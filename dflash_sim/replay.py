"""Feeds the inputs of a recorded run to a fresh dispatcher and compares its answers with the recorded ones.

The dispatcher has no clock, so a real run and its replay must agree effect by effect, whatever the workers' timing was.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from policies.assembly import build_dispatcher
from policies.dispatcher import Dispatcher
from policies.effects import Effect
from policies.errors import PolicyError, ProtocolError
from policies.loading import from_mapping
from policies.trace import Input, effect_rows, input_rows
from reports.tracefile import Call, Trace

LIMIT: Final = 20
"""Differences after which a replay stops."""
_REFUSALS: Final = (ProtocolError, PolicyError, AssertionError, LookupError, ValueError)


@dataclass(frozen=True)
class Nothing:
    """No effect stands here."""

    def __str__(self) -> str:
        return "nothing"


NOTHING: Final = Nothing()


@dataclass(frozen=True)
class Refused:
    """The dispatcher did not take the input: it cannot have happened. The replay ends."""

    reason: str

    def __str__(self) -> str:
        return f"refused: {self.reason}"


@dataclass(frozen=True)
class Difference:
    """One place where the fresh dispatcher answers otherwise."""

    position: int
    """Row of the trace at which the recorded effect stands, or would stand."""
    time_s: float
    input: Input
    expected: Effect | Nothing
    """As recorded."""
    got: Effect | Nothing | Refused

    def __str__(self) -> str:
        where = f"event row {self.position} (t = {self.time_s:g} s), after {self.input}"
        return f"{where}: recorded {self.expected}, now {self.got}"


def replay(trace: Trace, dispatcher: Dispatcher, *, limit: int = LIMIT) -> list[Difference]:
    """Every difference, at most `limit` of them, in order; empty when the two agree.

    `dispatcher` must be fresh and built as the run's was. The first difference is the one to look at: a decision
    that differs makes later ones differ.
    """
    found: list[Difference] = []
    for call in trace.calls():
        try:
            got = getattr(dispatcher, call.input.name)(*call.input.args)
        except _REFUSALS as error:
            expected = call.effects[0] if call.effects else NOTHING
            refused = Refused(str(error) or type(error).__name__)
            found.append(Difference(_answer_row(call), call.time_s, call.input, expected, refused))
            break
        if got != call.effects:
            found += _differences(call, got)
        if len(found) >= limit:
            break
    return found[:limit]


def dispatcher_of(trace: Trace) -> Dispatcher:
    """A fresh dispatcher built as the recorded run's was. Raises PipelineError where its policy cannot be had."""
    pipeline = from_mapping(trace.header.config)
    return build_dispatcher(pipeline, trace.header.buckets, trace.work.bucket)


def _differences(call: Call, got: Sequence[Effect]) -> list[Difference]:
    """Compare effect by effect, in order."""
    found = []
    position = _answer_row(call)
    for recorded, now in zip_longest(call.effects, got, fillvalue=NOTHING):
        if recorded != now:
            found.append(Difference(position, call.time_s, call.input, recorded, now))
        if not isinstance(recorded, Nothing):
            position += len(effect_rows(recorded))
    return found


def _answer_row(call: Call) -> int:
    """The row after the input, where its effects begin."""
    return call.row + len(input_rows(call.input.name, call.input.args))
