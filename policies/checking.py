"""From a mapping of plain values to a Pipeline, or to all of its faults in one pass."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from policies.faults import ABSENT, Fault, PipelineError, dotted
from policies.paths import Key, Order, inside, names, value_at
from policies.pipeline import Pipeline
from policies.rules import Checking
from policies.suggest import keys_at, nearest

MAX_FAULTS: Final = 50
"""Most faults told one by one."""

# Pydantic names the member of a union in an error's path; these are not keys of the file.
_TAGS: Final = frozenset({"<list>", "<number>", "<path>", "<drawn>", "<name>", "<erlang>"})


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
                raise _all(found + broken, mapping) from None
            told = [*islice(_wrong(error, mapping), MAX_FAULTS)]
            found += [wrong.fault for wrong in told if not _known(wrong.fault.key, unsure)]
            unsure |= _left_out(told, remaining)
            if error.error_count() > MAX_FAULTS:
                raise _all(found, mapping, untold=error.error_count() - MAX_FAULTS) from None
            continue
        if found:
            raise _all(found, mapping)
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


def _all(faults: Iterable[Fault], mapping: dict[str, object], untold: int = 0) -> PipelineError:
    """The error with `faults`, each once, in document order, no more than a person would read."""
    order = Order(mapping)
    once = {str(fault): (order(fault.key.split(".")), fault) for fault in faults}
    told = [once[text][1] for text in sorted(once, key=lambda text: (once[text][0], text))]
    untold += len(told[MAX_FAULTS:])
    more = [Fault(f"and {untold} more", ABSENT, "repair these first")]
    return PipelineError(told[:MAX_FAULTS] + (more if untold else []))


def _broken_rules(error: ValidationError) -> list[Fault] | None:
    """The faults between keys: these come alone, since they are judged last."""
    first = error.errors(include_url=False)[0] if error.error_count() == 1 else None
    cause = first.get("ctx", {}).get("error") if first else None
    return cause.faults if isinstance(cause, PipelineError) else None


def _known(key: str, unsure: set[str]) -> bool:
    return any(key == known or key.startswith(f"{known}.") for known in unsure)


def _left_out(told: Iterable[_Wrong], remaining: dict[str, Any]) -> set[str]:
    """Remove wrong values from `remaining`; returns the keys that rules can no longer rely on."""
    gone: set[str] = set()
    unsure: set[str] = set()
    for wrong in told:
        unsure |= {wrong.fault.key, *wrong.meant}
        if not _known(dotted(wrong.key), gone):
            gone.add(dotted(_leave_out(remaining, wrong.key)))
    return unsure | gone


def _leave_out(remaining: dict[str, Any], key: Key) -> Key:
    """Remove what stands at `key`, or at the nearest mapping's key above it; returns what was removed."""
    holder, last = remaining, 0
    at: Any = remaining
    for depth, part in enumerate(key):
        if isinstance(at, dict) and part in at:
            holder, last = at, depth
        elif not (isinstance(at, list) and isinstance(part, int) and part < len(at)):
            break
        at = at[part]
    holder.pop(str(key[last]), None)
    return key[: last + 1]


def _wrong(error: ValidationError, mapping: dict[str, object]) -> Iterator[_Wrong]:
    """What is wrong, in document order."""
    order = Order(mapping)
    details = error.errors(include_url=False, include_input=False)
    keyed = [(_key(detail["loc"], mapping), detail) for detail in details]
    for key, detail in sorted(keyed, key=lambda pair: order(pair[0])):
        yield _judged(key, detail, mapping)


def _key(location: Key, mapping: dict[str, object]) -> Key:
    """The path in the file of pydantic's path."""
    at: object = mapping
    key: list[str | int] = []
    for part in location:
        if part in _TAGS and not (isinstance(at, dict) and part in at):
            continue
        key.append(part)
        at = inside(at, part)
    return tuple(key)


def _judged(key: Key, detail: ErrorDetails, mapping: dict[str, object]) -> _Wrong:
    context = detail.get("ctx", {})
    if detail["type"] == "extra_forbidden":
        return _unknown(key, value_at(key, mapping))
    if context.get("at") is not None:
        key = (*key, context["at"])
    value = value_at(key, mapping)
    return _Wrong(key, Fault(dotted(key), value, *_rule(key, detail, context, value)))


def _rule(key: Key, detail: ErrorDetails, context: dict[str, Any], value: object) -> tuple[str, str]:
    default = "leave the key out for its default" if value is None else ""
    match detail["type"]:
        case "refused":
            return context["rule"], context["remedy"] or default
        case "missing":
            return "must be given", ""
        case "model_type" | "dict_type" | "model_attributes_type":
            return f"must be a mapping of {', '.join(keys_at(names(key)))}", default
    return f"is not usable: {detail['msg']}", default


def _unknown(key: Key, value: object) -> _Wrong:
    above, last = key[:-1], str(key[-1])
    near = nearest(names(above), last)
    meant = " or ".join(_placed(known, above) for known in near)
    remedy = f"did you mean {meant}?" if near else f"known here: {', '.join(keys_at(names(above)))}"
    return _Wrong(key, Fault(dotted(key), value, "is not a known key", remedy), tuple(near))


def _placed(known: str, above: Key) -> str:
    """A known key, with the list indices of the place that it is suggested for."""
    parent, _, name = known.rpartition(".")
    return dotted([*above, name]) if parent == ".".join(names(above)) else known
