"""The numbers that make a drafter, taken from its target and the pipeline's section `model`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dflash_run.model.taps import default_taps
from policies.faults import ABSENT, Fault, PipelineError
from policies.sections.training import Model

if TYPE_CHECKING:
    from transformers import PretrainedConfig

FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"
_SIZES: Final = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
_OPTIONAL_SIZES: Final = ("num_key_value_heads", "head_dim", "max_position_embeddings")
_OPTIONAL_NUMBERS: Final = ("rms_norm_eps", "initializer_range", "rope_theta")
_ROPE_THETA: Final = 10_000.0
"""What transformers takes where a configuration names no base."""


@dataclass(frozen=True, kw_only=True)
class DrafterShape:
    """A drafter of Qwen3 layers; all widths are the target's unless a checkpoint says otherwise."""

    hidden_size: int
    """Width H of the residual stream: the target's, whose embeddings and head are used."""
    intermediate_size: int
    """Width of the gated MLP."""
    heads: int
    """Query heads."""
    kv_heads: int
    """Key and value heads; `heads` is a multiple of it."""
    head_dim: int
    """Width of a head; even, for the rotary embedding."""
    layers: int
    """Layers L of the drafter."""
    taps: tuple[int, ...]
    """Target layers whose outputs are the context, 0-based, increasing."""
    block_size: int
    """Tokens B of a block, the verified one included."""
    vocab_size: int
    """Rows V of the target's embeddings."""
    mask_token_id: int
    """Token that stands in a block for what is to be drafted."""
    target_layers: int
    """Layers n of the target."""
    rms_norm_eps: float = 1e-6
    rope_theta: float = _ROPE_THETA
    """Base of the rotary embedding; a scaling that the target has is not taken over."""
    max_position_embeddings: int = 32_768
    initializer_range: float = 0.02
    """Standard deviation of new weights."""
    layer_types: tuple[str, ...] = ()
    """`full_attention` or `sliding_attention` for each layer; left out: full everywhere."""
    sliding_window: int | None = None
    """Positions that a query of a sliding layer sees, its own included."""
    bos_token_id: int | None = None
    eos_token_id: int | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not self.layer_types:
            object.__setattr__(self, "layer_types", (FULL,) * self.layers)
        faults = list(_broken(self))
        if faults:
            raise PipelineError(faults)

    @classmethod
    def of(cls, target: PretrainedConfig, model: Model, mask_token_id: int) -> DrafterShape:
        """The drafter of a target (Llama, Qwen3 and whatever else has their configuration keys).

        `mask_token_id` is the one to use: `model.mask_token_id`, or the tokenizer's. Raises PipelineError with
        everything that is wrong: missing sizes, taps outside the target, a mask outside the vocabulary.
        """
        config = target.get_text_config()
        if faults := [*wrong_sizes(config)]:
            raise PipelineError(faults)
        heads, depth = config.num_attention_heads, config.num_hidden_layers
        return cls(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            heads=heads,
            kv_heads=_given(config, "num_key_value_heads", heads),
            head_dim=_given(config, "head_dim", config.hidden_size // heads),
            layers=model.drafter_layers,
            taps=model.taps or default_taps(depth, model.drafter_layers),
            block_size=model.block_size,
            vocab_size=config.vocab_size,
            mask_token_id=mask_token_id,
            target_layers=depth,
            rms_norm_eps=_given(config, "rms_norm_eps", 1e-6),
            rope_theta=float(_rope_theta(config)),
            max_position_embeddings=_given(config, "max_position_embeddings", 32_768),
            initializer_range=_given(config, "initializer_range", 0.02),
            bos_token_id=_given(config, "bos_token_id", None),
            eos_token_id=_ids(_given(config, "eos_token_id", None)),
        )


def wrong_sizes(config: PretrainedConfig) -> Iterator[Fault]:
    """What is wrong with the numbers of a target's configuration that its drafter is made of."""
    for name in (*_SIZES, *_OPTIONAL_SIZES):
        value = getattr(config, name, None)
        if (type(value) is not int or value < 1) and not (value is None and name in _OPTIONAL_SIZES):
            yield _not(name, value, "an integer >= 1")
    for name in _OPTIONAL_NUMBERS:
        value = _rope_theta(config) if name == "rope_theta" else getattr(config, name, None)
        if value is not None and not (type(value) in (int, float) and 0 < value < math.inf):
            yield _not(name, value, "a number > 0")


def _not(name: str, value: object, kind: str) -> Fault:
    rule = f"must be a target whose config.json gives {name} as {kind}"
    return Fault("model.name_or_path", ABSENT if value is None else value, rule, "choose another target, or repair it")


def _given(config: PretrainedConfig, name: str, default: Any) -> Any:
    value = getattr(config, name, None)
    return default if value is None else value


def _rope_theta(config: PretrainedConfig) -> Any:
    """The base where transformers 5 keeps it, or where version 4 kept it."""
    parameters = _given(config, "rope_parameters", {})
    kept = parameters.get("rope_theta") if isinstance(parameters, dict) else None
    return _given(config, "rope_theta", _ROPE_THETA) if kept is None else kept


def _ids(value: Any) -> int | tuple[int, ...] | None:
    return tuple(value) if isinstance(value, list) else value


def _broken(shape: DrafterShape) -> Iterator[Fault]:
    depth = shape.target_layers
    taps = shape.taps
    if not taps or any(b <= a for a, b in zip(taps, taps[1:], strict=False)) or not 0 <= taps[0] <= taps[-1] < depth:
        rule = f"must be increasing layer ids from 0 to {depth - 1}: the target has {depth} layers"
        yield Fault("model.taps", list(taps), rule, "give them, or fewer model.drafter_layers")
    if not 0 <= shape.mask_token_id < shape.vocab_size:
        rule = f"must be a token id from 0 to {shape.vocab_size - 1}, which the target's embeddings have"
        yield Fault("model.mask_token_id", shape.mask_token_id, rule, "choose a token that the data never holds")
    if shape.heads % shape.kv_heads:
        rule = f"must be a target whose {shape.heads} heads are a multiple of its key-value heads"
        yield Fault("model.name_or_path", shape.kv_heads, rule, "choose another target")
    if shape.head_dim % 2:
        yield Fault("model.name_or_path", shape.head_dim, "must be a target of even head size", "choose another")
    yield from _broken_layers(shape)


def _broken_layers(shape: DrafterShape) -> Iterator[Fault]:
    types = shape.layer_types
    if len(types) != shape.layers or not set(types) <= {FULL, SLIDING}:
        rule = f"must have layer_types of {shape.layers} layers, each {FULL} or {SLIDING}"
        yield Fault("model.warm_start", list(types), rule, "take another checkpoint")
    if SLIDING in types and (shape.sliding_window is None or shape.sliding_window < shape.block_size):
        rule = f"must have a sliding_window of at least a block ({shape.block_size}) for its sliding layers"
        value = ABSENT if shape.sliding_window is None else shape.sliding_window
        yield Fault("model.warm_start", value, rule, "take another checkpoint")
