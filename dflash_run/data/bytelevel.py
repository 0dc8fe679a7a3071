"""The built-in byte-level tokenizer: 256 bytes, a few marks, a chat template; needs no files."""

from collections.abc import Sequence
from typing import Final

from dflash_run.data.faults import BadSample

BOS: Final = 256
EOS: Final = 257
ROLES: Final = {"system": 258, "user": 259, "assistant": 260}
MASK: Final = 261
VOCAB: Final = 262


class ByteTokenizer:
    """Bytes are their own ids; a conversation is BOS, then for each message: role mark, bytes, EOS."""

    identity: Final = "bytes-1"
    size: Final = VOCAB
    mask_token_id: Final = MASK
    has_template: Final = True

    def encode(self, text: str) -> list[int]:
        """Ids of a text: its UTF-8 bytes, no marks."""
        return list(text.encode("utf-8", "surrogatepass"))

    def prompt(self, messages: Sequence[dict[str, object]]) -> list[int]:
        """Ids of messages and of the mark that asks the assistant to go on."""
        return [*self.conversation(messages)[0], ROLES["assistant"]]

    def conversation(self, messages: Sequence[dict[str, object]]) -> tuple[list[int], list[bool]]:
        """Ids of the messages, and which of them the assistant wrote (its EOS included).

        Raises BadSample for an unknown role or a content that is not text.
        """
        ids, written = [BOS], [False]
        for message in messages:
            role, content = message.get("role"), message.get("content")
            if role not in ROLES:
                raise BadSample(role, f"must give each message a role of {', '.join(ROLES)}")
            if not isinstance(content, str):
                raise BadSample(content, "must give each message a text as content")
            said = [*self.encode(content), EOS]
            ids += [ROLES[str(role)], *said]
            written += [False] + [role == "assistant"] * len(said)
        return ids, written

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; marks are left out, broken UTF-8 is replaced."""
        return bytes(each for each in ids if each < 256).decode("utf-8", "replace")
