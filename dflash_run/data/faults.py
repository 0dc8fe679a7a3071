"""How faults of the training data are gathered: many lines may be wrong, and a person reads the first few."""

from dataclasses import dataclass, field
from typing import Final

from policies.faults import ABSENT, Fault, PipelineError

FOREIGN_CODE: Final = (
    "must be of a kind that transformers has: its folder brings code of its own (auto_map), which is never run",
    "give a model that needs none, or a transformers that knows this one",
)
"""Rule and remedy."""
_MOST: Final = 20
"""Bad lines told one by one."""


class BadSample(Exception):
    """A sample cannot be used: the value at fault, the rule it breaks, and what to do."""

    def __init__(self, value: object, rule: str, remedy: str = "") -> None:
        super().__init__(value, rule, remedy)
        self.value, self.rule, self.remedy = value, rule, remedy


class TemplateRefusal(BadSample):
    """The chat template does not take a conversation: the fault of either."""


def refused(key: str, value: object, rule: str, remedy: str = "") -> PipelineError:
    """One fault as the error to raise."""
    return PipelineError([Fault(key, value, rule, remedy)])


def reason_of(error: Exception) -> str:
    """What a library said, in a line: the first, and the next where that one only announces it."""
    if text := getattr(error, "strerror", None):
        return str(text)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


@dataclass
class BadLines:
    """The bad samples of one file: the first few are kept, all are counted."""

    faults: list[Fault] = field(default_factory=list)
    count: int = 0

    def add(self, place: str, bad: BadSample) -> None:
        """Note one; `place` says where it stands, e.g. `line 3`."""
        self.count += 1
        if self.count <= _MOST:
            self.faults.append(Fault("data.path", bad.value, f"{place} {bad.rule}", bad.remedy))

    def raise_any(self) -> None:
        """Raise PipelineError if there was any."""
        if self.count > _MOST:
            rule = f"and {self.count - _MOST} more samples that cannot be used"
            raise PipelineError([*self.faults, Fault("data.path", ABSENT, rule, "correct or remove them")])
        if self.faults:
            raise PipelineError(self.faults)
