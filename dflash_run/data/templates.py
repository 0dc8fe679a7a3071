"""Tells a chat template that cannot be used from conversations that it refuses with reason."""

from typing import Final

from dflash_run.data.conversations import Message
from dflash_run.data.faults import BadSample
from dflash_run.data.tokenizer import Tokenizer
from policies.faults import ABSENT, Fault
from policies.sections.training import Model

_TURNS: Final[list[Message]] = [{"role": "user", "content": "one and one"}, {"role": "assistant", "content": "two"}]
_SIMPLEST: Final[tuple[list[Message], ...]] = (_TURNS, [{"role": "system", "content": "be brief"}, *_TURNS])
"""A template may ask for a system's message."""
_RULE: Final = "must be a tokenizer with a chat template that can be used"
_REMEDY: Final = "correct the template, or give a tokenizer with another"


def template_fault(tokenizer: Tokenizer, model: Model) -> Fault | None:
    """What is wrong with the template if even the simplest conversations come to nothing; None where one does.

    To be asked where samples come to nothing, not before: a template may have been made for conversations of its own.
    """
    why = [_failure(tokenizer, messages) for messages in _SIMPLEST]
    if None in why:
        return None
    own = "" if model.tokenizer is not None else " (the target's own)"
    value = ABSENT if model.tokenizer is None else model.tokenizer
    return Fault("model.tokenizer", value, f"{_RULE}{own}: {why[0]}", _REMEDY)


def _failure(tokenizer: Tokenizer, messages: list[Message]) -> str | None:
    try:
        _, written = tokenizer.conversation(messages)
    except BadSample as refusal:
        return f"even the simplest conversation {refusal.rule}"
    return None if any(written) else "it yields no assistant tokens, even in the simplest conversation"
