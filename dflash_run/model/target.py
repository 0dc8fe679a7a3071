"""The frozen target: runs a batch and keeps the tapped layers' outputs, nothing else.

Layers above the last tap and the head are never loaded. Hooks write each tapped output straight into its columns of
the caller's buffer, so that at no time more than one layer's states exist beside it.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from dflash_run.data.faults import reason_of, refused
from dflash_run.model.config import check_taps, target_config, unusable
from dflash_run.model.quiet import quiet
from dflash_run.model.random_weights import fill_
from policies.faults import PipelineError, shown
from policies.sections.training import Model

BUILDABLE: Final = ("must have a config.json that its layers can be built from", "repair it, or take another target")
"""Rule and remedy."""
_NO_WEIGHTS: Final = "for measurements without weights set model.random_weights: true"


class TappedTarget:
    """A causal language model of transformers, frozen, without its head."""

    def __init__(
        self,
        model: Model,
        taps: Sequence[int],
        devices: Sequence[str | torch.device] = ("cpu",),
        *,
        keep_last: bool = False,
        seed: int = 0,
    ) -> None:
        """Load the target onto `devices`: one, or several GPUs over which its layers are spread evenly.

        `taps`: ids of layers, rising; tap l is the output of layer l. `keep_last`: also keep the state that the
        head would read. `seed`: of random weights. Raises PipelineError for a target that cannot be used.

        Not from several threads at once: while it is built, torch's default dtype is another for all of them.
        """
        config = target_config(model)
        check_taps(tuple(taps), config)
        self.taps = tuple(taps)
        self.keep_last = keep_last
        self.devices = tuple(torch.device(each) for each in devices)
        self.device = self.devices[0]
        """Where inputs go and, unless the caller gives a buffer, outputs come."""
        self.dtype: torch.dtype = getattr(torch, model.dtype)
        self.layers: int = config.num_hidden_layers
        """The target's depth, layers that were not loaded included."""
        self.hidden_size: int = config.hidden_size
        self.vocab_size: int = config.vocab_size
        loaded = config if keep_last else first_layers(config, self.taps[-1] + 1)
        load = _random if model.random_weights else load_pretrained
        self.module = load(model, loaded, self.devices, self.dtype, seed).eval().requires_grad_(False)
        self._blocks = layers_of(self.module, model)
        if not keep_last:
            self.module.norm = nn.Identity()  # of a state that nobody reads

    @property
    def width(self) -> int:
        """Columns of the output: taps × hidden size, and one hidden size more with `keep_last`."""
        return (len(self.taps) + self.keep_last) * self.hidden_size

    @torch.no_grad()
    def run(self, input_ids: Tensor, lengths: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """The states of a batch: [B, S, width] in the target's dtype, taps side by side, then the last state.

        `input_ids`: integers [B, S], padded on the right; attention is causal, so that padding changes nothing
        before it. `lengths`: integers [B] on the CPU; states beyond them come out as zeros (None: whatever the
        padding gives). `out`: where to write, on any device; a pinned host buffer is written asynchronously, so
        synchronise before reading. Raises ValueError for an `out` of another shape or dtype.
        """
        shape = (*input_ids.shape, self.width)
        if out is None:
            out = torch.empty(shape, dtype=self.dtype, device=self.device)
        elif out.shape != shape or out.dtype != self.dtype:
            raise ValueError(f"out must be {self.dtype} {shape}, not {out.dtype} {tuple(out.shape)}")
        size = self.hidden_size
        columns = [out[..., at : at + size] for at in range(0, self.width, size)]
        padding = _padding(input_ids, lengths, self.device)
        with self._hooked(columns, padding):
            last = self.module(input_ids=input_ids.to(self.device), use_cache=False).last_hidden_state
        if self.keep_last:
            _keep(columns[-1], last, padding)
        return out

    @contextmanager
    def _hooked(self, columns: Sequence[Tensor], padding: Tensor | None) -> Iterator[None]:
        """While it lasts, each tapped layer's output is copied into its columns."""

        def hook(column: Tensor, module: nn.Module, args: object, output: Any) -> None:
            _keep(column, output[0] if isinstance(output, tuple) else output, padding)

        handles = [
            self._blocks[tap].register_forward_hook(partial(hook, column))
            for tap, column in zip(self.taps, columns, strict=False)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _padding(input_ids: Tensor, lengths: Tensor | None, device: torch.device) -> Tensor | None:
    """bool[B, S, 1] on `device`, true beyond each length; None where there is no padding."""
    slots = input_ids.shape[1]
    if lengths is None or int(lengths.min()) >= slots:
        return None
    return torch.arange(slots, device=device)[None, :, None] >= lengths.to(device)[:, None, None]


def _keep(column: Tensor, states: Tensor, padding: Tensor | None) -> None:
    if padding is not None:
        states = states.masked_fill(padding.to(states.device), 0)
    column.copy_(states, non_blocking=True)


def first_layers(config: Any, count: int) -> Any:
    """A copy of a configuration that has the first `count` layers only."""
    config = copy.deepcopy(config)
    config.num_hidden_layers = count
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = config.layer_types[:count]
    return config


def layers_of(module: nn.Module, model: Model) -> nn.ModuleList:
    """The layers, where Llama has them. Raises PipelineError for a target that is laid out otherwise."""
    layers = getattr(module, "layers", None)
    if not isinstance(layers, nn.ModuleList) or not hasattr(module, "norm") or not hasattr(module, "embed_tokens"):
        rule = f"must have embed_tokens, layers and norm as Llama has them: {type(module).__name__} has not"
        raise unusable(model, rule, "give a target of that layout: Llama, Mistral, Qwen2, Qwen3 and the like")
    return layers


def built(config: Any, attention: str, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """A configuration's model whose weights have no values. Raises whatever the library does."""
    import transformers
    from transformers.initialization import no_init_weights

    auto: Any = transformers.AutoModel
    with device, no_init_weights():
        module: nn.Module = auto.from_config(
            config, dtype=dtype, attn_implementation=attention, trust_remote_code=False
        )
    return module


@contextmanager
def _told(model: Model, rule: str, remedy: str) -> Iterator[None]:
    """What the library raises meanwhile is told as a fault: whatever a broken folder leads to is the user's to mend."""
    try:
        with quiet():
            yield
    except (PipelineError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if isinstance(error, ImportError) and "flash" in str(error).lower():
            rule = f"needs a package ({reason_of(error)})"
            raise refused("model.attention", model.attention, rule, "sdpa needs none") from None
        raise unusable(model, f"{rule} ({_reason(error)})", remedy) from None


def _reason(error: Exception) -> str:
    """A KeyError's text is the key alone."""
    return f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else reason_of(error)


def load_pretrained(
    model: Model, config: Any, devices: Sequence[torch.device], dtype: torch.dtype, seed: int | None
) -> nn.Module:
    """The model with its weights. On the device meta they are held against the files' heads, but for the numbers.

    Raises PipelineError where they cannot be loaded.
    """
    import transformers

    auto: Any = transformers.AutoModel
    with _told(model, *_loadable(config)):
        module, found = auto.from_pretrained(
            model.name_or_path,
            revision=model.revision,
            config=config,
            dtype=dtype,
            attn_implementation=model.attention,
            device_map=_device_map(config, devices),
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # told below, by name
        )
    lacking = sorted(found["missing_keys"]) or sorted(str(each[0]) for each in found["mismatched_keys"])
    if lacking:
        rule = f"must hold every weight of the target: {lacking[0]} is missing or has another shape"
        raise unusable(model, rule, f"give a complete folder; {_NO_WEIGHTS}")
    placed: nn.Module = module if len(devices) > 1 else module.to(devices[0])
    return placed


def _loadable(config: Any) -> tuple[str, str]:
    """Rule and remedy of weights that the library refuses."""
    quantised = getattr(config, "quantization_config", None)
    if quantised is None:
        return "must hold weights that can be loaded", f"give a complete folder with safetensors; {_NO_WEIGHTS}"
    method = quantised.get("quant_method") if isinstance(quantised, dict) else getattr(quantised, "quant_method", None)
    rule = f"must hold weights that can be loaded here: its config.json says that they are quantised by {shown(method)}"
    return rule, f"install what that needs, or give the target as it was before; {_NO_WEIGHTS}"


def _device_map(config: Any, devices: Sequence[torch.device]) -> Any:
    """Where the library puts the weights while it loads; None: on the host."""
    if len(devices) > 1:
        return _spread(config, devices)
    return devices[0] if devices[0].type == "meta" else None


def _random(
    model: Model, config: Any, devices: Sequence[torch.device], dtype: torch.dtype, seed: int | None
) -> nn.Module:
    """The target's shape with random weights; built on the first device in its dtype, whatever its size.

    Without a seed they have no values.
    """
    with _told(model, *BUILDABLE):
        module = built(config, model.attention, devices[0], dtype)
    if seed is not None:
        for name, parameter in module.named_parameters():
            fill_(parameter, name, seed, config.initializer_range)
    if len(devices) > 1:
        from accelerate import dispatch_model

        module = dispatch_model(module, _spread(config, devices))
    return module


def _spread(config: Any, devices: Sequence[torch.device]) -> dict[str, Any]:
    """Module → device: layers in order, evenly; what comes before them with the first, what comes after with the last.

    Which modules there are only the model's class says: an empty one is built to ask it.
    """
    import transformers

    auto: Any = transformers.AutoModel
    with torch.device("meta"):
        skeleton: nn.Module = auto.from_config(config, trust_remote_code=False)
    places: dict[str, Any] = {}
    at = devices[0]
    for name, child in skeleton.named_children():
        if name == "layers":
            count = len(list(child.children()))
            for index in range(count):
                at = devices[index * len(devices) // count]
                places[f"layers.{index}"] = at
        else:
            places[name] = devices[0] if any(True for _ in child.buffers()) else at
    return places
