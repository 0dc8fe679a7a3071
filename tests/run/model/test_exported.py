"""Exported drafters: what is written is read, and nothing else is."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash_run.model.drafter import Drafter
from dflash_run.model.exported import CONFIG, WEIGHTS, read_exported, read_shape, write_exported
from dflash_run.model.shape import DrafterShape
from dflash_run.model.speculators import write_speculator
from policies.faults import PipelineError
from tests.run.model.tiny import SHAPE, SLIDING, replica, target


@pytest.mark.parametrize("shape", [SHAPE, replace(SLIDING, eos_token_id=(1, 2), bos_token_id=0)])
def test_an_exported_drafter_is_read_back_as_it_was(tmp_path: Path, shape: DrafterShape) -> None:
    drafter = Drafter(shape, seed=4)
    write_exported(drafter, tmp_path)
    assert read_shape(tmp_path) == shape
    kept, weights = read_exported(tmp_path, SHAPE)
    assert kept.layer_types == shape.layer_types and kept.sliding_window == shape.sliding_window
    assert weights.keys() == drafter.state_dict().keys()
    for name, parameter in drafter.state_dict().items():
        assert torch.equal(weights[name], parameter.bfloat16().float())
    assert {tensor.dtype for tensor in load_file(tmp_path / WEIGHTS).values()} == {torch.bfloat16}
    started = replica(shape=kept)
    started.drafter.load_state_dict(weights)
    assert torch.equal(started.state()[0], weights["fc.weight"])


def test_the_configuration_has_the_keys_that_engines_read(tmp_path: Path) -> None:
    write_exported(Drafter(SHAPE, seed=4), tmp_path)
    config = json.loads((tmp_path / CONFIG).read_text())
    assert config["architectures"] == ["DFlashDraftModel"] and config["model_type"] == "qwen3"
    assert config["dflash_config"] == {"mask_token_id": 52, "target_layer_ids": [1, 3]}
    assert config["block_size"] == 4 and config["num_target_layers"] == 6 and config["num_hidden_layers"] == 2
    assert config["rope_scaling"] is None and config["dtype"] == "bfloat16" and "auto_map" not in config


def test_every_misnamed_missing_and_misshapen_tensor_is_refused(tmp_path: Path) -> None:
    write_exported(Drafter(SHAPE, seed=4), tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    tensors["model.norm.weight"] = tensors.pop("norm.weight")
    tensors["fc.weight"] = tensors["fc.weight"][:, :-1].contiguous()
    tensors["hidden_norm.weight"] = torch.ones(32, dtype=torch.int64)
    save_file(tensors, tmp_path / WEIGHTS)
    with pytest.raises(PipelineError) as refused:
        read_exported(tmp_path, SHAPE)
    told = [str(fault) for fault in refused.value.faults]
    assert {fault.key for fault in refused.value.faults} == {"model.warm_start"} and len(told) == 4
    for part in ("tensor norm.weight", "'model.norm.weight'", "[32, 63]", "I64"):
        assert sum(part in line for line in told) == 1


def test_a_checkpoint_of_another_shape_is_refused_with_all_differences(tmp_path: Path) -> None:
    write_exported(Drafter(SHAPE, seed=4), tmp_path)
    with pytest.raises(PipelineError) as refused:
        read_exported(tmp_path, replace(SHAPE, taps=(0, 2), mask_token_id=3, block_size=8))
    assert len(refused.value.faults) == 2 and "dflash_config.target_layer_ids" in str(refused.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"hidden_size": "32"}, "got '32'; must give hidden_size in config.json as an integer >= 1"),
        ({"dflash_config": None}, "dflash_config.mask_token_id"),
        ({"layer_types": ["causal"] * 2}, "must have layer_types"),
        ({"block_size": None}, "must give block_size"),
        ({"rope_theta": 0}, "must give rope_theta in config.json as a number > 0"),
        ({"sliding_window": 2.5}, "an integer or null"),
    ],
)
def test_a_broken_configuration_is_refused_under_the_warm_start(
    tmp_path: Path, change: dict[str, object], told: str
) -> None:
    write_exported(Drafter(SHAPE, seed=4), tmp_path)
    config = json.loads((tmp_path / CONFIG).read_text()) | change
    (tmp_path / CONFIG).write_text(json.dumps(config))
    with pytest.raises(PipelineError) as refused:
        read_exported(tmp_path, SHAPE)
    assert told in str(refused.value) and {fault.key for fault in refused.value.faults} == {"model.warm_start"}


def test_a_folder_without_a_drafter_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="readable config.json"):
        read_exported(tmp_path, SHAPE)
    for damage in ("[]", "[" * 100_000, '{"hidden_size": NaN}'):
        (tmp_path / CONFIG).write_text(damage)
        with pytest.raises(PipelineError, match="readable config.json"):
            read_exported(tmp_path, SHAPE)
    (tmp_path / CONFIG).write_text('{"rope_parameters": [1]}')
    with pytest.raises(PipelineError, match="must give hidden_size"):
        read_exported(tmp_path, SHAPE)
    write_exported(Drafter(SHAPE, seed=4), tmp_path)
    (tmp_path / WEIGHTS).write_bytes(b"nonsense")
    with pytest.raises(PipelineError, match="readable safetensors"):
        read_exported(tmp_path, SHAPE)


def test_a_speculator_brings_the_target_s_embeddings_and_counts_taps_from_one(tmp_path: Path) -> None:
    drafter, (embed, _) = Drafter(SHAPE, seed=4), target()
    write_speculator(drafter, tmp_path, embed=embed, head=embed, verifier="some/target", architectures=["Llama"])
    tensors, config = load_file(tmp_path / WEIGHTS), json.loads((tmp_path / CONFIG).read_text())
    assert tensors.keys() == drafter.state_dict().keys() | {"embed_tokens.weight", "lm_head.weight"}
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert config["aux_hidden_state_layer_ids"] == [2, 4] and config["draft_vocab_size"] == 53
    assert config["transformer_layer_config"]["model_type"] == "qwen3"
    assert not {"dflash_config", "architectures"} & config["transformer_layer_config"].keys()
    speculators = config["speculators_config"]
    assert speculators["verifier"] == {"name_or_path": "some/target", "architectures": ["Llama"]}
    assert speculators["proposal_methods"][0]["speculative_tokens"] == 3
