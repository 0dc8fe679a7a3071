"""Reads the JSON that commands wrote (a run's summary, a comparison, a plan) and checks what reports need of it."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from policies.faults import ABSENT, Fault, PipelineError, dotted

FILE: Final = "summary.json"
_MAX_BYTES: Final = 1 << 28

Amount = Annotated[float, Field(ge=0, le=1e18)]
Count = Annotated[int, Field(ge=0, le=1 << 62)]
Bounds = Annotated[list[float], Field(min_length=2, max_length=2)]


class _Part(BaseModel):
    """Keys that are not named are kept as they are."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class Amounts(_Part):
    planned: Count
    produced: Count
    trained: Count
    queued: Count
    in_flight: Count
    lost: Count


class Tokens(Amounts):
    slots: Count | None = None
    padding_share: Annotated[float, Field(ge=0, le=1)] | None = None


class Throughput(_Part):
    tokens_per_s: Amount | None
    slots_per_s: Amount | None = None
    positions_per_s: Amount | None = None
    steady_tokens_per_s: Amount | None
    steady_from_s: Amount | None = None
    steady_to_s: Amount | None = None
    steady_ci95: Bounds | None = None
    ci95: Bounds | None = None


class InVain(_Part):
    busy: Amount = 0.0
    sync: Amount = 0.0
    transfer: Amount = 0.0


class Worker(_Part):
    name: str
    role: str
    busy_s: Amount
    blocked_s: Amount
    starved_s: Amount
    sync_s: Amount
    transfer_s: Amount
    lifetime_s: Amount
    batches: Count
    tokens: Count
    lost: bool = False
    in_vain_s: InVain = InVain()


class Lane(_Part):
    name: str
    capacity: Count
    mean: Amount | None
    max: Count


class Balance(_Part):
    batches: list[Count] = []
    tokens: list[Count] = []


class Mixing(_Part):
    windows: Count = 0
    mixed_windows: Count = 0
    mean_buckets: Amount | None = None
    lag1_length_correlation: float | None = None


class Verdict(_Part):
    bottleneck: str | None
    text: str


class Alternative(_Part):
    policy: str
    tokens_per_s: Amount
    gain: float


class Memory(_Part):
    host_peak_bytes: Count | None = None
    host_pinned_peak_bytes: Count | None = None
    drafter_peak_bytes: list[Count | None] = []
    fits: bool | None = None
    over: list[str] = []
    notes: list[str] = []


class Waiting(_Part):
    worker: str
    what: Annotated[str, Field(alias="for")] = "something"
    since_s: Amount


Config = dict[str, dict[str, Any] | list[Any] | str | float | int | None]
"""A resolved file: sections, or plain values."""


class Summary(_Part):
    """What a report takes from a summary.json; see the contract for what each key means."""

    kind: str
    policy: str = "unknown"
    seed: int | None = None
    stop_reason: str
    makespan_s: Amount
    eta_s: Amount | None = None
    eta_remaining_s: Amount | None = None
    eta_ci95: Bounds | None = None
    optimizer_steps: Count = 0
    batches: Amounts
    tokens: Tokens
    samples: Amounts | None = None
    throughput: Throughput
    workers: list[Worker]
    lanes: list[Lane]
    max_outstanding: Count = 0
    balance: Balance = Balance()
    mixing: Mixing = Mixing()
    memory: Memory = Memory()
    verdict: Verdict
    alternatives: list[Alternative] = []
    failures: list[str] = []
    waiting: list[Waiting] = []
    config: Config = {}
    versions: dict[str, str] = {}


class Entry(_Part):
    """One policy of a comparison."""

    policy: str
    gain: float | None
    gain_ci95: Bounds | None
    summary: Summary


class Comparison(_Part):
    """The answer of `dflash-sim compare`."""

    outcome: str
    base: str
    policies: list[Entry]


def read_json(path: Path) -> Mapping[str, Any]:
    """The JSON object of a file. Raises PipelineError for anything else; OSError where it cannot be read."""
    with path.open("rb") as file:
        text = file.read(_MAX_BYTES + 1)
    if len(text) > _MAX_BYTES:
        raise _unusable(path, "it is larger than 256 MiB", "give a summary.json that a command wrote")
    try:
        document = json.loads(text.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise _unusable(path, f"it is not JSON ({error})", "give a summary.json that a command wrote") from error
    if not isinstance(document, dict):
        raise _unusable(path, "it holds no JSON object", "give a summary.json that a command wrote")
    return document


def checked_summary(document: Mapping[str, Any], source: Path) -> dict[str, Any]:
    """The summary with defaults for what older versions lack. Raises PipelineError, a fault for every bad key."""
    return _checked(Summary, document, source)


def checked_comparison(document: Mapping[str, Any], source: Path) -> dict[str, Any]:
    """The comparison, its summaries as `checked_summary` gives them. Raises PipelineError."""
    return _checked(Comparison, document, source)


def _checked(model: type[BaseModel], document: Mapping[str, Any], source: Path) -> dict[str, Any]:
    try:
        return model.model_validate(document).model_dump()
    except ValidationError as error:
        faults = []
        for each in error.errors()[:10]:
            key = dotted(each["loc"])
            wrong = "is missing" if each["type"] == "missing" else each["msg"]
            faults.append(Fault(str(source), key, wrong, "written by another version, or altered; run it again"))
        raise PipelineError(faults) from error


def section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A section of a resolved file; empty where there is none."""
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


def is_finite(value: object) -> bool:
    """Whether this is a number that JSON and a figure can show."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


def _unusable(path: Path, wrong: str, remedy: str) -> PipelineError:
    return PipelineError([Fault(str(path), ABSENT, wrong, remedy)])


