"""A target that its workers could not load, or that no drafter can be made of, is refused before any of them starts."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import dflash_run.training.preparation as preparation  # noqa: E402
from dflash_run.model.checking import check_target  # noqa: E402
from dflash_run.training.preparation import prepare_training  # noqa: E402
from policies.faults import PipelineError  # noqa: E402
from policies.loading import from_mapping  # noqa: E402
from policies.pipeline import Pipeline  # noqa: E402
from tests.run.training.cases import training_file, training_pipeline  # noqa: E402

REAL = {"random_weights": False}


def told(folder: Path, **model: Any) -> str:
    """The one fault of a training with this section `model`."""
    with pytest.raises(PipelineError) as caught:
        prepare_training(training_pipeline(folder, model=model), gpus=0)
    assert len(caught.value.faults) == 1, str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a training whose target has weights in several files, head and embedding apart."""
    folder = tmp_path_factory.mktemp("whole")
    training_file(folder)
    config = transformers.AutoConfig.from_pretrained(folder / "target", tie_word_embeddings=False)
    shutil.rmtree(folder / "target")
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder / "target", max_shard_size="100KB")
    return folder


@pytest.fixture
def case(whole: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    shutil.copytree(whole, tmp_path / "case")
    return tmp_path / "case"


def changed(case: Path, **values: Any) -> None:
    path = case / "target" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def shard_of(case: Path, tensor: str) -> Path:
    index = json.loads((case / "target" / "model.safetensors.index.json").read_text())
    return case / "target" / str(index["weight_map"][tensor])


def test_a_whole_target_is_accepted_with_its_weights_and_without(case: Path) -> None:
    prepare_training(training_pipeline(case, model=REAL), gpus=0)
    prepare_training(training_pipeline(case), gpus=0)


@pytest.mark.parametrize("tensor", ["model.layers.1.mlp.up_proj.weight", "lm_head.weight"])
def test_a_file_of_weights_that_is_missing_or_cut_is_named(case: Path, tensor: str) -> None:
    shard = shard_of(case, tensor)
    content = shard.read_bytes()
    shard.write_bytes(content[: len(content) // 2])
    assert shard.name in (text := told(case, **REAL)) and "download it again" in text
    shard.unlink()
    assert f"{shard.name} is missing" in told(case, **REAL)


@pytest.mark.parametrize(
    "content", ["[]", "{}", "[" * 100_000, '{"weight_map": [1]}', '{"weight_map": {"lm_head.weight": 5}}', "{"]
)
def test_an_index_of_weights_that_is_damaged_is_a_fault(case: Path, content: str) -> None:
    (case / "target" / "model.safetensors.index.json").write_text(content)
    assert told(case, **REAL).startswith("model.name_or_path: ")


def test_weights_that_the_target_or_the_loss_needs_are_missed_before_the_start(case: Path) -> None:
    from safetensors.torch import load_file, save_file

    for tensor in ("model.layers.0.mlp.up_proj.weight", "lm_head.weight"):
        shard = shard_of(case, tensor)
        held = load_file(shard)
        kept = held.pop(tensor)
        save_file(held, shard, metadata={"format": "pt"})
        assert tensor.removeprefix("model.") in told(case, **REAL)
        save_file(held | {tensor: kept[:-1].clone()}, shard, metadata={"format": "pt"})
        assert tensor.removeprefix("model.") in told(case, **REAL)
        save_file(held | {tensor: kept}, shard, metadata={"format": "pt"})
    prepare_training(training_pipeline(case, model=REAL), gpus=0)


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"hidden_act": "foo"}, "built from (hidden_act: 'foo' is not known)"),
        ({"rope_scaling": {"rope_type": "foo"}}, "rope_type: 'foo' is not known"),
        ({"num_attention_heads": 0}, "num_attention_heads as an integer >= 1"),
        ({"hidden_size": -64}, "hidden_size as an integer >= 1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers as an integer >= 1"),
        ({"vocab_size": 0}, "vocab_size as an integer >= 1"),
        ({"rope_theta": "x"}, "rope_theta as a number > 0"),
        ({"model_type": "bert"}, "BertModel has not; give a target of that layout: Llama"),
        ({"model_type": "whisper"}, "built from"),
        ({"model_type": "zzz", "auto_map": {"AutoConfig": "mine.Mine"}}, "never run"),
        ({"model_type": "zzz"}, "config.json that transformers can read"),
    ],
    ids=lambda each: None if isinstance(each, str) else next(iter(each)),
)
def test_a_configuration_that_nothing_can_be_built_from_is_a_fault(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], values: dict[str, Any], part: str
) -> None:
    training_file(tmp_path)
    changed(tmp_path, **values)
    for model in ({}, REAL):  # what the weights should be nobody knows
        text = told(tmp_path, **model)
        assert text.startswith("model.name_or_path: ") and part in text and "weights" not in text
    assert capfd.readouterr().out == ""


def test_quantised_weights_whose_library_is_missing_are_refused(case: Path) -> None:
    changed(case, quantization_config={"quant_method": "awq", "bits": 4})
    text = told(case, **REAL)
    assert text.startswith("model.name_or_path: ") and "quantised by 'awq' (" in text and "install what that" in text
    for damaged in ("awq", [1], {"bits": 4}):
        changed(case, quantization_config=damaged)
        assert told(case, **REAL).startswith("model.name_or_path: ")


@pytest.mark.parametrize("model", [{}, REAL], ids=["random", "real"])
def test_a_target_whose_attention_is_not_the_files_is_refused_with_one_that_it_has(
    tmp_path: Path, model: dict[str, Any]
) -> None:
    training_file(tmp_path)
    shutil.rmtree(tmp_path / "target")
    sizes = {"vocab_size": 300, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "head_dim": 4}
    config = transformers.Gemma2Config(**sizes, num_attention_heads=4, num_key_value_heads=2)
    transformers.Gemma2ForCausalLM(config).save_pretrained(tmp_path / "target")
    text = told(tmp_path, **model)
    assert text.startswith("model.attention: got 'sdpa'") and text.endswith("set it to eager")
    assert "github" not in text
    prepare_training(training_pipeline(tmp_path, model={**model, "attention": "eager"}), gpus=0)


def test_an_attention_and_weights_that_are_missing_are_told_at_once(case: Path) -> None:
    shard_of(case, "lm_head.weight").unlink()
    model = training_pipeline(case, model={**REAL, "attention": "flash_attention_2"}).model
    with pytest.raises(PipelineError) as caught:
        check_target(model, 1)
    assert [fault.key for fault in caught.value.faults] == ["model.attention", "model.name_or_path"]


def test_a_target_of_another_layout_is_told_so_and_not_that_its_weights_are_missing(tmp_path: Path) -> None:
    training_file(tmp_path)
    shutil.rmtree(tmp_path / "target")
    sizes = {"vocab_size": 300, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    config = transformers.GPTNeoXConfig(**sizes, num_attention_heads=4)
    transformers.GPTNeoXForCausalLM(config).save_pretrained(tmp_path / "target")
    for model in ({}, REAL):
        text = told(tmp_path, **model)
        assert "must have embed_tokens, layers and norm as Llama has them: GPTNeoXModel has not" in text


def test_a_target_without_a_tokenizer_is_told_once_and_tokens_need_none(tmp_path: Path) -> None:
    def without(*keys: str, **data: Any) -> Pipeline:
        mapping = training_file(tmp_path, data=data)
        for key in keys:
            del mapping["model"][key]
        return from_mapping(mapping)

    prepare_training(without("tokenizer"), gpus=0)
    (tmp_path / "text.jsonl").write_text('{"text": "hello"}\n')
    for pipeline in (without("tokenizer", "mask_token_id"), without("tokenizer", path=str(tmp_path / "text.jsonl"))):
        with pytest.raises(PipelineError, match="there is no tokenizer in the target's folder") as caught:
            prepare_training(pipeline, gpus=0)
        assert [fault.key for fault in caught.value.faults] == ["model.tokenizer"]


def test_an_attention_that_cannot_run_here_is_refused_by_its_key(
    case: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faults(**model: Any) -> list[str]:
        with pytest.raises(PipelineError) as caught:
            prepare_training(training_pipeline(case, model={"attention": "flash_attention_2", **model}), gpus=0)
        assert {fault.key for fault in caught.value.faults} == {"model.attention"}
        return [fault.rule for fault in caught.value.faults]

    real: Callable[[str], object] = preparation.find_spec
    monkeypatch.setattr(preparation, "find_spec", lambda name: None if name == "flash_attn" else real(name))
    package, dtype, device = faults()
    assert "package flash-attn" in package and "float32" in dtype and "GPUs" in device
    assert len(faults(dtype="bfloat16")) == 2


def test_what_the_library_says_of_its_attention_is_told_by_its_key(
    case: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "find_spec", lambda name: True)
    monkeypatch.setattr(preparation, "_flash_faults", lambda *_: ())
    assert "model.attention" in told(case, attention="flash_attention_2", dtype="bfloat16")
