"""How much memory of its device a worker will need, from shapes alone, before anything is loaded.

Counted from what the code keeps. Drafter: float32 weights, gradients and two moments (16 bytes a parameter), the
bfloat16 copies that autocast keeps until the backward pass (2 bytes), embedding and head, the buffers of arrived
batches, and the activations of one pass, listed below (turning by cosines and sines keeps nothing of its input).
Target: the layers up to the last tap, its slots, and one layer's states. On an H200 (Qwen3-1.7B shape, 8 × 2,048
tokens, 512 anchors, torch 2.11) a drafter allocated 40.09 GB at most against 40.08, a target 6.16 against 6.39.
"""

from dataclasses import dataclass

from dflash_run.model.losses import CHUNK_BYTES
from dflash_run.model.shape import DrafterShape
from dflash_run.transport.parcel import ITEM_BYTES
from policies.pipeline import Pipeline

TILE = 128


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes of one worker on its device, by what they are there for."""

    model: int
    """Weights and, of a drafter, gradients and optimizer state."""
    frozen: int
    """Embedding and head of the target (drafter)."""
    activations: int
    """States of one pass."""
    buffers: int
    """Batches of hidden states on this side."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.model + self.frozen + self.activations + self.buffers


def drafter_parameters(shape: DrafterShape) -> int:
    """Trainable numbers of a drafter."""
    h, queries, keys = shape.hidden_size, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layer = h * (2 * queries + 2 * keys + 3 * shape.intermediate_size) + 2 * h + 2 * shape.head_dim
    return len(shape.taps) * h * h + 2 * h + shape.layers * layer


def drafter_footprint(
    p: Pipeline, shape: DrafterShape, *, slot_bytes: int, samples: int, length: int, tied: bool
) -> Footprint:
    """Of a drafter whose largest micro-batch has `samples` of `length` tokens."""
    item = ITEM_BYTES[p.training.dtype]
    slots_each = -(-p.training.anchors * shape.block_size // TILE) * TILE
    together = min(samples, max(1, p.training.pass_slots // (p.training.anchors * shape.block_size)))
    copies = item * drafter_parameters(shape) if item == 2 else 0
    return Footprint(
        model=16 * drafter_parameters(shape) + copies,
        frozen=item * shape.vocab_size * shape.hidden_size * (1 if tied else 2),
        activations=_pass_bytes(shape, item, slots=together * slots_each, context=together * length),
        buffers=slot_bytes * (2 + p.dispatch.prefetch),
    )


def _pass_bytes(shape: DrafterShape, item: int, *, slots: int, context: int) -> int:
    """What a pass of so many block slots over so many context positions keeps until its backward pass, and the most
    that is alive beside it: the logits of a chunk, or the gradients in a layer's MLP."""
    h, i = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layer = slots * (
        4 * h  # the residual stream into both norms, and out of them
        + 4 * queries  # q as projected and as turned; the attention's output, and that output by rows
        + 4 * i  # gate, up, silu(gate), product
    ) + (slots + context) * 3 * keys  # k as projected and as turned; v
    around = 2 * context * h + 4 * slots * h  # fc's output and its norm; the last norm; slots asked, with their slope
    kept = item * (shape.layers * layer + around) + 4 * shape.layers * slots * shape.heads  # and log-sum-exps
    beside = max(2 * CHUNK_BYTES, item * slots * (3 * i + 2 * h))
    return kept + beside


def target_footprint(p: Pipeline, shape: DrafterShape, *, slot_bytes: int, slots: int, most: int) -> Footprint:
    """Of a target that computes at most `most` tokens at a time and keeps `slots` batches on its device."""
    item = ITEM_BYTES[p.model.dtype]
    h, i = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layers = shape.target_layers if p.training.loss == "soft" else shape.taps[-1] + 1
    weights = layers * (h * (2 * queries + 2 * keys + 3 * i) + 2 * h + 2 * shape.head_dim) + shape.vocab_size * h
    return Footprint(
        model=item * weights,
        frozen=0,
        activations=item * most * (3 * h + max(3 * i, 2 * queries + 4 * keys)),
        buffers=slot_bytes * slots,
    )
