"""The tapped target against the library's own hidden states, and the frozen parts against the target's."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from dflash_run.model.config import target_config  # noqa: E402
from dflash_run.model.frozen import load_frozen  # noqa: E402
from dflash_run.model.target import TappedTarget  # noqa: E402
from policies.faults import PipelineError  # noqa: E402
from policies.sections.training import Model  # noqa: E402

torch.set_num_threads(1)
LENGTHS = torch.tensor([9, 5, 2])


def config_of(family: str, **more: Any) -> Any:
    """A tiny configuration of a family."""
    sizes = {
        "vocab_size": 40,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "max_position_embeddings": 64,
    }
    return getattr(transformers, f"{family}Config")(**(sizes | more))


@pytest.fixture(params=["Qwen3", "Llama"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Model, Any]:
    """A random model, in a folder and in memory."""
    torch.manual_seed(0)
    model = getattr(transformers, f"{request.param}ForCausalLM")(config_of(request.param)).eval()
    model.save_pretrained(tmp_path)
    return Model(name_or_path=str(tmp_path), dtype="float32"), model


def tokens() -> Any:
    """int64[3, 9], padded with zeros beyond LENGTHS."""
    ids = torch.randint(1, 40, (3, 9), generator=torch.Generator().manual_seed(1))
    return ids * (torch.arange(9) < LENGTHS[:, None])


def test_taps_are_the_outputs_of_their_layers_and_zero_in_the_padding(saved: tuple[Model, Any]) -> None:
    model, reference = saved
    mask = torch.arange(9) < LENGTHS[:, None]
    states = reference(input_ids=tokens(), attention_mask=mask.long(), output_hidden_states=True).hidden_states
    target = TappedTarget(model, [0, 2, 3])
    got = target.run(tokens(), LENGTHS)
    assert got.shape == (3, 9, target.width) == (3, 9, 48)
    expected = torch.cat([states[tap + 1] for tap in target.taps], dim=-1) * mask[..., None]
    torch.testing.assert_close(got, expected)
    assert (target.layers, target.hidden_size, target.vocab_size) == (5, 16, 40)


def test_a_tap_of_the_last_layer_is_its_output_before_the_final_norm(saved: tuple[Model, Any]) -> None:
    model, reference = saved
    states = TappedTarget(model, [4], keep_last=True).run(tokens())
    torch.testing.assert_close(reference.model.norm(states[..., :16]), states[..., 16:])


def test_layers_above_the_last_tap_and_the_head_are_not_loaded(saved: tuple[Model, Any]) -> None:
    short, whole = TappedTarget(saved[0], [1, 2]), TappedTarget(saved[0], [1, 2], keep_last=True)
    assert len(short.module.layers) == 3 and len(whole.module.layers) == 5
    assert not [name for name, _ in whole.module.named_parameters() if "lm_head" in name]
    torch.testing.assert_close(short.run(tokens()), whole.run(tokens())[..., :32], rtol=0, atol=0)


def test_the_last_state_through_the_frozen_head_gives_the_models_logits(saved: tuple[Model, Any]) -> None:
    model, reference = saved
    last = TappedTarget(model, [4], keep_last=True).run(tokens())[..., 16:]
    frozen = load_frozen(model, "cpu", torch.float32)
    torch.testing.assert_close(last @ frozen.head.T, reference(input_ids=tokens()).logits)
    torch.testing.assert_close(frozen.embed, reference.model.embed_tokens.weight.detach(), rtol=0, atol=0)


def test_states_go_into_the_callers_buffer_and_no_other(saved: tuple[Model, Any]) -> None:
    target = TappedTarget(saved[0], [1, 3])
    out = torch.full((3, 9, 32), float("nan"))
    assert target.run(tokens(), LENGTHS, out) is out
    torch.testing.assert_close(out, target.run(tokens(), LENGTHS), rtol=0, atol=0)
    with pytest.raises(ValueError, match="out must be"):
        target.run(tokens(), out=torch.empty(3, 9, 31))
    assert not any(layer._forward_hooks for layer in target.module.layers)


def test_weights_in_several_files_and_tied_ones_are_read(tmp_path: Path) -> None:
    reference = transformers.Qwen3ForCausalLM(config_of("Qwen3"))
    reference.save_pretrained(tmp_path / "many", max_shard_size="4KB")
    assert (tmp_path / "many" / "model.safetensors.index.json").exists()
    frozen = load_frozen(Model(name_or_path=str(tmp_path / "many")), "cpu", torch.bfloat16)
    assert torch.equal(frozen.head, reference.lm_head.weight.to(torch.bfloat16))
    tied = transformers.Qwen3ForCausalLM(config_of("Qwen3", tie_word_embeddings=True))
    tied.save_pretrained(tmp_path / "tied")
    frozen = load_frozen(Model(name_or_path=str(tmp_path / "tied")), "cpu", torch.float32)
    assert frozen.head is frozen.embed and torch.equal(frozen.embed, tied.model.embed_tokens.weight)


def random_model(folder: Path, **more: Any) -> Model:
    config_of("Qwen3", architectures=["Qwen3ForCausalLM"], **more).save_pretrained(folder)
    return Model(name_or_path=str(folder), random_weights=True)


def test_random_weights_are_the_same_in_every_instance(tmp_path: Path) -> None:
    model = random_model(tmp_path)
    one, two, other = (TappedTarget(model, [1, 2], seed=seed) for seed in (3, 3, 4))
    assert one.dtype == torch.bfloat16 == next(one.module.parameters()).dtype
    assert torch.equal(one.run(tokens()), two.run(tokens()))
    assert not torch.equal(one.run(tokens()), other.run(tokens()))
    whole = TappedTarget(model, [1, 2], keep_last=True, seed=3)
    assert torch.equal(one.run(tokens()), whole.run(tokens())[..., :32])
    assert torch.isfinite(whole.run(tokens())).all()


def test_random_embedding_and_head_are_the_targets(tmp_path: Path) -> None:
    model = random_model(tmp_path)
    frozen = load_frozen(model, "cpu", torch.bfloat16, seed=3)
    embed = TappedTarget(model, [1], seed=3).module.embed_tokens.weight
    assert torch.equal(frozen.embed, embed) and not torch.equal(frozen.embed, frozen.head)
    assert 0.015 < float(embed.float().std()) < 0.025
    assert torch.equal(load_frozen(model, "cpu", torch.bfloat16, seed=3).head, frozen.head)


def test_a_target_that_is_not_there_is_a_fault_before_anything_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    transformers.CLIPVisionConfig().save_pretrained(tmp_path / "other")
    folders = [str(tmp_path / each) for each in ("none", "empty", "other", "broken")]
    for name in (None, "nobody/none", *folders):
        with pytest.raises(PipelineError) as caught:
            target_config(Model(name_or_path=name))
        assert [fault.key for fault in caught.value.faults] == ["model.name_or_path"]
        assert "\n" not in str(caught.value)


def test_missing_weights_and_taps_beyond_the_target_are_faults(tmp_path: Path) -> None:
    model = random_model(tmp_path).model_copy(update={"random_weights": False})
    with pytest.raises(PipelineError, match="model.name_or_path.*random_weights: true"):
        TappedTarget(model, [1])
    with pytest.raises(PipelineError, match="model.name_or_path.*random_weights: true"):
        load_frozen(model, "cpu", torch.float32)
    with pytest.raises(PipelineError, match="model.taps: .* 0 to 4"):
        TappedTarget(model, [1, 5])


def test_a_weight_that_the_files_lack_is_a_fault_not_a_random_one(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    transformers.Qwen3ForCausalLM(config_of("Qwen3")).save_pretrained(tmp_path)
    held = load_file(tmp_path / "model.safetensors")
    del held["model.layers.1.mlp.up_proj.weight"]
    save_file(held, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PipelineError, match="layers.1.mlp.up_proj.weight is missing"):
        TappedTarget(Model(name_or_path=str(tmp_path)), [2])
