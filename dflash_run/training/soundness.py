"""What is wrong with the content of a checkpoint's file, all of it in one pass. It may come from anywhere."""

from collections.abc import Callable, Iterator
from math import isfinite
from typing import Any, Final

_MOST: Final = 2**53
Test = Callable[[Any], bool]


def _whole(value: Any, least: int = 0) -> bool:
    return type(value) is int and least <= value <= _MOST


def _text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _figure(value: Any) -> bool:
    return value is None or _whole(value) or (type(value) is float and isfinite(value))


def _mapping(of: Test) -> Test:
    return lambda value: isinstance(value, dict) and all(map(of, value.values()))


def _lineage(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, dict) and _text(each.get("path")) and _whole(each.get("step")) for each in value
    )


def _rising(value: Any) -> bool:
    """Pairs of first and last, each after the one before."""
    at = -1
    for pair in value if isinstance(value, list) else [None]:
        if not (isinstance(pair, list) and len(pair) == 2 and all(map(_whole, pair)) and at < pair[0] <= pair[1]):
            return False
        at = pair[1]
    return True


_NEEDED: Final[dict[str, tuple[Test, str]]] = {
    "step": (_whole, "an integer >= 0"),
    "trained": (_rising, "pairs [first, last] of batches, rising and apart"),
    "planned": (lambda value: _whole(value, 1), "an integer >= 1"),
    "plan_hash": (_text, "a text"),
    "corpus_hash": (_text, "a text"),
    "config": (lambda value: isinstance(value, dict), "a mapping"),
    "versions": (_mapping(lambda value: isinstance(value, str)), "a mapping to texts"),
}
_OPTIONAL: Final[dict[str, tuple[Test, str]]] = {
    "held_out": (_mapping(_figure), "a mapping to finite numbers or null"),
    "lineage": (_lineage, "a list of mappings with path and step"),
    "random": (_mapping(_whole), "a mapping to integers >= 0"),
    "shape": (lambda value: isinstance(value, dict), "a mapping"),
}


def unsound(content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, what it must be) for each that is not; `format` is looked at before."""
    known = _NEEDED | _OPTIONAL
    for key, (test, rule) in known.items():
        if (key in content and not test(content[key])) or (key not in content and key in _NEEDED):
            yield key, rule
    for key in sorted(content.keys() - known.keys() - {"format"}):
        yield key, "left out: no such key is known"
    trained, planned, step = (content.get(key) for key in ("trained", "planned", "step"))
    if not isinstance(trained, list) or not _rising(trained):
        return
    if type(step) is int and step > sum(last - first + 1 for first, last in trained):
        yield "trained", f"at least as many batches as steps: {step}"
    if trained and type(planned) is int and _whole(planned, 1) and trained[-1][1] >= planned:
        yield "trained", f"batches of the plan: 0 to {planned - 1}"
