"""Matrix products of the sizes that a plan's batches will need, launched once before the threads begin.

cuBLAS takes another kernel for many a number of rows, and whoever launches a kernel for the first time in a process
waits for all that was launched on any stream, as do all who launch after it: on an H200 split for 5 + 3 all eight
stood still for 0.3 s, fifty times in a first run. The rows of most products are a batch's slots, one number a batch;
those of the head are what is left of the slots that count after whole chunks, any number.
Not foreseen: batches that a drafter takes in several passes, and kernels of other libraries.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn
from torch.nn import functional

from dflash_run.model.config import target_config
from dflash_run.model.drafter import Drafter
from dflash_run.model.shape import DrafterShape
from dflash_run.model.target import built, first_layers
from policies.sections.training import Model

_META: Final = torch.device("meta")


@dataclass(frozen=True)
class Product:
    """A linear layer of so many inputs and outputs, applied to rows."""

    inputs: int
    outputs: int
    dtype: torch.dtype
    learns: bool = False
    """Its weights get gradients."""
    passes: bool = False
    """Its inputs get gradients."""


def products_of_target(model: Model, layers: int) -> set[Product]:
    """Of the target's first `layers` layers. Raises PipelineError for a target that cannot be used."""
    dtype = getattr(torch, model.dtype)
    module = built(first_layers(target_config(model), layers), model.attention, _META, dtype)
    linears = (each for each in module.modules() if isinstance(each, nn.Linear))
    return {Product(each.in_features, each.out_features, dtype) for each in linears}


def products_of_drafter(shape: DrafterShape, dtype: torch.dtype) -> set[Product]:
    """Of a drafter's layers that see the whole context; those that see blocks only have the same rows each time."""
    drafter = Drafter(shape, seed=0, device=_META)
    found = {Product(drafter.fc.in_features, drafter.fc.out_features, dtype, learns=True)}
    for name, each in drafter.named_modules():
        if name.endswith((".k_proj", ".v_proj")) and isinstance(each, nn.Linear):
            found.add(Product(each.in_features, each.out_features, dtype, learns=True, passes=True))
    return found


def product_of_head(shape: DrafterShape, dtype: torch.dtype) -> Product:
    """From hidden states to logits and back; the head is frozen."""
    return Product(shape.hidden_size, shape.vocab_size, dtype, passes=True)


@torch.no_grad()
def launch(products: Iterable[Product], rows: Iterable[int], device: torch.device) -> None:
    """Compute each product for each number of rows, and its gradients, and let go of everything."""
    sizes = sorted(set(rows))
    if not sizes:
        return
    for product in products:
        x = torch.zeros(sizes[-1], product.inputs, dtype=product.dtype, device=device)
        y = torch.zeros(sizes[-1], product.outputs, dtype=product.dtype, device=device)
        weight = torch.zeros(product.outputs, product.inputs, dtype=product.dtype, device=device)
        for size in sizes:
            functional.linear(x[:size], weight)
            if product.passes:
                y[:size] @ weight
            if product.learns:
                y[:size].t() @ x[:size]
