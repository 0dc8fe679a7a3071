"""Tokenizers: the built-in byte-level one, or the target's own through transformers, behind one small interface."""

import hashlib
import re
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from dflash_run.data.bytelevel import ByteTokenizer
from dflash_run.data.conversations import Message, assistant_spans
from dflash_run.data.faults import FOREIGN_CODE, BadSample, TemplateRefusal, reason_of, refused
from policies.faults import ABSENT, PipelineError, shown
from policies.sections.training import Model

_MARKED: Final = re.compile(r"\{%-?\s*generation\s*-?%\}")
_FILES: Final = ("tokenizer.*", "tokenizer-*", "vocab.*", "vocab-*", "*.model", "*.spm", "*.tiktoken", "tekken.json")
"""Of which a folder with a tokenizer holds at least one, in whatever format."""
_OFFLINE: Final = "give a folder, or download it once: hf download ID (a run never downloads)"


class Tokenizer(Protocol):
    """What the data need of a tokenizer."""

    @property
    def identity(self) -> str:
        """Changes whenever the ids of any text may change."""

    @property
    def size(self) -> int:
        """Ids run from 0 to size - 1."""

    @property
    def mask_token_id(self) -> int | None:
        """The tokenizer's own mask, if it has one."""

    @property
    def has_template(self) -> bool:
        """Whether conversations can be written: there is a chat template, the default one where there are several."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text. Raises BadSample."""

    def conversation(self, messages: Sequence[Message]) -> tuple[list[int], list[bool]]:
        """Ids of messages, and which of them the assistant wrote. Raises BadSample."""

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Ids of messages followed by what asks the assistant to go on. Raises BadSample."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without special tokens."""


class HubTokenizer:
    """A tokenizer of the transformers library."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.size = len(tokenizer)
        self.mask_token_id: int | None = tokenizer.mask_token_id
        self._template = tokenizer.chat_template
        used = self._template.get("default") if isinstance(self._template, dict) else self._template
        self.has_template = isinstance(used, str) and bool(used)
        self._marks = isinstance(used, str) and _MARKED.search(used) is not None
        self._special = set(tokenizer.all_special_ids)
        self._special |= {key for key, token in tokenizer.added_tokens_decoder.items() if token.special}

    @property
    def knows_text(self) -> bool:
        """Whether it has ids of anything but marks: of a folder without its files the library makes an empty one."""
        return self.size > len(self._special)

    @property
    def identity(self) -> str:
        """SHA-256 over the tokenizer's rules, its special tokens and its chat template."""
        tokenizer = self._tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        rules = backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))
        parts = (rules, sorted(map(str, tokenizer.all_special_tokens)), self._template)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Ids of a text, with the special tokens that the tokenizer puts around one."""
        return list(self._encoded(text)["input_ids"])

    def conversation(self, messages: Sequence[Message]) -> tuple[list[int], list[bool]]:
        """Ids of messages, and which of them the assistant wrote, by the template's marks where it has any.

        Otherwise a turn is what stands between the generation prompt and the turn's end, the end mark included.
        Raises BadSample where the template refuses the messages.
        """
        if self._marks:
            marked = self._templated(
                messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
            )
            return list(marked["input_ids"]), [bool(each) for each in marked["assistant_masks"]]
        full = self._render(messages, False)
        spans = assistant_spans(messages, self._render)
        encoded = self._encoded(full, add_special_tokens=False, return_offsets_mapping=True)
        ids = list(encoded["input_ids"])
        return ids, self._written(ids, encoded["offset_mapping"], spans)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Ids of messages and the generation prompt. Raises BadSample."""
        return list(self._encoded(self._render(messages, True), add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def _render(self, messages: Sequence[Message], ask: bool) -> str:
        return str(self._templated(messages, tokenize=False, add_generation_prompt=ask))

    def _templated(self, messages: Sequence[Message], **options: Any) -> Any:
        try:
            return self._tokenizer.apply_chat_template(list(messages), **options)
        except Exception as error:  # a template is a program of others: it may raise anything
            raise TemplateRefusal(list(messages), f"is refused by the chat template ({reason_of(error)})") from None

    def _encoded(self, text: str, **options: Any) -> Any:
        try:
            return self._tokenizer(text, verbose=False, **options)
        except Exception as error:  # its rules come from a file of others
            raise BadSample(text, f"is refused by the tokenizer ({reason_of(error)})") from None

    def _written(
        self, ids: list[int], offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]
    ) -> list[bool]:
        written = [False] * len(ids)
        lows = [low for low, _ in offsets]
        for start, end in spans:
            first, after = bisect_left(lows, start), bisect_left(lows, end)
            written[first:after] = [True] * (after - first)
            if after < len(ids) and lows[after] == end and ids[after] in self._special:
                written[after] = True  # the mark that ends the turn: the assistant must learn to say it
        return written


def load_tokenizer(model: Model) -> Tokenizer:
    """The tokenizer that `model` names: `model.tokenizer`, else the target's.

    Raises PipelineError where there is none, or it is not a fast one (marks of characters are needed).
    """
    if model.tokenizer == "bytes":
        return ByteTokenizer()
    key = "model.name_or_path" if model.tokenizer is None else "model.tokenizer"
    name = model.name_or_path if model.tokenizer is None else model.tokenizer
    if name is None:
        raise refused("model.name_or_path", ABSENT, "must be given: the target to train for")
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise refused(key, name, "needs the package transformers", "pip install 'dflash-pipeline[run]'") from None
    if Path(name).is_absolute() and not Path(name).exists():  # paths of the file are made absolute
        raise refused(key, name, "must name a tokenizer's folder: there is none", _OFFLINE)
    try:
        revision = model.revision if model.tokenizer is None else None
        tokenizer = AutoTokenizer.from_pretrained(
            name, revision=revision, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # whatever a broken folder makes the library raise is the user's to repair
        if "trust_remote_code" in str(error):
            raise refused(key, name, *FOREIGN_CODE) from None
        if Path(name).is_dir() and not any(any(Path(name).glob(pattern)) for pattern in _FILES):
            raise _no_tokenizer(model) from None
        remedy = f"{_OFFLINE}; or set model.tokenizer"
        raise refused(key, name, f"must name a tokenizer ({reason_of(error)})", remedy) from None
    if not getattr(tokenizer, "is_fast", False):
        raise refused(key, name, "must be a fast tokenizer (a folder with tokenizer.json)", "convert it once")
    made = HubTokenizer(tokenizer)
    if not made.knows_text:
        raise _no_tokenizer(model)
    return made


def _no_tokenizer(model: Model) -> PipelineError:
    remedy = "give a folder or an id that has one, or bytes"
    if model.tokenizer is None:
        rule = f"must be given: there is no tokenizer in the target's folder, {shown(model.name_or_path)}"
        return refused("model.tokenizer", ABSENT, rule, remedy)
    return refused("model.tokenizer", model.tokenizer, "must name a tokenizer: there is no tokenizer in it", remedy)


def mask_token(model: Model, tokenizer: Tokenizer | None, vocab_size: int | None = None) -> int:
    """The id that stands for a token to be drafted: `model.mask_token_id`, else the tokenizer's mask.

    `tokenizer`: needed where the file names no mask. `vocab_size`: rows of the target's embedding, which the id must
    be one of. Raises PipelineError.
    """
    chosen = model.mask_token_id
    given = chosen is not None
    if chosen is None and tokenizer is not None:
        chosen = tokenizer.mask_token_id
    if chosen is None:
        assert tokenizer is not None, "asked for its mask"
        spare = vocab_size is not None and vocab_size > tokenizer.size
        remedy = f"e.g. {tokenizer.size}, the first that the tokenizer leaves unused" if spare else "choose a rare one"
        raise refused("model.mask_token_id", ABSENT, "must be given: the tokenizer has no mask token", remedy)
    if vocab_size is not None and chosen >= vocab_size:
        rule = f"must be an id of the target's vocabulary: 0 to {vocab_size - 1}"
        remedy = "" if given else "the tokenizer's mask is not: set model.mask_token_id, or take the target's tokenizer"
        raise refused("model.mask_token_id", chosen, rule, remedy)
    return chosen
