"""What is wrong with a pipeline file: one fault a line, each naming key, value, rule and remedy."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

_VALUE_CHARS: Final = 60
_ITEMS: Final = 4


class Absent:
    """The value of a key that is not in the file."""

    def __repr__(self) -> str:
        return "nothing"


ABSENT: Final = Absent()


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, rendered by `str` as exactly one line."""

    key: str
    """Dotted key, e.g. `timings.drafter.seconds`; the file's name where no key is to blame."""
    value: object
    """What stands there; ABSENT where nothing does."""
    rule: str
    """What is allowed, as a phrase: `must be an integer >= 1`."""
    remedy: str = ""
    """What to do about it; empty where the rule says it all."""

    def __str__(self) -> str:
        got = "" if isinstance(self.value, Absent) else f"got {shown(self.value)}"
        return one_line(f"{self.key}: " + "; ".join(part for part in (got, self.rule, self.remedy) if part))


class PipelineError(ValueError):
    """The pipeline cannot be used; `faults` says why, all of them in one pass."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = list(faults)
        super().__init__(self.faults)

    def __str__(self) -> str:
        return "\n".join(map(str, self.faults))


def one_line(text: str) -> str:
    """`text` with everything that could break or disturb a terminal line escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def dotted(path: Sequence[str | int]) -> str:
    """The dotted key of a path; parts that would be misread are quoted."""
    return ".".join(_part(part) for part in path)


def _part(part: str | int) -> str:
    text = str(part)
    plain = text.replace("-", "").replace("_", "").isalnum()
    return text if plain and len(text) <= _VALUE_CHARS else shown(text)


def shown(value: object) -> str:
    """`value` as a person would write it in the file, abbreviated; never raises, never long."""
    text = _shown(value, level=0)
    return text if len(text) <= 2 * _VALUE_CHARS else text[: 2 * _VALUE_CHARS] + "…"


def _shown(value: object, level: int) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return repr(value) if len(value) <= _VALUE_CHARS else repr(value[:_VALUE_CHARS]) + "…"
        case int():  # Python refuses to print integers of thousands of digits
            return str(value) if abs(value) < 10**40 else f"an integer of {value.bit_length()} bits"
        case list() | tuple():
            return "[…]" if value and level > 1 else f"[{_items(value, level)}]"
        case dict():
            return "{…}" if value and level > 1 else f"{{{_pairs(value, level)}}}"
        case float() | Absent():
            return repr(value)
    return f"a {type(value).__name__}"


def _items(value: Sequence[object], level: int) -> str:
    return _some([_shown(item, level + 1) for item in value[:_ITEMS]], len(value))


def _pairs(value: dict[object, object], level: int) -> str:
    head = list(value.items())[:_ITEMS]
    keys = [_part(key) if isinstance(key, str) else _shown(key, 2) for key, _ in head]
    texts = [f"{key}: {_shown(item, level + 1)}" for key, (_, item) in zip(keys, head, strict=True)]
    return _some(texts, len(value))


def _some(texts: list[str], total: int) -> str:
    return ", ".join(texts) + (f", … {total} in all" if total > len(texts) else "")
