"""Tokenizers: what the assistant said, with and without marks in the template; the mask's id."""

import json
from pathlib import Path
from typing import Any

import pytest

from dflash_run.data.bytelevel import BOS, EOS, MASK, ROLES, ByteTokenizer
from dflash_run.data.faults import BadSample
from dflash_run.data.tokenizer import HubTokenizer, Tokenizer, load_tokenizer, mask_token
from policies.faults import PipelineError
from policies.sections.training import Model

PLAIN = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
MARKED = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}"
    "{%- else %}{{ m.content + '<|im_end|>' }}{%- endif %}{{ '\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
# Rewrites history as reasoning models do: only the last turn keeps its thoughts.
THINKING = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}"
    "{%- else %}{{ m.content }}{%- endif %}{{ '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
TALK: list[dict[str, object]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "one and one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "one one"},
]


def word_tokenizer(template: str | dict[str, str] | None) -> Any:
    """A fast tokenizer without files: bytes, and the marks of a conversation."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[])
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    made.chat_template = template
    return made


def _said(tokenizer: Tokenizer, messages: list[dict[str, object]]) -> list[str]:
    """The supervised runs of a conversation, as text with special tokens."""
    ids, written = tokenizer.conversation(messages)
    assert len(ids) == len(written)
    runs, before = [], False
    for token, mine in zip(ids, written, strict=True):
        if mine and not before:
            runs.append("")
        if mine:
            runs[-1] += tokenizer._tokenizer.decode([token])  # type: ignore[attr-defined]
        before = mine
    return runs


@pytest.mark.parametrize("template", [PLAIN, MARKED], ids=["plain", "marked"])
def test_the_assistants_turns_and_their_end_marks_are_supervised(template: str) -> None:
    assert _said(HubTokenizer(word_tokenizer(template)), TALK) == ["two<|im_end|>", "one one<|im_end|>"]


def test_a_template_that_rewrites_history_is_masked_all_the_same() -> None:
    thoughts = [*TALK[:2], {"role": "assistant", "content": "<think>hm</think>two"}, *TALK[3:4]]
    last: dict[str, object] = {"role": "assistant", "content": "<think>again</think>one"}
    said = _said(HubTokenizer(word_tokenizer(THINKING)), [*thoughts, last])
    assert said == ["two<|im_end|>", "<think>again</think>one<|im_end|>"]


def test_turns_with_equal_or_empty_texts_are_told_apart() -> None:
    same: list[dict[str, object]] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": ""},
    ]
    assert _said(HubTokenizer(word_tokenizer(PLAIN)), same) == ["a<|im_end|>", "<|im_end|>"]


def test_a_turn_that_the_template_leaves_out_makes_nobody_elses_words_the_assistants() -> None:
    silent = "{% for m in messages if m.role != 'assistant' %}{{ m.content + '<|im_end|>' }}{% endfor %}"
    users: list[dict[str, object]] = [*TALK, {"role": "user", "content": "and two"}]
    assert _said(HubTokenizer(word_tokenizer(silent)), users) == []


def test_a_template_that_refuses_a_conversation_is_told() -> None:
    refusing = "{{ raise_exception('users first') }}"
    with pytest.raises(BadSample, match="users first"):
        HubTokenizer(word_tokenizer(refusing)).conversation(TALK)


def test_several_templates_of_which_none_is_the_default_are_as_good_as_none() -> None:
    several = HubTokenizer(word_tokenizer({"rag": PLAIN, "tools": PLAIN}))
    assert not several.has_template
    named = HubTokenizer(word_tokenizer({"default": MARKED, "tools": PLAIN}))
    assert named.has_template and _said(named, TALK) == ["two<|im_end|>", "one one<|im_end|>"]


def test_what_a_tokenizer_raises_is_told_of_the_sample() -> None:
    tokenizer = HubTokenizer(word_tokenizer(PLAIN))
    with pytest.raises(BadSample, match="refused by the tokenizer"):
        tokenizer.encode("\ud800")
    with pytest.raises(BadSample, match="refused by the tokenizer"):
        tokenizer.prompt([{"role": "user", "content": "\ud800"}])


def test_code_that_a_tokenizers_folder_brings_is_never_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "mine.py").write_text("raise SystemExit('ran')")
    said = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["mine.Mine", "mine.Mine"]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
    with pytest.raises(PipelineError, match="model.tokenizer: .*auto_map.*never run"):
        load_tokenizer(Model(tokenizer=str(tmp_path)))
    assert capfd.readouterr().out == ""


def test_the_built_in_template_marks_the_assistant() -> None:
    ids, written = ByteTokenizer().conversation(TALK[1:3])
    assert ids == [BOS, ROLES["user"], *b"one and one", EOS, ROLES["assistant"], *b"two", EOS]
    assert [token for token, mine in zip(ids, written, strict=True) if mine] == [*b"two", EOS]
    assert ByteTokenizer().prompt(TALK[1:2]) == ids[: -len(b"two") - 1]
    assert ByteTokenizer().decode(ids) == "one and onetwo"


def test_a_tokenizer_is_loaded_from_its_folder(tmp_path: Path) -> None:
    word_tokenizer(PLAIN).save_pretrained(tmp_path)
    one, two = (load_tokenizer(Model(tokenizer=str(tmp_path))) for _ in range(2))
    assert one.identity == two.identity and one.has_template
    word_tokenizer(MARKED).save_pretrained(tmp_path)
    assert load_tokenizer(Model(tokenizer=str(tmp_path))).identity != one.identity


@pytest.mark.parametrize(
    ("model", "key"),
    [
        (Model(), "model.name_or_path"),
        (Model(name_or_path="/nowhere/model"), "model.name_or_path"),
        (Model(name_or_path="nobody/none"), "model.name_or_path"),
        (Model(name_or_path="/nowhere/model", tokenizer="/nowhere/else"), "model.tokenizer"),
    ],
)
def test_a_tokenizer_that_is_not_there_is_a_fault(model: Model, key: str) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(PipelineError) as caught:
        load_tokenizer(model)
    assert [fault.key for fault in caught.value.faults] == [key]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", ["Qwen3", "Gemma", "GPTNeoX", "Mistral"])
def test_a_folder_without_a_tokenizer_is_told_by_the_key_that_mends_it(tmp_path: Path, family: str) -> None:
    transformers = pytest.importorskip("transformers")
    getattr(transformers, f"{family}Config")().save_pretrained(tmp_path)
    own, named = Model(name_or_path=str(tmp_path)), Model(tokenizer=str(tmp_path))
    with pytest.raises(PipelineError, match=r"^model.tokenizer: must be given: there is no tokenizer .*or bytes$"):
        load_tokenizer(own)
    with pytest.raises(PipelineError, match=r"^model.tokenizer: got .*: there is no tokenizer in it; .*or bytes$"):
        load_tokenizer(named)


def test_the_mask_is_the_files_or_the_tokenizers() -> None:
    assert mask_token(Model(mask_token_id=7), ByteTokenizer(), 300) == 7
    assert mask_token(Model(), ByteTokenizer(), 262) == MASK


def test_a_mask_that_is_missing_or_outside_the_vocabulary_is_a_fault() -> None:
    with pytest.raises(PipelineError, match="mask_token_id: got 300; must be an id of .*: 0 to 261"):
        mask_token(Model(mask_token_id=300), ByteTokenizer(), 262)
    with pytest.raises(PipelineError, match="model.mask_token_id"):
        mask_token(Model(), ByteTokenizer(), 256)
    with pytest.raises(PipelineError, match="e.g. 258, the first that the tokenizer leaves unused"):
        mask_token(Model(), HubTokenizer(word_tokenizer(None)), 300)
