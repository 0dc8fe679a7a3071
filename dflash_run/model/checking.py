"""Whether a target can be built and loaded, told before any worker starts: each fault by the key that mends it."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn

from dflash_run.data.faults import reason_of
from dflash_run.model.config import target_config, unusable
from dflash_run.model.frozen import check_weights
from dflash_run.model.quiet import quiet
from dflash_run.model.target import BUILDABLE, built, first_layers, layers_of, load_pretrained
from policies.faults import Fault, PipelineError
from policies.sections.training import Model

_META: Final = torch.device("meta")


def check_target(model: Model, layers: int | None, *, attention: bool = True) -> None:
    """Raise PipelineError for what `TappedTarget` could not load: everything is built and held against the files'
    heads, but for the numbers. `layers`: how many will be loaded; None: all. `attention`: whether an attention that
    cannot be had is told; else it is known already.

    In this order, as what the weights should be follows from what is built: the configuration, the layout of its
    modules, and then attention and weights.
    """
    config = target_config(model)
    module, running, refusal = _skeleton(model, config, layers)
    layers_of(module, model)
    faults: list[Fault] = []
    if refusal is not None and attention:
        rule = f"must be an attention that this target can run ({_sentence(refusal)})"
        faults.append(Fault("model.attention", model.attention, rule, f"set it to {running}"))
    try:
        check_weights(model, config)
        if not model.random_weights:
            able, dtype = model.model_copy(update={"attention": running}), getattr(torch, model.dtype)
            load_pretrained(able, _loaded(config, layers), [_META], dtype, None)
    except PipelineError as error:
        faults += error.faults
    if faults:
        raise PipelineError(faults)


def _skeleton(model: Model, config: Any, layers: int | None) -> tuple[nn.Module, str, Exception | None]:
    """The model without weights, the attention it is built with, and why not with the one that the file asks for.

    The library does not say in a way that can be relied upon whether a refusal is about the attention: it is where
    the target can be built with another.
    """
    refusals: list[Exception] = []
    for attention in dict.fromkeys((model.attention, "sdpa", "eager")):
        try:
            with quiet():
                module = built(_loaded(config, layers), attention, _META, getattr(torch, model.dtype))
        except Exception as error:  # whatever a broken file leads to is the user's to mend
            refusals.append(error)
        else:
            return module, attention, refusals[0] if refusals else None
    rule, remedy = BUILDABLE
    raise unusable(model, f"{rule} ({_reason(refusals[-1], config)})", remedy)


def _loaded(config: Any, layers: int | None) -> Any:
    return config if layers is None else first_layers(config, layers)


def _sentence(error: Exception) -> str:
    """The first: what follows asks to write to the library's authors."""
    return reason_of(error).partition(". ")[0]


def _reason(error: Exception, config: Any) -> str:
    """A KeyError's text is the key alone: a name that the library does not know, and often one that the file gives."""
    if not isinstance(error, KeyError):
        return reason_of(error)
    named = next((name for name, value in _entries(config.to_dict()) if (value,) == error.args), None)
    return f"KeyError: {error}" if named is None else f"{named}: {error} is not known"


def _entries(values: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Dotted names and values."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", each) for inner, each in _entries(value))
        else:
            yield name, value
