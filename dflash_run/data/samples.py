"""One sample as read → token ids and loss mask: the three kinds of samples, each with its checks."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_run.data.faults import BadSample, refused
from dflash_run.data.tokenizer import Tokenizer

I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]
Tokens = tuple[I32, U8]
"""Ids, int32[S], and loss mask, uint8[S] of 0 and 1."""


class Tokenise:
    """Turns samples of one kind into tokens."""

    def __init__(self, kind: str, tokenizer: Tokenizer | None, vocab_size: int | None) -> None:
        """`kind`: conversations, text or tokens (which needs no tokenizer). Raises PipelineError."""
        if kind == "conversations" and tokenizer is not None and not tokenizer.has_template:
            remedy = "set model.tokenizer to one that has, or give data of the format text or tokens"
            rule = "needs a tokenizer with a chat template: this one has none, or several and none called default"
            raise refused("data.format", kind, rule, remedy)
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._of = {"conversations": self._conversation, "text": self._text, "tokens": self._tokens}[kind]

    def __call__(self, sample: Mapping[str, Any]) -> Tokens:
        """The sample's tokens, not cut. Raises BadSample."""
        ids, mask = self._of(sample)
        if self._vocab_size is not None and len(ids) and int(ids.max()) >= self._vocab_size:
            rule = f"must hold token ids of the target's vocabulary: 0 to {self._vocab_size - 1}"
            raise BadSample(int(ids.max()), rule, "take the target's own tokenizer")
        return ids, mask

    def _conversation(self, sample: Mapping[str, Any]) -> Tokens:
        messages = sample.get("messages")
        if not isinstance(messages, list) or not messages:
            raise BadSample(messages, "must have `messages`, a list of {role, content}")
        given = [_message(each) for each in messages]
        assert self._tokenizer is not None
        ids, written = self._tokenizer.conversation(given)
        return np.array(ids, np.int32), np.array(written, np.uint8)

    def _text(self, sample: Mapping[str, Any]) -> Tokens:
        text = sample.get("text")
        if not isinstance(text, str):
            raise BadSample(text, "must have `text`, a text")
        _check_characters(text)
        assert self._tokenizer is not None
        ids = np.array(self._tokenizer.encode(text), np.int32)
        return ids, np.ones(len(ids), np.uint8)

    def _tokens(self, sample: Mapping[str, Any]) -> Tokens:
        ids = _integers(sample.get("input_ids"), 2**31 - 1, "must have `input_ids`, a list of token ids >= 0")
        given = sample.get("loss_mask")
        if given is None:
            return ids, np.ones(len(ids), np.uint8)
        mask = _integers(given, 1, "must have a `loss_mask` of 0 and 1, or none").astype(np.uint8)
        if len(mask) != len(ids):
            raise BadSample(len(mask), f"must have a `loss_mask` as long as its `input_ids`: {len(ids)}")
        return ids, mask


def _message(message: object) -> dict[str, object]:
    """A message that any tokenizer can write, without the keys that are null: columns that other rows use.

    Raises BadSample: what a template makes of a number, or of nothing, would be learnt as if somebody had said it.
    """
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise BadSample(message, "must have `messages`, a list of {role, content}")
    given: dict[str, object] = {key: value for key, value in message.items() if value is not None}
    content = given.get("content")
    if isinstance(content, list):
        raise BadSample(content, "must give each message a text as content, not a list", "join its parts to one text")
    if not isinstance(content, str) and not (content is None and given.get("tool_calls")):
        raise BadSample(content, "must give each message a text as content", "only one with tool_calls may do without")
    _check_characters(given)
    return given


def _check_characters(value: object) -> None:
    """Raise BadSample for half a surrogate pair, which JSON can write and no tokenizer read, in any text of `value`."""
    left = [value]
    while left:
        match left.pop():
            case str() as text if not text.isascii():
                try:
                    text.encode()
                except UnicodeEncodeError as error:
                    rule = f"must be text of whole characters: \\u{ord(text[error.start]):04x} is half of one"
                    raise BadSample(text, rule, "correct the escape") from None
            case dict() as mapping:
                left += [*mapping, *mapping.values()]
            case list() as items:
                left += items


def _integers(values: object, highest: int, rule: str) -> I32:
    if not isinstance(values, list):
        raise BadSample(values, rule)
    for value in values:
        if not isinstance(value, int) or not 0 <= value <= highest or (highest > 1 and value is True):
            raise BadSample(value, rule)
    return np.array(values, np.int32)


def supervised_pairs(mask: U8) -> int:
    """Positions a of a loss mask uint8[S] where a and a+1 are supervised: where a block can be anchored."""
    return int(np.count_nonzero(mask[:-1] & mask[1:]))


def padded(rows: Sequence[NDArray[Any]], width: int, dtype: type) -> NDArray[Any]:
    """Rows of at most `width` entries as one array [len(rows), width], zeros to the right."""
    out: NDArray[Any] = np.zeros((len(rows), width), dtype)
    for index, row in enumerate(rows):
        out[index, : len(row)] = row
    return out
