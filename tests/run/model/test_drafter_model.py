"""The drafter: its names, its beginning, what its blocks can see."""

from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, Qwen3Config

from dflash_run.model.drafter import Drafter
from dflash_run.model.mask import masks_for
from dflash_run.model.shape import DrafterShape
from dflash_run.model.taps import default_taps
from policies.faults import PipelineError
from policies.sections.training import Model
from tests.run.model.tiny import SHAPE, SLIDING, naive_block_states, target


def _states(drafter: Drafter, features: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
    embed, _ = target()
    size = drafter.shape.block_size
    tokens = torch.full((1, anchors.shape[1], size), drafter.shape.mask_token_id)
    tokens[:, :, 0] = anchors % 7
    positions = (anchors[:, :, None] + torch.arange(size)).flatten(1)
    masks = masks_for(drafter.shape, anchors, features.shape[1], sparse=False)
    hidden: torch.Tensor = drafter(features, embed[tokens.flatten(1)], positions, masks)
    return hidden.view(anchors.shape[1], size, -1)


def _features(context: int) -> torch.Tensor:
    return torch.randn(1, context, 64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("shape", [SHAPE, SLIDING])
def test_a_block_depends_on_the_features_before_its_anchor_and_on_no_others(shape: DrafterShape) -> None:
    drafter, features, anchors = Drafter(shape, seed=1), _features(20), torch.tensor([[6, 9, 15]])
    with torch.no_grad():
        before = _states(drafter, features, anchors)
        for t in range(20):
            changed = features.clone()
            changed[0, t] += 1.0
            moved = (_states(drafter, changed, anchors) != before).flatten(1).any(1).tolist()
            seen = [t < int(a) for a in anchors[0]]
            if shape is SLIDING:  # the other layer sees everything before the anchor all the same
                assert shape.layer_types[1] == "full_attention"
            assert moved == seen


def test_all_blocks_at_once_equal_each_block_on_its_own() -> None:
    drafter, features, anchors = Drafter(SLIDING, seed=2), _features(12), torch.tensor([[0, 3, 11]])
    embed, _ = target()
    with torch.no_grad():
        together = _states(drafter, features, anchors)
        for row, anchor in enumerate(anchors[0].tolist()):
            tokens = [anchor % 7] + [SHAPE.mask_token_id] * 3
            alone = naive_block_states(drafter, features[0], torch.zeros(12), embed[tokens], anchor)
            torch.testing.assert_close(together[row], alone, rtol=1e-5, atol=1e-5)


def test_the_same_seed_gives_the_same_weights_and_leaves_global_state_alone() -> None:
    state = torch.get_rng_state()
    one, same, other = Drafter(SHAPE, seed=1), Drafter(SHAPE, seed=1), Drafter(SHAPE, seed=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.fc.weight, other.fc.weight)
    assert abs(float(one.fc.weight.detach().std()) - SHAPE.initializer_range) < 0.01
    assert torch.equal(one.norm.weight, torch.ones(32))
    assert {parameter.dtype for parameter in one.parameters()} == {torch.float32}


def test_the_paper_s_drafter_of_qwen3_8b_has_its_size_and_names() -> None:
    config = Qwen3Config(
        hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_key_value_heads=8, head_dim=128
    )
    shape = DrafterShape.of(config, Model(), 151669)
    assert shape.taps == (1, 9, 17, 25, 33) and shape.rope_theta == 10_000.0
    drafter = Drafter(shape, seed=0, device="meta")
    assert 1.04e9 < sum(parameter.numel() for parameter in drafter.parameters()) < 1.06e9
    names = {f"layers.{i}.{rest}.weight" for i in range(5) for rest in _LAYER} | {
        "fc.weight", "hidden_norm.weight", "norm.weight"
    }  # fmt: skip
    assert drafter.state_dict().keys() == names and drafter.fc.weight.shape == (4096, 5 * 4096)


_LAYER = (
    ["input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"]
    + [f"self_attn.{each}_proj" for each in "qkvo"]
    + [f"mlp.{each}_proj" for each in ("gate", "up", "down")]
)


def test_taps_are_spread_as_the_paper_spreads_them() -> None:
    assert default_taps(36, 5) == (1, 9, 17, 25, 33)
    assert default_taps(64, 5) == (1, 16, 31, 46, 61)
    assert default_taps(30, 1) == (15,)


def test_a_llama_target_gives_a_drafter_with_its_widths() -> None:
    config = LlamaConfig(
        hidden_size=576, intermediate_size=1536, num_attention_heads=9, num_key_value_heads=3, num_hidden_layers=30,
        vocab_size=49152, rope_parameters={"rope_type": "default", "rope_theta": 100000.0}, eos_token_id=[1, 2],
    )  # fmt: skip
    shape = DrafterShape.of(config, Model(drafter_layers=2, taps=(3, 8, 20), block_size=8), 17)
    assert (shape.hidden_size, shape.heads, shape.kv_heads, shape.head_dim, shape.layers) == (576, 9, 3, 64, 2)
    assert (shape.taps, shape.block_size, shape.mask_token_id, shape.target_layers) == ((3, 8, 20), 8, 17, 30)
    assert (shape.rope_theta, shape.eos_token_id, shape.vocab_size) == (100000.0, (1, 2), 49152)
    assert shape.layer_types == ("full_attention",) * 2


def test_every_fault_of_a_shape_is_told_at_once() -> None:
    config = LlamaConfig(hidden_size=64, num_attention_heads=4, num_hidden_layers=8, vocab_size=100)
    with pytest.raises(PipelineError) as refused:
        DrafterShape.of(config, Model(taps=(2, 8)), 100)
    assert [fault.key for fault in refused.value.faults] == ["model.taps", "model.mask_token_id"]
    assert "0 to 7" in str(refused.value) and "0 to 99" in str(refused.value)
    with pytest.raises(PipelineError, match=r"model\.taps.*drafter_layers"):
        DrafterShape.of(LlamaConfig(num_hidden_layers=3), Model(), 0)
    with pytest.raises(PipelineError, match="sliding_window"):
        replace(SLIDING, sliding_window=3)
