"""The file of measured timings, `timings.json`: its format, strict reading with all faults at once, writing.

    {"version": 1,
     "machine": {…}, "versions": {…}, "settings": {…},       free mappings: where and how it was measured
     "target":  {"samples": [{"batch_size": 32, "length": 2048, "seconds": [8.1, 8.0, …]}, …],
                 "first_seconds": [61.0, …], "worker_factors": [1.0, …]},
     "drafter": {"samples": [{"batch_size": 32, "length": 2048, "anchors": 512, "seconds": […],
                              "parts": {"forward": […], "backward": […]}}, …],
                 "first_seconds": […]},
     "step": {"seconds": […]}, "loader": {"seconds": […]},
     "transfer": {"seconds": […], "bytes_per_second": […]},
     "hidden_bytes_per_token": 51200,
     "interference": {"cores": 64, "pairs": [{"a": "target", "b": "drafter", "shared": "cuda:0",
                                              "factor_a": 1.5, "factor_b": 1.3, …}, …]},
     "memory": {…}}                                          a free mapping

Only `version` is required. Times are raw samples in seconds, not means. `docs/timings.md` says it at length.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from reprlib import Repr
from typing import Annotated, Any, Final, Literal, Self, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from reports.writing import write_text

MAX_FAULTS = 50

# Bounds that no machine comes near, and within which no arithmetic of a simulation overflows.
LEAST_SECONDS: Final = 1e-12
MOST_SECONDS: Final = 1e9
Seconds = Annotated[float, Field(strict=True, ge=LEAST_SECONDS, le=MOST_SECONDS, allow_inf_nan=False)]
SecondsOrNone = Annotated[float, Field(strict=True, ge=0, le=MOST_SECONDS, allow_inf_nan=False)]
BytesPerSecond = Annotated[float, Field(strict=True, ge=1, le=1e15, allow_inf_nan=False)]
BytesPerToken = Annotated[float, Field(strict=True, gt=0, le=1e12, allow_inf_nan=False)]
Factor = Annotated[float, Field(strict=True, ge=1e-6, le=1e6, allow_inf_nan=False)]
Deviation = Annotated[float, Field(strict=True, ge=0, le=1e6, allow_inf_nan=False)]
Cores = Annotated[float, Field(strict=True, ge=1e-3, le=1e6, allow_inf_nan=False)]
Watts = Annotated[float, Field(strict=True, ge=0, le=1e5, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=1, le=2**31 - 1)]

Item = TypeVar("Item")
Place = tuple[int | str, ...]
"""Keys and indices from the top to a value."""


def _not_empty(values: tuple[Item, ...]) -> tuple[Item, ...]:
    # Not pydantic's min_length: it also counts as missing the items that it has refused itself.
    if not values:
        raise ValueError("at least one is needed")
    return values


class _NotFinite(ValueError):
    """Numbers of a free mapping that a file could not hold; `found`: each with its place below the mapping's key."""

    def __init__(self, found: Iterable[tuple[Place, float]]) -> None:
        self.found = tuple(found)
        super().__init__("numbers must be finite")


def _json(value: JsonValue) -> JsonValue:
    if found := list(_not_finite(value, ())):
        raise _NotFinite(found)
    json.dumps(value)  # raises ValueError on whatever else a file could not hold
    return value


def _not_finite(value: JsonValue, here: Place) -> Iterator[tuple[Place, float]]:
    if isinstance(value, float) and not math.isfinite(value):
        yield here, value
    for key, inner in _inner(value):
        yield from _not_finite(inner, (*here, key))


def _inner(value: Any) -> Iterable[tuple[int | str, Any]]:
    """What a mapping or a list holds, with its keys; nothing of anything else."""
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


Free = dict[str, Annotated[JsonValue, AfterValidator(_json)]]
Role = Literal["target", "drafter"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)


def _shared(name: str) -> str:
    if not re.fullmatch(r"host|cpu|cuda(:[0-9]{1,4})?", name):
        raise ValueError("should be host, cpu or a GPU's name such as cuda:0")
    return "cuda:0" if name == "cuda" else name  # as a pipeline file's devices are told


def _once(pairs: tuple[PairProfile, ...]) -> tuple[PairProfile, ...]:
    # Which of two measurements of one pair counts is not for a reader to guess.
    counted = Counter((*sorted((pair.a, pair.b)), pair.shared) for pair in pairs)
    for (a, b, shared), times in counted.items():
        if times > 1:
            raise ValueError(f"{a} and {b} that share {shared} are given {times} times: keep one of them")
    return pairs


def _trios_once(trios: tuple[TrioProfile, ...]) -> tuple[TrioProfile, ...]:
    # As for pairs: three workers of these roles are one measurement, in whatever order they are named.
    counted = Counter((*sorted(trio.workers), trio.shared) for trio in trios)
    for (a, b, c, shared), times in counted.items():
        if times > 1:
            raise ValueError(f"{a}, {b} and {c} that share {shared} are given {times} times: keep one of them")
    return trios


class TimingsError(ValueError):
    """The timings cannot be used. `faults`: one line each, with key, value, rule and remedy."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ShapeSamples(_Strict):
    """Raw times of one shape of batch."""

    batch_size: Count
    """Samples in the batch."""
    length: Count
    """Padded length of each, in tokens; the batch has batch_size × length slots."""
    anchors: Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)] | None = None
    """Anchors a sample (drafters); None where unknown."""
    seconds: Annotated[tuple[Seconds, ...], AfterValidator(_not_empty)]
    parts: dict[str, tuple[SecondsOrNone, ...]] = {}
    """What the seconds are made of (forward, backward, …), for people; not used in predictions."""


class RoleProfile(_Strict):
    """The times of targets, or of drafters."""

    samples: Annotated[tuple[ShapeSamples, ...], AfterValidator(_not_empty)]
    first_seconds: tuple[Seconds, ...] = ()
    """Whole seconds of workers' first batches (compilation included)."""
    cold_first_seconds: tuple[Seconds, ...] = ()
    """The same before anything was compiled on the machine, for people; not used in predictions."""
    worker_factors: tuple[Factor, ...] = ()
    """Where workers of the role differ: worker i takes `worker_factors[i]` × the samples' time."""


class SecondsProfile(_Strict):
    """Seconds of the loader for one batch, or of one optimizer step."""

    seconds: Annotated[tuple[SecondsOrNone, ...], AfterValidator(_not_empty)]
    parts: dict[str, tuple[SecondsOrNone, ...]] = {}
    """What the seconds are made of (all-reduce, optimizer), for people; not used in predictions."""


class TransferProfile(_Strict):
    """Seconds of copying one batch, or the copy's bandwidth (used first, where batch sizes are known)."""

    seconds: tuple[SecondsOrNone, ...] = ()
    bytes_per_second: tuple[BytesPerSecond, ...] = ()


class PairProfile(_Strict):
    """How much longer two workers take while both are busy; `_error` is a factor's standard error."""

    a: Role
    b: Role
    shared: Annotated[str, AfterValidator(_shared)]
    """A device's name (`cuda:0`, `cpu`), or `host`."""
    factor_a: Factor
    factor_b: Factor
    factor_a_error: Deviation = 0.0
    factor_b_error: Deviation = 0.0
    copy_a: Factor | None = None
    """A copy of a batch to worker `a`; None: not measured, as for steps."""
    copy_b: Factor | None = None
    copy_a_error: Deviation = 0.0
    copy_b_error: Deviation = 0.0
    step_a: Factor | None = None
    step_b: Factor | None = None
    step_a_error: Deviation = 0.0
    step_b_error: Deviation = 0.0
    watts_a: Watts | None = None
    """What the shared GPU draws while worker `a` is busy alone; None: not measured, as are then the two others."""
    watts_b: Watts | None = None
    watts_both: Watts | None = None

    @model_validator(mode="after")
    def _all_watts(self) -> Self:
        given = [self.watts_a, self.watts_b, self.watts_both]
        if any(each is None for each in given) and given != [None] * 3:
            raise ValueError("watts_a, watts_b and watts_both go together: give all of them or none")
        return self


def _gpu(name: str) -> str:
    if not _shared(name).startswith("cuda"):
        raise ValueError("should be a GPU's name such as cuda:0")
    return name


class TrioProfile(_Strict):
    """How much longer three workers take while all are busy, each by its place in `workers`."""

    workers: tuple[Role, Role, Role]
    shared: Annotated[str, AfterValidator(_gpu)]
    factors: tuple[Factor, Factor, Factor]
    errors: tuple[Deviation, Deviation, Deviation] = (0.0, 0.0, 0.0)
    """Standard errors."""


class PowerProfile(_Strict):
    """What a GPU may draw."""

    limit_watts: Watts
    idle_watts: Watts
    """With all that is loaded, and nothing running."""

    @model_validator(mode="after")
    def _room(self) -> Self:
        if not self.idle_watts < self.limit_watts:
            raise ValueError(f"idle_watts {self.idle_watts:g} should be below limit_watts {self.limit_watts:g}")
        return self


class InterferenceProfile(_Strict):
    """How workers that share a device slow each other down."""

    cores: Cores | None = None
    """Cores of the host; None: as many as are needed."""
    pairs: Annotated[tuple[PairProfile, ...], AfterValidator(_once)] = ()
    trios: Annotated[tuple[TrioProfile, ...], AfterValidator(_trios_once)] = ()
    """They tell how pairs add up."""
    power: PowerProfile | None = None
    """Of a GPU; None: not measured."""
    in_samples: Annotated[bool, Field(strict=True)] = False
    """The samples hold it already: they are those of a run, and predict runs of its topology."""

    @property
    def measured(self) -> bool:
        """Whether it says how workers slow each other down."""
        return bool(self.pairs or self.trios) or self.power is not None

    @model_validator(mode="after")
    def _counted_once(self) -> Self:
        if self.in_samples and self.measured:
            raise ValueError("in_samples goes without pairs, trios and power, which would count it twice")
        return self


class Profile(_Strict):
    """The contents of `timings.json`."""

    version: Annotated[int, Field(strict=True, ge=1, le=1)] = 1
    machine: Free = {}
    versions: Free = {}
    settings: Free = {}
    target: RoleProfile | None = None
    drafter: RoleProfile | None = None
    step: SecondsProfile | None = None
    loader: SecondsProfile | None = None
    transfer: TransferProfile | None = None
    hidden_bytes_per_token: BytesPerToken | None = None
    interference: InterferenceProfile = InterferenceProfile()
    memory: Free = {}


def read_timings(path: str | Path) -> Profile:
    """Read a `timings.json`. Raises TimingsError, each fault beginning with the path."""
    if Path(path).is_dir():
        raise TimingsError([f"{path}: it is a folder; give the path of a timings.json"])
    try:
        return parse_timings(Path(path).read_bytes())
    except OSError as error:
        raise TimingsError([f"{path}: {error.strerror or error}; give the path of a timings.json"]) from None
    except TimingsError as error:
        raise TimingsError(f"{path}: {fault}" for fault in error.faults) from None


def parse_timings(text: str | bytes) -> Profile:
    """Check the text of a `timings.json`. Raises TimingsError."""
    content = _parse_json(text)
    if isinstance(content, dict):
        # A missing version must not pass as the newest one: the default is for profiles made in memory.
        content.setdefault("version", None)
    try:
        faults = _first_faults(list(_repeats(content, ())))
    except RecursionError:
        raise TimingsError([_TOO_DEEP]) from None
    try:
        profile = build_profile(content)
    except TimingsError as error:
        raise TimingsError([*faults, *error.faults]) from None
    if faults:
        raise TimingsError(faults)
    return profile


def build_profile(content: Any) -> Profile:
    """Check the contents of a `timings.json` held in memory. Raises TimingsError."""
    try:
        return Profile.model_validate(content)
    except ValidationError as error:
        raise TimingsError(_faults(error)) from None
    except RecursionError:
        raise TimingsError([_TOO_DEEP]) from None


def write_timings(profile: Profile, path: str | Path) -> None:
    """Write a `timings.json`: one line per top-level key, numbers such that they read back the same."""
    content = profile.model_dump(mode="json", exclude_defaults=True) | {"version": profile.version}
    first, rest = content.pop("version"), content
    lines = [f" {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in rest.items()]
    write_text(Path(path), "{\n" + ",\n".join([f' "version": {first}', *lines]) + "\n}\n")


REMEDY = "correct it, or measure again with `dflash-run profile`"
_KEYS = sorted(
    {key for model in (ShapeSamples, RoleProfile, TransferProfile, PairProfile, TrioProfile, InterferenceProfile,
                       Profile)
     for key in model.model_fields}
)
_TOO_DEEP: Final = f"(file): nested too deeply; {REMEDY}"
_RULES: Final = {
    "model_type": "should be a mapping",
    "dict_type": "should be a mapping",
    "tuple_type": "should be a list",
}
"""What pydantic says in words of Python, in those of the file."""
_DEEPEST: Final = 8
"""Parts of a key that are told; the format itself needs five."""
_show = Repr()
_show.maxstring = _show.maxlong = _show.maxother = 40


class _Repeating(dict[str, Any]):
    """A mapping of which some keys were given more than once; the last of each counts while other faults are sought."""

    repeated: list[str]


def _parse_json(text: str | bytes) -> Any:
    """JSON, with repeated keys remembered. Numbers that are not finite pass: the checks tell them with their keys."""
    try:
        return json.loads(text, object_pairs_hook=_mapping)
    except RecursionError:
        raise TimingsError([_TOO_DEEP]) from None
    except ValueError as error:  # malformed JSON, not UTF-8, an integer of thousands of digits
        raise TimingsError([f"(file): not JSON: {error}; " + REMEDY]) from None


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    counted = Counter(key for key, _ in pairs)
    repeating = _Repeating(made)
    repeating.repeated = sorted(key for key, times in counted.items() if times > 1)
    return repeating


def _repeats(value: Any, here: Place) -> Iterator[str]:
    """A fault for each key that was given more than once."""
    if isinstance(value, _Repeating):
        yield from (f"{_key((*here, key))}: given twice: keep one of them" for key in value.repeated)
    for key, inner in _inner(value):
        yield from _repeats(inner, (*here, key))


def _faults(error: ValidationError) -> list[str]:
    lines: list[str] = []
    for each in error.errors(include_url=False):
        reason = each.get("ctx", {}).get("error")
        if isinstance(reason, _NotFinite):
            lines += [_not_finite_fault((*each["loc"], *below), value) for below, value in reason.found]
        else:
            lines.append(_fault(each["loc"], each["type"], each["input"], each["msg"]))
    return _first_faults(lines)


def _first_faults(lines: list[str]) -> list[str]:
    """As many as a person reads."""
    if len(lines) <= MAX_FAULTS:
        return lines
    return [*lines[:MAX_FAULTS], f"(file): {len(lines) - MAX_FAULTS} more faults like these; " + REMEDY]


def _not_finite_fault(loc: Place, value: Any) -> str:
    return f"{_key(loc)}: {shown(value)}: numbers must be finite; {REMEDY}"


def _fault(loc: Place, kind: str, value: Any, message: str) -> str:
    key = _key(loc)
    if kind == "missing":
        return f"{key}: missing: it is required; {REMEDY}"
    if kind == "extra_forbidden":
        near = get_close_matches(str(loc[-1]), _KEYS, n=1)
        remedy = f"did you mean {near[0]}?" if near else "remove it"
        return f"{key}: {shown(value)}: unknown key; {remedy}"
    if key == "version":
        return f"version: {shown(value)}: this program reads version 1; {REMEDY}"
    if kind == "finite_number":
        return _not_finite_fault(loc, value)
    rule = _RULES.get(kind, message).removeprefix("Value error, ").removeprefix("Input ")
    rule = rule.replace("Tuple should", "the list should").replace(" after validation, not", ", not")
    return f"{key}: {shown(value)}: {rule[:1].lower()}{rule[1:]}; {REMEDY}"


def shown(value: object) -> str:
    """A value in a fault as a file has it, at a length that fits a line."""
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)  # NaN, Infinity
    return _show.repr(value)


def _key(loc: Place) -> str:
    """The place of a fault; of a deep one its beginning and its end."""
    parts = [_show_part(part) for part in loc]
    if len(parts) > _DEEPEST:
        parts = [*parts[: _DEEPEST - 3], "…", *parts[-2:]]
    return ".".join(parts) or "(file)"


def _show_part(part: int | str) -> str:
    plain = isinstance(part, int) or (part.isidentifier() and len(part) <= 40)
    return str(part) if plain else _show.repr(part)
