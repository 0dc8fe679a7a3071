"""Text → plain Python values: YAML as people expect it (1.2 core schema), and JSON.

Differences from PyYAML's own loader, each because the other reading is a trap:
`1e-3` is a number; `no`, `on`, `yes` are text; `1:30` is text; `012` and `1_000` are text, so that the field
of a number refuses them; a repeated key is a fault naming both lines; keys are always text; tags are refused;
nesting and the expansion of aliases are bounded.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import yaml
from yaml import events as ev

from policies.faults import ABSENT, Fault, PipelineError, dotted

MAX_CHARS: Final = 8 * 2**20
MAX_DEPTH: Final = 30
MAX_ALIASED: Final = 10_000
"""Most nodes that all aliases of a file together may stand for."""

# libyaml reads large files ten times as fast; PyYAML is built without it on some machines.
_PARSER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER: Final = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_BASED: Final = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_TAB: Final = re.compile(r"^ *\t\s*[^\s#]", re.MULTILINE)
_WORDS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


@dataclass(frozen=True)
class Document:
    """What a text holds, and the faults that did not stop it from being read (repeated keys)."""

    value: object
    faults: list[Fault] = field(default_factory=list)


def parse(text: str, source: str) -> Document:
    """Read YAML or JSON. Raises PipelineError, naming `source` and the line, for text that is neither."""
    if len(text) > MAX_CHARS:
        size = f"must be at most {MAX_CHARS} characters"
        raise PipelineError([Fault(source, len(text), size, "put sample lengths into a file of their own")])
    try:
        text.encode()
    except UnicodeEncodeError:
        fault = Fault(source, ABSENT, "must be valid Unicode text", "save it as UTF-8")
        raise PipelineError([fault]) from None
    _no_tabs(text, source)
    found = _json(text)
    return found if found is not None else _Builder(text, source).document()


def _no_tabs(text: str, source: str) -> None:
    """Parsers disagree on tabs: some take one for the first letter of a key. In JSON they are harmless."""
    tab = _TAB.search(text)
    if tab and not _looks_like_json(text):
        line = text.count("\n", 0, tab.end()) + 1
        rule = "must be indented with spaces, not tabs"
        raise PipelineError([Fault(f"{source}, line {line}", ABSENT, rule)])


def _looks_like_json(text: str) -> bool:
    return text.lstrip()[:1] in ("{", "[")


def scalar(text: str) -> bool | int | float | str | None:
    """What a plain (unquoted) scalar means."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > 100:  # longer than any number one writes, and Python limits the digits of an integer
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    return float(text.replace(".", "", 1)) if _SPECIAL.fullmatch(text) else text


def _json(text: str) -> Document | None:
    """Strict JSON, else None: what JSON does not allow is left to YAML, which knows lines."""
    if not _looks_like_json(text):
        return None
    try:
        return Document(json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant))
    except (ValueError, RecursionError):
        return None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("repeated key")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


@dataclass(frozen=True)
class _Anchored:
    value: object
    nodes: int
    depth: int


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:100]


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


class _Builder:
    """Builds the one document of a text from the parser's events."""

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self.lines = text.splitlines() or [""]
        self.events = self._read(text)
        self.anchors: dict[str, _Anchored] = {}
        self.faults: list[Fault] = []
        self.path: list[str | int] = []
        self.nodes = 0
        self.aliased = 0
        self.deepest = 0

    def document(self) -> Document:
        next(self.events)  # the stream's start
        if isinstance(next(self.events), ev.StreamEndEvent):
            fault = Fault(self.source, ABSENT, "must not be empty", "start with `data:` and `timings:`")
            raise PipelineError([fault])
        value = self._value(next(self.events))
        next(self.events)  # the document's end
        following = next(self.events)
        if not isinstance(following, ev.StreamEndEvent):
            self._refuse(following, "must hold one document", "remove the second `---`")
        return Document(value, self.faults)

    def _read(self, text: str) -> Iterator[Any]:
        try:
            yield from yaml.parse(text, Loader=_PARSER)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            problem = f"must be valid YAML: {error.problem or error.context}"
            raise PipelineError([self._at(mark.line if mark else 0, problem, "")]) from None
        # Not every malformed text ends in PyYAML's own error: `"\UFFFFFFFF"` is a ValueError.
        except (yaml.YAMLError, ValueError, OverflowError, LookupError) as error:
            fault = Fault(self.source, ABSENT, f"must be valid YAML: {_first_line(error)}")
            raise PipelineError([fault]) from None

    def _value(self, event: Any) -> object:
        self.nodes += 1
        if len(self.path) > MAX_DEPTH:
            self._refuse(event, f"must be nested at most {MAX_DEPTH} deep")
        if isinstance(event, ev.AliasEvent):
            return self._alias(event)
        if event.tag is not None:
            self._refuse(event, "must not use YAML tags", f"remove {event.tag}")
        before, outer = self.nodes, self.deepest
        self.deepest = len(self.path)
        value = self._untagged(event)
        if event.anchor is not None:
            size, depth = self.nodes - before + 1, self.deepest - len(self.path)
            self.anchors[event.anchor] = _Anchored(value, size, depth)
        self.deepest = max(outer, self.deepest)
        return value

    def _untagged(self, event: Any) -> object:
        if isinstance(event, ev.SequenceStartEvent):
            return self._sequence()
        if isinstance(event, ev.MappingStartEvent):
            return self._mapping()
        return scalar(event.value) if event.implicit[0] else event.value

    def _alias(self, event: Any) -> object:
        known = self.anchors.get(event.anchor)
        if known is None:
            self._refuse(event, f"must define &{event.anchor} before *{event.anchor}")
        self.nodes += known.nodes
        self.aliased += known.nodes
        self.deepest = max(self.deepest, len(self.path) + known.depth)
        if self.aliased > MAX_ALIASED or self.deepest > MAX_DEPTH:
            rule = f"aliases must stand for at most {MAX_ALIASED} values, nested at most {MAX_DEPTH} deep"
            self._refuse(event, rule)
        return known.value

    def _sequence(self) -> list[object]:
        items: list[object] = []
        while not isinstance(event := next(self.events), ev.SequenceEndEvent):
            self.path.append(len(items))
            items.append(self._value(event))
            self.path.pop()
        return items

    def _mapping(self) -> dict[str, object]:
        found: dict[str, object] = {}
        lines: dict[str, int] = {}
        while not isinstance(event := next(self.events), ev.MappingEndEvent):
            if not isinstance(event, ev.ScalarEvent):
                self._refuse(event, "keys must be plain text")
            key, line = event.value, _line(event)
            self.path.append(key)
            value = self._value(next(self.events))
            if key in found:
                rule = f"must be given once; it stands on lines {lines[key]} and {line}"
                self.faults.append(Fault(dotted(self.path), value, rule, "remove one of them"))
            else:
                found[key], lines[key] = value, line
            self.path.pop()
        return found

    def _refuse(self, event: Any, rule: str, remedy: str = "") -> NoReturn:
        raise PipelineError([*self.faults, self._at(_line(event) - 1, rule, remedy)])

    def _at(self, line: int, rule: str, remedy: str) -> Fault:
        text = self.lines[min(line, len(self.lines) - 1)].strip()
        return Fault(f"{self.source}, line {line + 1}", text, rule, remedy)
