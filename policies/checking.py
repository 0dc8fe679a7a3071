"""From a mapping of plain values to a Pipeline, or to all of its faults in one pass."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from policies.faults import ABSENT, Fault, PipelineError, dotted
from policies.pipeline import Pipeline
from policies.rules import Checking
from policies.suggest import keys_at, nearest

MAX_FAULTS: Final = 50
"""Most wrong values told one by one."""

# Pydantic names the member of a union in an error's path; these are not keys of the file.
_TAGS: Final = frozenset({"<list>", "<number>", "<path>", "<drawn>", "<name>", "<erlang>"})

Key = tuple[str | int, ...]


@dataclass(frozen=True)
class _Wrong:
    """A value that its own field refuses."""

    key: Key
    fault: Fault
    meant: tuple[str, ...] = ()
    """Dotted keys that an unknown key was probably meant to be."""


def checked(mapping: dict[str, object], faults: Sequence[Fault], *, for_simulation: bool) -> Pipeline:
    """The pipeline of `mapping`. Raises PipelineError with `faults` and those found here, in document order.

    Rules between keys can only judge values that are right by themselves. So a wrong value is told and left
    out, and what remains is judged again; the rules that would read it stay silent.
    """
    found = list(faults)
    unsure = {fault.key for fault in faults}
    remaining = _with_nulls(mapping)
    while True:
        checking = Checking(unsure=frozenset(unsure), for_simulation=for_simulation)
        try:
            pipeline = Pipeline.model_validate(remaining, context=checking)
        except ValidationError as error:
            if (broken := _broken_rules(error)) is not None:
                raise PipelineError(_ordered(found + broken, mapping)) from None
            if error.error_count() > MAX_FAULTS:
                raise PipelineError(_first_few(error, mapping, found)) from None
            for wrong in _wrong(error, mapping):
                if not _known(wrong.fault.key, unsure):
                    found.append(wrong.fault)
                unsure |= {wrong.fault.key, *wrong.meant, dotted(_leave_out(remaining, wrong.key))}
            continue
        if found:
            raise PipelineError(_ordered(found, mapping))
        return pipeline


class _Null:
    """A null of the file. Pydantic takes None where it is the default; no field takes this."""


def _with_nulls(value: Any) -> Any:
    """A deep copy in which nulls are marked."""
    match value:
        case dict():
            return {key: _with_nulls(item) for key, item in value.items()}
        case list():
            return [_with_nulls(item) for item in value]
    return _Null() if value is None else value


def _broken_rules(error: ValidationError) -> list[Fault] | None:
    """The faults between keys: these come alone, since they are judged last."""
    first = error.errors(include_url=False)[0] if error.error_count() == 1 else None
    cause = first.get("ctx", {}).get("error") if first else None
    return cause.faults if isinstance(cause, PipelineError) else None


def _first_few(error: ValidationError, mapping: dict[str, object], found: list[Fault]) -> list[Fault]:
    few = [wrong.fault for wrong in _wrong(error, mapping, MAX_FAULTS)]
    rest = error.error_count() - len(few)
    more = Fault("and more", rest, "values are wrong besides those above", "repair these first")
    return [*_ordered(found + few, mapping), more]


def _known(key: str, unsure: set[str]) -> bool:
    return any(key == known or key.startswith(f"{known}.") for known in unsure)


def _leave_out(remaining: dict[str, Any], key: Key) -> Key:
    """Remove what stands at `key`, or the nearest mapping's key above it; returns what was removed."""
    at: Any = remaining
    holders: list[tuple[dict[str, Any], int]] = []
    for depth, part in enumerate(key):
        inside = isinstance(at, dict) and part in at
        if inside:
            holders.append((at, depth))
        elif not (isinstance(at, list) and isinstance(part, int) and part < len(at)):
            break
        at = at[part]
    else:
        depth = len(key)
    holder, last = holders[-1]
    del holder[str(key[last])]
    return key[: last + 1]


def _wrong(error: ValidationError, mapping: dict[str, object], most: int | None = None) -> Iterator[_Wrong]:
    details = [(_key(detail["loc"], mapping), detail) for detail in error.errors(include_url=False)]
    details.sort(key=lambda pair: _position([str(part) for part in pair[0]], mapping))
    for key, detail in details[:most]:
        yield _judged(key, detail, mapping)


def _key(location: Key, mapping: dict[str, object]) -> Key:
    """The path in the file of pydantic's path."""
    at: object = mapping
    key: list[str | int] = []
    for part in location:
        if part in _TAGS and not (isinstance(at, dict) and part in at):
            continue
        key.append(part)
        at = _inside(at, part)
    return tuple(key)


def _inside(at: object, part: str | int) -> object:
    if isinstance(at, dict):
        return at.get(part, ABSENT)
    if isinstance(at, list) and isinstance(part, int) and part < len(at):
        return at[part]
    return ABSENT


def _value(key: Key, mapping: dict[str, object]) -> object:
    value: object = mapping
    for part in key:
        value = _inside(value, part)
    return value


def _judged(key: Key, detail: ErrorDetails, mapping: dict[str, object]) -> _Wrong:
    context = detail.get("ctx", {})
    if detail["type"] == "extra_forbidden":
        return _unknown(key, _value(key, mapping))
    if context.get("at") is not None:
        key = (*key, context["at"])
    value = _value(key, mapping)
    return _Wrong(key, Fault(dotted(key), value, *_rule(key, detail, context, value)))


def _rule(key: Key, detail: ErrorDetails, context: dict[str, Any], value: object) -> tuple[str, str]:
    default = "leave the key out for its default" if value is None else ""
    match detail["type"]:
        case "refused":
            return context["rule"], context["remedy"] or default
        case "missing":
            return "must be given", ""
        case "model_type" | "dict_type" | "model_attributes_type":
            return f"must be a mapping of {', '.join(keys_at(_names(key)))}", default
    return f"is not usable: {detail['msg']}", default


def _unknown(key: Key, value: object) -> _Wrong:
    *above, last = key
    own = _names(tuple(above))
    near = nearest(own, str(last))
    meant = " or ".join(_placed(known, own, above) for known in near)
    remedy = f"did you mean {meant}?" if near else f"known here: {', '.join(keys_at(own))}"
    return _Wrong(key, Fault(dotted(key), value, "is not a known key", remedy), tuple(near))


def _placed(known: str, own: tuple[str, ...], above: Sequence[str | int]) -> str:
    """A known key, with the list indices of the place that it is suggested for."""
    parent, _, name = known.rpartition(".")
    return dotted([*above, name]) if parent == ".".join(own) else known


def _names(key: Key) -> tuple[str, ...]:
    return tuple(part for part in key if isinstance(part, str))


def _ordered(faults: list[Fault], mapping: dict[str, object]) -> list[Fault]:
    once = {str(fault): fault for fault in faults}
    return [
        once[text] for text in sorted(once, key=lambda t: (_position(once[t].key.split("."), mapping), t))
    ]


def _position(parts: Sequence[str], mapping: dict[str, object]) -> tuple[int, ...]:
    """Where a key stands in the document; one that is not there comes after those of its level that are."""
    at: object = mapping
    places: list[int] = []
    for part in parts:
        if isinstance(at, dict) and part in at:
            places.append(list(at).index(part))
            at = at[part]
        elif isinstance(at, list) and part.isdecimal() and int(part) < len(at):
            places.append(int(part))
            at = at[int(part)]
        else:
            return (*places, len(at) if isinstance(at, dict | list) else 0)
    return tuple(places)
