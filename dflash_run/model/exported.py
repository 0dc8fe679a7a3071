"""The drafter as the serving engines load it (layout A: `model.safetensors` in bfloat16 and `config.json`)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from dflash_run.jsonfile import read_mapping
from dflash_run.model.drafter import Drafter
from dflash_run.model.shape import DrafterShape
from dflash_run.model.tensorfile import check_tensors, read_tensors, write_tensors
from policies.faults import ABSENT, Fault, PipelineError

WEIGHTS: Final = "model.safetensors"
CONFIG: Final = "config.json"
KEY: Final = "model.warm_start"
_FREE: Final = frozenset(
    {"block_size", "layer_types", "sliding_window", "max_position_embeddings", "initializer_range"}
    | {"bos_token_id", "eos_token_id"}
)
"""What a checkpoint may have otherwise than the new drafter: its weights mean the same."""
_PLACES: Final = {
    "heads": ("num_attention_heads",),
    "kv_heads": ("num_key_value_heads",),
    "layers": ("num_hidden_layers",),
    "taps": ("dflash_config", "target_layer_ids"),
    "mask_token_id": ("dflash_config", "mask_token_id"),
    "target_layers": ("num_target_layers",),
}
"""Where config.json has a field of the shape under another name."""
_OPTIONAL: Final = frozenset({"sliding_window", "bos_token_id", "eos_token_id"})


def write_exported(drafter: Drafter, folder: Path) -> None:
    """Write a drafter into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: parameter.to(torch.bfloat16) for name, parameter in drafter.state_dict().items()}
    write_tensors(folder / WEIGHTS, tensors)
    (folder / CONFIG).write_text(json.dumps(config_of(drafter.shape), indent=2, allow_nan=False) + "\n")


def config_of(shape: DrafterShape) -> dict[str, Any]:
    """What `config.json` holds."""
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": shape.block_size,
        "dflash_config": {"mask_token_id": shape.mask_token_id, "target_layer_ids": list(shape.taps)},
        "num_target_layers": shape.target_layers,
        "num_hidden_layers": shape.layers,
        "layer_types": list(shape.layer_types),
        "sliding_window": shape.sliding_window,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.rms_norm_eps,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "initializer_range": shape.initializer_range,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "use_cache": True,
        "bos_token_id": shape.bos_token_id,
        "eos_token_id": list(shape.eos_token_id) if isinstance(shape.eos_token_id, tuple) else shape.eos_token_id,
    }


def read_exported(folder: Path, shape: DrafterShape) -> tuple[DrafterShape, dict[str, Tensor]]:
    """The weights of an exported drafter, float32 on the host, to go on with as one of `shape`.

    Returns the shape to use too: the types of the layers and their window are the checkpoint's. Raises PipelineError
    under `model.warm_start` with everything that differs: sizes, taps, mask, and each tensor's name and shape.
    """
    theirs = _fitting(folder, shape)
    found = read_tensors(folder / WEIGHTS, expected_tensors(theirs), KEY)
    kept = replace(shape, layer_types=theirs.layer_types, sliding_window=theirs.sliding_window)
    return kept, {name: tensor.float() for name, tensor in found.items()}


def check_exported(folder: Path, shape: DrafterShape) -> None:
    """As `read_exported`, from the files' heads and lengths alone."""
    check_tensors(folder / WEIGHTS, expected_tensors(_fitting(folder, shape)), KEY)


def _fitting(folder: Path, shape: DrafterShape) -> DrafterShape:
    theirs = read_shape(folder)
    faults = list(_differences(theirs, shape))
    if faults:
        raise PipelineError(faults)
    return theirs


def read_shape(folder: Path) -> DrafterShape:
    """The shape that `config.json` of an exported drafter gives. Raises PipelineError with all that is missing."""
    try:
        config = read_mapping(folder / CONFIG)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        rule = f"must be a folder with a readable {CONFIG} ({reason})"
        remedy = "give the folder of a DFlash drafter (config.json, model.safetensors), or leave the key out"
        fault = Fault(KEY, str(folder), rule, remedy)
        raise PipelineError([fault]) from None
    values = {field.name: _value(config, field.name) for field in fields(DrafterShape)}
    given = {name: value for name, value in values.items() if value is not ABSENT or name not in _OPTIONAL}
    faults = [
        Fault(KEY, value, f"must give {_place(name)} in {CONFIG} as {told}")
        for name, value in given.items()
        for told in [_kind(name, value)]
        if told
    ]
    if faults:
        raise PipelineError(faults)
    try:
        return DrafterShape(**given)
    except PipelineError as error:  # it is this file that is to blame, not the key of the pipeline
        raise PipelineError(replace(fault, key=KEY) for fault in error.faults) from error


def expected_tensors(shape: DrafterShape) -> Mapping[str, Tensor]:
    """Name and shape of each tensor of a drafter; the tensors hold no values."""
    return Drafter(shape, seed=0, device="meta").state_dict()


def _place(name: str) -> str:
    return ".".join(_PLACES.get(name, (name,)))


def _kind(name: str, value: Any) -> str:
    """What a value of config.json should have been; empty where it is that."""
    if name in ("eos_token_id", "taps", "layer_types") and isinstance(value, tuple):
        one = str if name == "layer_types" else int
        return "" if value and all(type(each) is one for each in value) else "a list of one kind"
    if name in ("taps", "layer_types"):
        return "a list"
    if name in ("rms_norm_eps", "rope_theta", "initializer_range"):
        return "" if type(value) in (int, float) and 0 < value < math.inf else "a number > 0"
    if name in _OPTIONAL:
        return "" if value is None or type(value) is int else "an integer or null"
    least = 0 if name == "mask_token_id" else 1
    return "" if type(value) is int and value >= least else f"an integer >= {least}"


def _value(config: Mapping[str, Any], name: str) -> Any:
    value: Any = config
    for part in _PLACES.get(name, (name,)):
        value = value.get(part, ABSENT) if isinstance(value, dict) else ABSENT
    if name == "rope_theta" and value is ABSENT:  # as transformers 5 writes it
        parameters = config.get("rope_parameters")
        value = parameters.get(name, ABSENT) if isinstance(parameters, dict) else ABSENT
    return tuple(value) if isinstance(value, list) else value


def _differences(theirs: DrafterShape, ours: DrafterShape) -> Iterator[Fault]:
    for field in fields(DrafterShape):
        has, wanted = getattr(theirs, field.name), getattr(ours, field.name)
        if field.name not in _FREE and has != wanted:
            rule = f"must have {_place(field.name)} {wanted} in {CONFIG}, as this drafter has"
            yield Fault(KEY, has, rule, "change the section model, or take another checkpoint")
