"""Scalar types of the pipeline file: each takes exactly what it means and says what that is.

Nothing is converted behind the user's back: `"4"`, `true`, `1.5` and null are not integers, NaN and infinity
are not numbers.
"""

import difflib
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

LARGEST: Final = 2**63 - 1
_PLAINLY: Final = "write a plain number: no quotes, underscores or leading zeros"
_SIZE: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?(?:([kKMGTP])(i?))?B")
_POWER: Final = {None: 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


class Section(BaseModel):
    """A mapping of the file: frozen, keyword-only, no key unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Refused(Exception):
    """A value is not allowed; `at` is the index of the culprit where the value is a list."""

    def __init__(self, remedy: str = "", at: int | None = None) -> None:
        super().__init__(remedy)
        self.remedy, self.at = remedy, at


def _told(rule: str, accept: Callable[[object], object]) -> Callable[[object], object]:
    """`accept`, with its refusals told to pydantic together with the rule."""

    def check(value: object) -> object:
        try:
            return accept(value)
        except Refused as refusal:
            told = {"rule": f"must be {rule}", "remedy": refusal.remedy, "at": refusal.at}
            raise PydanticCustomError("refused", "{rule}", told) from None

    return check


def allowed(rule: str, accept: Callable[[object], object]) -> BeforeValidator:
    """The check of a field: `accept` returns the value to keep or raises Refused."""
    return BeforeValidator(_told(rule, accept))


def whole(low: int, high: int = LARGEST) -> Callable[[object], int]:
    """Accept integers from `low` to `high`."""

    def accept(value: object) -> int:
        if type(value) is not int or not low <= value <= high:
            raise Refused(_PLAINLY if isinstance(value, str) else "")
        return value

    return accept


def real(low: float, high: float = math.inf, *, above: bool = False) -> Callable[[object], float]:
    """Accept finite numbers from `low` (or above it) to `high`."""

    def accept(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Refused(_PLAINLY if isinstance(value, str) else "")
        if not -math.inf < value < math.inf:
            raise Refused("it must be finite")
        if not low <= value <= high or (above and value == low):
            raise Refused()
        try:
            return float(value)
        except OverflowError:
            raise Refused() from None

    return accept


def listed(accept: Callable[[object], object]) -> Callable[[object], tuple[object, ...]]:
    """Accept a list of what `accept` accepts."""

    def accept_all(value: object) -> tuple[object, ...]:
        items = as_tuple(value)
        return tuple(_item(accept, index, item) for index, item in enumerate(items))

    return accept_all


def one_or_listed(accept: Callable[[object], object]) -> Callable[[object], object]:
    """Accept one value or a list of them, one per worker."""
    several = listed(accept)
    return lambda value: several(value) if isinstance(value, list | tuple) else accept(value)


def _item(accept: Callable[[object], object], index: int, item: object) -> object:
    try:
        return accept(item)
    except Refused as refusal:
        raise Refused(refusal.remedy, at=index) from None


def as_tuple(value: object) -> tuple[object, ...]:
    """A list of the file as the tuple that a frozen model keeps."""
    if not isinstance(value, list | tuple):
        raise Refused()
    return tuple(value)


def many(rule: str) -> BeforeValidator:
    """The outer check of a field that holds a list of mappings; stops at the first that is none."""
    return allowed(rule, listed(_mapping))


def _mapping(value: object) -> object:
    if not isinstance(value, dict | BaseModel):
        raise Refused()
    return value


def one_of(*names: str) -> BeforeValidator:
    """One of a few words."""

    def accept(value: object) -> str:
        if isinstance(value, str) and value in names:
            return value
        near = difflib.get_close_matches(value[:64], names, 1) if isinstance(value, str) else []
        raise Refused(f"did you mean {near[0]}?" if near else "")

    return allowed(" or ".join(filter(None, (", ".join(names[:-1]), names[-1]))), accept)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or not value.isprintable() or len(value) > 4096:
        raise Refused()
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise Refused()
    return value


def _bytes(value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str) and (match := _SIZE.fullmatch(value)):
        amount, prefix, binary = match.groups()
        value = int(Decimal(amount) * (1024 if binary else 1000) ** _POWER[prefix])
    return whole(0)(value)


def increasing(low: int, *, empty: bool) -> Callable[[object], tuple[int, ...]]:
    """Accept a strictly increasing list of integers from `low`."""

    def accept(value: object) -> tuple[int, ...]:
        items: list[int] = []
        if not empty and not as_tuple(value):
            raise Refused("leave the key out for the default")
        for index, item in enumerate(as_tuple(value)):
            if type(item) is not int or not (items[-1] if items else low - 1) < item <= LARGEST:
                raise Refused("sort them and give each once", at=index)
            items.append(item)
        return tuple(items)

    return accept


_PER_WORKER: Final = "or a list of them, one per worker of the role"

Natural = Annotated[int, allowed("an integer >= 0", whole(0))]
Positive = Annotated[int, allowed("an integer >= 1", whole(1))]
Number = Annotated[float, allowed("a number >= 0", real(0))]
PositiveNumber = Annotated[float, allowed("a number > 0", real(0, above=True))]
Share = Annotated[float, allowed("a number from 0 to 1", real(0, 1))]
LONGEST: Final = 1e12
"""Seconds, 30,000 years: far beyond it, sums of times overflow."""
_MOST_VARIED: Final = 1e3
Seconds = Annotated[float, allowed(f"a number of seconds from 0 to {LONGEST:g}", real(0, LONGEST))]
Variation = Annotated[float, allowed(f"a number from 0 to {_MOST_VARIED:g}", real(0, _MOST_VARIED))]
WorkerNumbers = Annotated[
    float | tuple[float, ...],
    allowed(f"a number of seconds from 0 to {LONGEST:g}, {_PER_WORKER}", one_or_listed(real(0, LONGEST))),
]
WorkerRates = Annotated[
    float | tuple[float, ...],
    allowed(f"a number > 0 (from {1 / LONGEST:g} on), {_PER_WORKER}", one_or_listed(real(1 / LONGEST))),
]
Size = Annotated[int, allowed("bytes: an integer >= 0, or text such as 60GiB, 400MB or 1.5 GB", _bytes)]
Flag = Annotated[bool, allowed("true or false", _flag)]
Text = Annotated[str, allowed("text on one line, not empty", _text)]
PathText = Annotated[str, allowed("a path", _text)]
