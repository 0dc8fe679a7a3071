"""A training that needs nothing: a target of a known shape with random weights, and tokens drawn at random.

For measurements and tests: the work of a step depends on shapes, not on what the weights have learned.
"""

import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from reports.writing import replacing, write_text

SHAPES: Final[dict[str, dict[str, Any]]] = {
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 300,
        "tie_word_embeddings": True,
    },
    "qwen3-0.6b": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
    },
    "qwen3-1.7b": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
    },
    "qwen3-8b": {
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "tie_word_embeddings": False,
    },
}
"""Sizes of targets, as their config.json has them (published with the models)."""


def write_target(folder: Path, shape: str) -> None:
    """A folder with the config.json of a Qwen3 model of this shape and no weights: `model.random_weights: true`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 40_960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "torch_dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": None,
        **SHAPES[shape],
    }
    write_text(folder / "config.json", json.dumps(config, indent=1) + "\n")


def write_tokens(path: Path, lengths: list[int], *, vocab: int, seed: int) -> None:
    """Samples of these lengths with random tokens below `vocab`, the first eighth of each without loss (a prompt)."""
    rng = np.random.default_rng(seed)
    with replacing(path) as whole, whole.open("w", encoding="ascii") as file:
        for length in lengths:
            prompt = length // 8
            line = {
                "input_ids": rng.integers(0, vocab, length).tolist(),
                "loss_mask": [0] * prompt + [1] * (length - prompt),
            }
            file.write(json.dumps(line) + "\n")
