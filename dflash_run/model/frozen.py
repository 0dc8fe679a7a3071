"""The target's embedding and head, which the drafter uses frozen; nothing else of the target is read."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dflash_run.model.config import reason_of, target_config, unusable
from dflash_run.model.random_weights import random_tensor
from policies.sections.training import Model

_COMPLETE = "give a complete folder with safetensors; for measurements without weights set model.random_weights: true"
_UNREADABLE = "must hold safetensors that can be read ({})"
_EMBED, _HEAD = "embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True, eq=False)
class Frozen:
    """V tokens, hidden size H; no gradients."""

    embed: Tensor
    """[V, H]: the input embedding."""
    head: Tensor
    """[V, H]: the output layer; the same tensor as `embed` where the target ties them."""


def load_frozen(model: Model, device: str | torch.device, dtype: torch.dtype, seed: int = 0) -> Frozen:
    """Read embedding and head onto `device` in `dtype`; random ones are those of a `TappedTarget` of that seed.

    Raises PipelineError where the target's files lack them.
    """
    config = target_config(model)
    device = torch.device(device)
    tied = bool(config.tie_word_embeddings)
    names = [_EMBED] if tied else [_EMBED, _HEAD]
    shape = (config.vocab_size, config.hidden_size)
    if model.random_weights:
        drawn = getattr(torch, model.dtype)  # drawn in the target's dtype: the same numbers as the target's
        made = [random_tensor(name, shape, seed, device, drawn, config.initializer_range) for name in names]
        tensors = [each.to(dtype) for each in made]
    else:
        tensors = [_read(model, name, device).to(dtype) for name in names]
    for name, tensor in zip(names, tensors, strict=True):
        if tuple(tensor.shape) != shape:
            rule = f"must hold {name} of the shape {list(shape)} that config.json gives, not {list(tensor.shape)}"
            raise unusable(model, rule, "give the target as it was saved")
    return Frozen(tensors[0], tensors[-1])


def check_weights(model: Model) -> None:
    """Raise PipelineError where there is no file with the target's weights; reads no tensor."""
    if not model.random_weights:
        _located(model, _EMBED)


def _read(model: Model, ending: str, device: torch.device) -> Tensor:
    """The one tensor whose name ends so."""
    file, name = _located(model, ending)
    try:
        with safe_open(file, framework="pt", device=str(device)) as opened:
            tensor: Tensor = opened.get_tensor(name)
            return tensor
    except (OSError, SafetensorError) as error:
        raise unusable(model, _UNREADABLE.format(reason_of(error)), _COMPLETE) from None


def _located(model: Model, ending: str) -> tuple[str, str]:
    """The file that holds the one tensor whose name ends so, and the name."""
    try:
        for file, names in _files(model, ending):
            with safe_open(file, framework="pt") as opened:
                for name in names or opened.keys():
                    if _is(name, ending):
                        return file, name
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise unusable(model, _UNREADABLE.format(reason_of(error)), _COMPLETE) from None
    raise unusable(model, f"must hold a tensor {ending}: there is none", _COMPLETE)


def _files(model: Model, ending: str) -> list[tuple[str, list[str]]]:
    """Files that may hold the tensor, and its name there where the index says it. Raises OSError."""
    index = _file(model, "model.safetensors.index.json")
    if index is None:
        single = _file(model, "model.safetensors")
        if single is None:
            raise OSError("no model.safetensors, nor its index")
        return [(single, [])]
    places: dict[str, Any] = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"]
    found = []
    for name, file in places.items():
        if _is(name, ending):
            path = _file(model, str(file))
            if path is None:
                raise OSError(f"{file} is missing")
            found.append((path, [name]))
    return found


def _file(model: Model, name: str) -> str | None:
    """Path of one of the target's files, from its folder or the hub's cache; nothing is downloaded."""
    assert model.name_or_path is not None
    folder = Path(model.name_or_path)
    if folder.is_dir():
        return str(folder / name) if (folder / name).is_file() else None
    from transformers.utils.hub import cached_file

    found = cached_file(
        model.name_or_path,
        name,
        revision=model.revision,
        local_files_only=True,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return str(found) if found is not None else None


def _is(name: str, ending: str) -> bool:
    return name == ending or name.endswith(f".{ending}")
