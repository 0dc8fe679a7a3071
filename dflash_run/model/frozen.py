"""The target's embedding and head, which the drafter uses frozen; nothing else of the target is read."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dflash_run.data.faults import reason_of
from dflash_run.jsonfile import read_mapping
from dflash_run.model.config import target_config, unusable
from dflash_run.model.random_weights import random_tensor
from policies.sections.training import Model

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_COMPLETE = "give a complete folder with safetensors; for measurements without weights set model.random_weights: true"
_UNREADABLE = "must hold safetensors that can be read ({})"
_INDEX: Final = "model.safetensors.index.json"
_AGAIN: Final = "copy or download it again"
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
    names = _names(config)
    shape = (config.vocab_size, config.hidden_size)
    if model.random_weights:
        drawn = getattr(torch, model.dtype)  # drawn in the target's dtype: the same numbers as the target's
        made = [random_tensor(name, shape, seed, device, drawn, config.initializer_range) for name in names]
        tensors = [each.to(dtype) for each in made]
    else:
        tensors = [_read(model, name, device).to(dtype) for name in names]
    for name, tensor in zip(names, tensors, strict=True):
        _check_shape(model, name, list(tensor.shape), list(shape))
    return Frozen(tensors[0], tensors[-1])


def check_weights(model: Model, config: "PretrainedConfig") -> None:
    """Raise PipelineError where a file of the target's weights is missing or cut, or one lacks what a drafter needs.

    Reads the files' heads and lengths, no tensor. The other tensors are the target's to check.
    """
    if model.random_weights:
        return
    for file in _all_files(model):
        try:
            with safe_open(file, framework="pt"):
                pass  # a head that does not fit the file's length is refused
        except (OSError, SafetensorError) as error:
            raise unusable(model, f"must hold whole files: {Path(file).name} ({reason_of(error)})", _AGAIN) from None
    for ending in _names(config):
        file, name = _located(model, ending)
        with safe_open(file, framework="pt") as opened:
            found = list(opened.get_slice(name).get_shape())
        _check_shape(model, ending, found, [config.vocab_size, config.hidden_size])


def _names(config: "PretrainedConfig") -> list[str]:
    return [_EMBED] if config.tie_word_embeddings else [_EMBED, _HEAD]


def _check_shape(model: Model, name: str, found: list[int], shape: list[int]) -> None:
    if found != shape:
        rule = f"must hold {name} of the shape {shape} that config.json gives, not {found}"
        raise unusable(model, rule, "give the target as it was saved")


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
                held = opened.keys()
                for name in names or held:
                    if _is(name, ending) and name in held:
                        return file, name
    except (OSError, ValueError, SafetensorError) as error:
        raise unusable(model, _UNREADABLE.format(reason_of(error)), _COMPLETE) from None
    raise unusable(model, f"must hold a tensor {ending}: there is none", _COMPLETE)


def _files(model: Model, ending: str) -> list[tuple[str, list[str]]]:
    """Files that may hold the tensor, and its name there where the index says it. Raises OSError."""
    places = _index(model)
    if places is None:
        return [(_single(model), [])]
    return [(_shard(model, file), [name]) for name, file in places.items() if _is(name, ending)]


def _all_files(model: Model) -> list[str]:
    try:
        places = _index(model)
        return [_single(model)] if places is None else [_shard(model, file) for file in sorted({*places.values()})]
    except (OSError, ValueError) as error:
        raise unusable(model, _UNREADABLE.format(reason_of(error)), _COMPLETE) from None


def _index(model: Model) -> dict[str, str] | None:
    """Tensor → file, as the index of a target of several files says; None without one. Raises OSError, ValueError."""
    index = _file(model, _INDEX)
    places = None if index is None else read_mapping(Path(index)).get("weight_map")
    if index is None or (isinstance(places, dict) and all(type(file) is str for file in places.values())):
        return places
    raise ValueError(f"{_INDEX} has no weight_map of tensors to files")


def _single(model: Model) -> str:
    found = _file(model, "model.safetensors")
    if found is None:
        raise OSError("no model.safetensors, nor its index")
    return found


def _shard(model: Model, file: str) -> str:
    found = _file(model, file)
    if found is None:
        raise OSError(f"{file} is missing")
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
