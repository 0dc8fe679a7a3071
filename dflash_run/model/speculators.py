"""The drafter with the target's embeddings and head, as the speculators format has it (layout B, for vLLM)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from dflash_run.model.drafter import Drafter
from dflash_run.model.exported import CONFIG, WEIGHTS, config_of
from dflash_run.model.shape import DrafterShape
from dflash_run.model.tensorfile import write_tensors

_OWN: Final = ("architectures", "block_size", "dflash_config", "num_target_layers")
"""Keys of layout A that are no part of a Qwen3 configuration."""


def write_speculator(
    drafter: Drafter, folder: Path, *, embed: Tensor, head: Tensor, verifier: str, architectures: Sequence[str]
) -> None:
    """Write a drafter in bfloat16 into a folder, which is made.

    embed and head: the target's, [V, H]; verifier: its folder or hub id; architectures: what its configuration says.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {**drafter.state_dict(), "embed_tokens.weight": embed, "lm_head.weight": head}
    # Cloned, because a target may use one tensor for both and the file format refuses shared memory.
    write_tensors(folder / WEIGHTS, {name: tensor.to(torch.bfloat16, copy=True) for name, tensor in tensors.items()})
    config = speculator_config(drafter.shape, verifier=verifier, architectures=architectures)
    (folder / CONFIG).write_text(json.dumps(config, indent=2, allow_nan=False) + "\n")


def speculator_config(shape: DrafterShape, *, verifier: str, architectures: Sequence[str]) -> dict[str, Any]:
    """What its `config.json` holds. Layer ids count the embeddings as 0 here: each tap plus 1."""
    layers = {key: value for key, value in config_of(shape).items() if key not in _OWN}
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": shape.block_size - 1,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "architectures": ["DFlashSpeculator"],
        "speculators_model_type": "dflash",
        "transformer_layer_config": layers,
        "draft_vocab_size": shape.vocab_size,
        "block_size": shape.block_size,
        "aux_hidden_state_layer_ids": [tap + 1 for tap in shape.taps],
        "mask_token_id": shape.mask_token_id,
        "sample_from_anchor": False,
        "dtype": "bfloat16",
        "speculators_config": {
            "algorithm": "dflash",
            "proposal_methods": [proposal],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": verifier, "architectures": list(architectures)},
        },
    }
