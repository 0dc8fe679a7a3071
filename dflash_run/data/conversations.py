"""Finds what the assistant said in a templated conversation, with or without marks in the template."""

from collections.abc import Callable, Sequence

Message = dict[str, object]
Render = Callable[[Sequence[Message], bool], str]
"""The text of messages; the flag asks for the generation prompt at its end."""
Span = tuple[int, int]


def assistant_spans(messages: Sequence[Message], render: Render) -> list[Span]:
    """Half-open character spans of the assistant's turns in `render(messages, False)`, rising.

    Works with any template that puts each message's text in one place. A turn's end is found by rendering the
    conversation with another text in its place: what differs is the turn. That stands also where a template
    rewrites earlier turns (drops their reasoning), which a comparison of growing prefixes does not survive. Its
    start is the end of the generation prompt, where the text before it is the same with and without the turn. A turn
    that the template leaves out has no span.
    """
    full = render(messages, False)
    spans: list[Span] = []
    for index, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        stand_in: Message = {"role": "assistant", "content": _absent_from(full)}
        other = render([*messages[:index], stand_in, *messages[index + 1 :]], False)
        if other == full:
            continue
        start = _common(full, other)
        end = len(full) - _common(full[start:][::-1], other[start:][::-1])
        prompt = render(messages[:index], True) if index else ""
        if prompt and full.startswith(prompt) and len(prompt) <= start:
            start = len(prompt)
        spans.append((start, end))
    return spans


def _absent_from(text: str) -> str:
    """A short text of which no character is in `text`."""
    return next(chr(code) for code in range(0xE000, 0xF8FF) if chr(code) not in text) * 3


def _common(one: str, other: str) -> int:
    """How many leading characters are the same; by halving, as texts are long and comparing slices is fast."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
