"""`--set dotted.key=value`: changes to the mapping that a file holds, before it is checked; `null` takes a key out."""

from collections.abc import Iterable
from typing import Final

from policies.faults import ABSENT, Fault, PipelineError
from policies.suggest import keys_at
from policies.yamltext import parse

# Setting one of these removes the others of its mapping that the file gives: the user has changed their mind.
_ALTERNATIVES: Final = (
    {"depth", "capacity"},
    {"batches", "tokens", "lengths"},
    {"seconds", "tokens_per_second", "bytes_per_second"},
    {"samples", "max_tokens"},
    {"cv", "distribution"},
)
_FORM: Final = "must have the form dotted.key=value"


def apply(mapping: dict[str, object], overrides: Iterable[str]) -> list[Fault]:
    """Change `mapping` in place; returns the faults of overrides that could not be read or placed."""
    faults: list[Fault] = []
    placed: set[str] = set()
    for text in overrides:
        try:
            _apply(mapping, text, placed)
        except PipelineError as error:
            faults.extend(error.faults)
    return faults


def _apply(mapping: dict[str, object], text: str, placed: set[str]) -> None:
    key, equals, value = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise PipelineError([Fault("--set", text, _FORM, "e.g. dispatch.depth=4")])
    found = _value(text, value)
    if found is None and value.strip() and parts[-1] in keys_at(tuple(parts[:-1])):
        _remove(mapping, parts)
    else:
        place(mapping, parts, found, placed)


def _remove(mapping: dict[str, object], parts: list[str]) -> None:
    """Take a key out, so that its default holds, as where a file leaves it out."""
    at: object = mapping
    for part in parts[:-1]:
        at = at.get(part) if isinstance(at, dict) else None
    if isinstance(at, dict):
        at.pop(parts[-1], None)


def _value(override: str, text: str) -> object:
    """The value of an override, read as the file is; nothing means null, as in the file."""
    if not text.strip():
        return None
    try:
        document = parse(text, source=override)
    except PipelineError as error:
        raise PipelineError([Fault("--set", override, error.faults[0].rule)]) from None
    if document.faults:
        raise PipelineError([Fault("--set", override, fault.rule) for fault in document.faults])
    return document.value


def place(mapping: dict[str, object], parts: list[str], value: object, placed: set[str]) -> None:
    """Put `value` at the path `parts`; `placed` remembers the keys so set.

    Raises PipelineError where there is no such place.
    """
    at: object = mapping
    for done, (part, following) in enumerate(zip(parts, parts[1:], strict=False)):
        new: object = [] if following.isdecimal() else {}
        at = _step(at, part, new, ".".join(parts[: done + 1]))
    last = parts[-1]
    if isinstance(at, dict):
        _drop_alternatives(at, parts, placed)
        at[last] = value
    else:
        _step(at, last, value, ".".join(parts), replace=True)
    placed.add(".".join(parts))


def _step(at: object, part: str, new: object, key: str, *, replace: bool = False) -> object:
    """The value of `part`, created as `new` where it is missing (a list grows by one at its end)."""
    if isinstance(at, dict):
        return at.setdefault(part, new)
    if not isinstance(at, list):
        above = key.rpartition(".")[0]
        rule = f"{above} must be a mapping or a list for {key} to be set"
        raise PipelineError([Fault(f"--set {key}", at, rule)])
    if not part.isdecimal() or len(part) > 9 or int(part) > len(at):
        rule = f"must use an index from 0 to {len(at)} here"
        raise PipelineError([Fault(f"--set {key}", ABSENT, rule)])
    index = int(part)
    if index == len(at):
        at.append(new)
    elif replace:
        at[index] = new
    return at[index]


def _drop_alternatives(at: dict[str, object], parts: list[str], placed: set[str]) -> None:
    *above, last = parts
    for group in _ALTERNATIVES:
        if last in group:
            for other in group - {last}:
                if ".".join([*above, other]) not in placed:
                    at.pop(other, None)
