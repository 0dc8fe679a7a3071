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
     "interference": {…}, "memory": {…}}                      free mappings

Only `version` is required. Times are raw samples in seconds, not means. `docs/timings.md` says it at length.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from reprlib import Repr
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError

MAX_FAULTS = 50

Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=1, le=2**31 - 1)]

Item = TypeVar("Item")


def _not_empty(values: tuple[Item, ...]) -> tuple[Item, ...]:
    # Not pydantic's min_length: it also counts as missing the items that it has refused itself.
    if not values:
        raise ValueError("at least one is needed")
    return values


def _json(value: dict[str, Any]) -> dict[str, Any]:
    json.dumps(value, allow_nan=False)  # raises ValueError on what a file could not hold
    return value


Free = Annotated[dict[str, JsonValue], AfterValidator(_json)]


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
    seconds: Annotated[tuple[Positive, ...], AfterValidator(_not_empty)]
    parts: dict[str, tuple[NotNegative, ...]] = {}
    """What the seconds are made of (forward, backward, …), for people; not used in predictions."""


class RoleProfile(_Strict):
    """The times of targets, or of drafters."""

    samples: Annotated[tuple[ShapeSamples, ...], AfterValidator(_not_empty)]
    first_seconds: tuple[Positive, ...] = ()
    """Whole seconds of workers' first batches (compilation included)."""
    cold_first_seconds: tuple[Positive, ...] = ()
    """The same before anything was compiled on the machine, for people; not used in predictions."""
    worker_factors: tuple[Positive, ...] = ()
    """Where workers of the role differ: worker i takes `worker_factors[i]` × the samples' time."""


class SecondsProfile(_Strict):
    """Seconds of the loader for one batch, or of one optimizer step."""

    seconds: Annotated[tuple[NotNegative, ...], AfterValidator(_not_empty)]
    parts: dict[str, tuple[NotNegative, ...]] = {}
    """What the seconds are made of (all-reduce, optimizer), for people; not used in predictions."""


class TransferProfile(_Strict):
    """Seconds of copying one batch, or the copy's bandwidth (used first, where batch sizes are known)."""

    seconds: tuple[NotNegative, ...] = ()
    bytes_per_second: tuple[Positive, ...] = ()


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
    hidden_bytes_per_token: Positive | None = None
    interference: Free = {}
    memory: Free = {}


def read_timings(path: str | Path) -> Profile:
    """Read a `timings.json`. Raises TimingsError, each fault beginning with the path."""
    try:
        return parse_timings(Path(path).read_bytes())
    except OSError as error:
        raise TimingsError([f"{path}: {error.strerror or error}; give the path of a timings.json"]) from None
    except TimingsError as error:
        raise TimingsError(f"{path}: {fault}" for fault in error.faults) from None


def parse_timings(text: str | bytes) -> Profile:
    """Check the text of a `timings.json`. Raises TimingsError."""
    content, faults = _parse_json(text)
    if faults:
        raise TimingsError(faults)
    if isinstance(content, dict):
        # A missing version must not pass as the newest one: the default is for profiles made in memory.
        content.setdefault("version", None)
    return build_profile(content)


def build_profile(content: Any) -> Profile:
    """Check the contents of a `timings.json` held in memory. Raises TimingsError."""
    try:
        return Profile.model_validate(content)
    except ValidationError as error:
        raise TimingsError(_faults(error)) from None
    except RecursionError:
        raise TimingsError(["(file): nested too deeply; " + _REMEDY]) from None


def write_timings(profile: Profile, path: str | Path) -> None:
    """Write a `timings.json`: one line per top-level key, numbers such that they read back the same."""
    content = profile.model_dump(mode="json", exclude_defaults=True) | {"version": profile.version}
    first, rest = content.pop("version"), content
    lines = [f" {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in rest.items()]
    Path(path).write_text("{\n" + ",\n".join([f' "version": {first}', *lines]) + "\n}\n", encoding="utf-8")


_REMEDY = "correct it, or measure again with `dflash-run profile`"
_KEYS = sorted(
    {key for model in (ShapeSamples, RoleProfile, TransferProfile, Profile) for key in model.model_fields}
)
_show = Repr()
_show.maxstring = _show.maxlong = _show.maxother = 40


def _parse_json(text: str | bytes) -> tuple[Any, list[str]]:
    """JSON without what Python's reader lets pass: repeated keys, NaN, numbers that overflow."""
    faults: list[str] = []

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            counted = Counter(key for key, _ in pairs)
            repeated = sorted(key for key, times in counted.items() if times > 1)
            faults.extend(f"{_show.repr(key)}: given twice: keep one of them" for key in repeated)
        return made

    def finite(digits: str) -> float:
        number = float(digits)
        if not math.isfinite(number):
            faults.append(f"(file): {_show.repr(digits)}: numbers must be finite; {_REMEDY}")
        return number

    def refuse(name: str) -> NoReturn | None:
        faults.append(f"(file): {name}: numbers must be finite; {_REMEDY}")
        return None

    try:
        return json.loads(text, object_pairs_hook=mapping, parse_float=finite, parse_constant=refuse), faults
    except RecursionError:
        return None, ["(file): nested too deeply; " + _REMEDY]
    except ValueError as error:  # malformed JSON, not UTF-8, an integer of thousands of digits
        return None, [f"(file): not JSON: {error}; " + _REMEDY]


def _faults(error: ValidationError) -> list[str]:
    errors = error.errors(include_url=False, include_context=False)
    lines = [_fault(each["loc"], each["type"], each["input"], each["msg"]) for each in errors[:MAX_FAULTS]]
    if len(errors) > MAX_FAULTS:
        lines.append(f"(file): {len(errors) - MAX_FAULTS} more faults like these; " + _REMEDY)
    return lines


def _fault(loc: tuple[int | str, ...], kind: str, value: Any, message: str) -> str:
    key = ".".join(_show_part(part) for part in loc) or "(file)"
    if kind == "missing":
        return f"{key}: missing: it is required; {_REMEDY}"
    if kind == "extra_forbidden":
        near = get_close_matches(str(loc[-1]), _KEYS, n=1)
        remedy = f"did you mean {near[0]}?" if near else "remove it"
        return f"{key}: {_show.repr(value)}: unknown key; {remedy}"
    if key == "version":
        return f"version: {_show.repr(value)}: this program reads version 1; {_REMEDY}"
    if kind in ("model_type", "dict_type"):
        message = "should be a mapping"
    rule = message.removeprefix("Value error, ").removeprefix("Input ")
    return f"{key}: {_show.repr(value)}: {rule[:1].lower()}{rule[1:]}; {_REMEDY}"


def _show_part(part: int | str) -> str:
    plain = isinstance(part, int) or (part.isidentifier() and len(part) <= 40)
    return str(part) if plain else _show.repr(part)
