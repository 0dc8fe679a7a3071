"""Tiny drafters, micro-batches, and a drafter's loss written as plainly as the paper's formulas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dflash_run.model.anchors import draw_anchors
from dflash_run.model.drafter import Drafter
from dflash_run.model.shape import DrafterShape
from dflash_run.training.batch import MicroBatch
from dflash_run.training.replica import Replica
from policies.sections.training import Training

torch.set_num_threads(1)

SHAPE = DrafterShape(
    hidden_size=32,
    intermediate_size=48,
    heads=4,
    kv_heads=2,
    head_dim=16,
    layers=2,
    taps=(1, 3),
    block_size=4,
    vocab_size=53,
    mask_token_id=52,
    target_layers=6,
    initializer_range=0.2,
)
SLIDING = replace(SHAPE, layer_types=("sliding_attention", "full_attention"), sliding_window=5)


def training(**changes: Any) -> Training:
    """Settings in float32 with few anchors."""
    return Training(**{"dtype": "float32", "anchors": 5, "warmup": 0.0, "learning_rate": 1e-2, **changes})


def batch(
    lengths: list[int],
    *,
    seed: int = 0,
    ids: list[int] | None = None,
    supervised: float = 0.8,
    documents: bool = False,
    shape: DrafterShape = SHAPE,
    epoch: int = 0,
) -> MicroBatch:
    """A micro-batch whose every sample depends on its id alone, so that it can be batched otherwise too."""
    ids = list(range(len(lengths))) if ids is None else ids
    samples, span, width = len(lengths), max(lengths), shape.hidden_size
    features = torch.zeros(samples, span, len(shape.taps) * width)
    last = torch.zeros(samples, span, width)
    tokens = torch.zeros(samples, span, dtype=torch.int64)
    mask = torch.zeros(samples, span, dtype=torch.bool)
    papers = torch.zeros(samples, span, dtype=torch.int64)
    for row, (sample, length) in enumerate(zip(ids, lengths, strict=True)):
        draw = torch.Generator().manual_seed(1000 * seed + sample)
        features[row, :length] = torch.randn(length, features.shape[-1], generator=draw)
        last[row, :length] = torch.randn(length, width, generator=draw)
        tokens[row, :length] = torch.randint(shape.vocab_size - 1, (length,), generator=draw)
        mask[row, :length] = torch.rand(length, generator=draw) < supervised
        papers[row, :length] = (torch.rand(length, generator=draw) < 0.15).cumsum(0)
    return MicroBatch(
        features=features,
        last=last,
        input_ids=tokens,
        loss_mask=mask,
        lengths=torch.tensor(lengths),
        sample_ids=np.array(ids, dtype=np.int64),
        epoch=epoch,
        documents=papers if documents else None,
    )


def target(shape: DrafterShape = SHAPE) -> tuple[Tensor, Tensor]:
    """Embeddings and head [V, H] of a target that never was."""
    draw = torch.Generator().manual_seed(7)
    embed = torch.randn(shape.vocab_size, shape.hidden_size, generator=draw)
    return embed, torch.randn(shape.vocab_size, shape.hidden_size, generator=draw) / 4


def replica(settings: Training | None = None, shape: DrafterShape = SHAPE, seed: int = 3) -> Replica:
    """A replica on the host."""
    embed, head = target(shape)
    return Replica(shape, training=settings or training(), embed=embed, head=head, seed=seed)


def naive_sums(
    drafter: Drafter, settings: Training, each: MicroBatch, seed: int = 3
) -> tuple[Tensor, float, int, int]:
    """Loss sum, weight sum, accepted and anchors, one block after the other.

    It shares no code with the trainer but the drawing of anchors.
    """
    drawn = draw_anchors(
        each.loss_mask.numpy(),
        each.lengths.numpy(),
        each.sample_ids,
        seed=seed,
        epoch=each.epoch,
        most=settings.anchors,
        documents=None if each.documents is None else each.documents.numpy(),
    )
    loss, weight, accepted = torch.zeros(()), 0.0, 0
    for row, count in enumerate(drawn.counts):
        for anchor in drawn.positions[row, :count]:
            one = _naive_block(drafter, settings, each, row, int(anchor))
            loss, weight, accepted = loss + one[0], weight + one[1], accepted + one[2]
    return loss, weight, accepted, int(drawn.counts.sum())


def _naive_block(
    drafter: Drafter, settings: Training, each: MicroBatch, row: int, anchor: int
) -> tuple[Tensor, float, int]:
    shape = drafter.shape
    embed, head = target(shape)
    papers = torch.zeros_like(each.input_ids) if each.documents is None else each.documents
    tokens = [int(each.input_ids[row, anchor])] + [shape.mask_token_id] * (shape.block_size - 1)
    hidden = naive_block_states(drafter, each.features[row], papers[row], embed[tokens], anchor)
    log_p = (hidden @ head.T).log_softmax(-1)
    counts, losses, chances, right = [], [], [], []
    for k in range(1, shape.block_size):
        place = anchor + k
        inside = place < int(each.lengths[row])
        counts.append(bool(inside and each.loss_mask[row, place] and papers[row, place] == papers[row, anchor]))
        label = int(each.input_ids[row, min(place, each.input_ids.shape[1] - 1)])
        assert each.last is not None
        teacher = (each.last[row, min(place, each.input_ids.shape[1]) - 1] @ head.T).softmax(-1)
        losses.append(-log_p[k, label] if settings.loss == "ce" else -(teacher * log_p[k]).sum())
        chances.append(float(log_p[k, label].detach().exp()) if counts[-1] else 1.0)
        right.append(counts[-1] and int(log_p[k].argmax()) == label)
    weights = _naive_weights(settings, shape.block_size, counts, chances)
    total = sum((w * one for w, one, m in zip(weights, losses, counts, strict=True) if m), torch.zeros(()))
    accepted = right.index(False) if False in right else len(right)
    return total, sum(w for w, m in zip(weights, counts, strict=True) if m), accepted


def _naive_weights(settings: Training, block: int, counts: list[bool], chances: list[float]) -> list[float]:
    if settings.weights == "decay":
        gamma = settings.gamma or block / 2  # the rule for blocks of at most 8
        return [float(np.exp(-(k - 1) / gamma)) for k in range(1, block)]
    q = [(1 - settings.alpha) * c + settings.alpha if m else 1.0 for c, m in zip(chances, counts, strict=True)]
    reach = [float(np.prod(q[: j + 1])) for j in range(len(q))]
    return [sum(reach[i] for i in range(j, len(q)) if counts[i]) for j in range(len(q))]


def naive_block_states(
    drafter: Drafter, features: Tensor, papers: Tensor, embeddings: Tensor, anchor: int
) -> Tensor:
    """Hidden states [B, H] of one block, seeing only the context that its anchor allows; features [S, K·H]."""
    shape, w = drafter.shape, dict(drafter.named_parameters())

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + shape.rms_norm_eps).sqrt() * w[f"{name}.weight"]

    def turn(x: Tensor, position: int) -> Tensor:  # x [heads, d]
        half = shape.head_dim // 2
        angle = position * torch.tensor([shape.rope_theta ** (-2 * i / shape.head_dim) for i in range(half)])
        a, b = x[:, :half], x[:, half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    context = norm(features @ w["fc.weight"].T, "hidden_norm")
    z = embeddings
    for i, kind in enumerate(shape.layer_types):
        name = f"layers.{i}"
        x = norm(z, f"{name}.input_layernorm")
        out = []
        for slot in range(shape.block_size):
            seen = [(context[t], t) for t in range(anchor) if papers[t] == papers[anchor]]
            if kind == "sliding_attention":
                assert shape.sliding_window is not None
                seen = [(c, t) for c, t in seen if anchor + slot - t < shape.sliding_window]
            seen += [(x[j], anchor + j) for j in range(shape.block_size)]

            def heads(vector: Tensor, which: str, prefix: str = name) -> Tensor:
                return (w[f"{prefix}.self_attn.{which}_proj.weight"] @ vector).view(-1, shape.head_dim)

            q = turn(norm(heads(x[slot], "q"), f"{name}.self_attn.q_norm"), anchor + slot)
            keys = torch.stack([turn(norm(heads(c, "k"), f"{name}.self_attn.k_norm"), t) for c, t in seen])
            values = torch.stack([heads(c, "v") for c, _ in seen])  # [T, kv_heads, d]
            group = shape.heads // shape.kv_heads
            found = []
            for head in range(shape.heads):
                score = keys[:, head // group] @ q[head] / shape.head_dim**0.5
                found.append(score.softmax(0) @ values[:, head // group])
            out.append(w[f"{name}.self_attn.o_proj.weight"] @ torch.cat(found))
        z = z + torch.stack(out)
        x = norm(z, f"{name}.post_attention_layernorm")
        gate, up = x @ w[f"{name}.mlp.gate_proj.weight"].T, x @ w[f"{name}.mlp.up_proj.weight"].T
        z = z + (functional.silu(gate) * up) @ w[f"{name}.mlp.down_proj.weight"].T
    return norm(z, "norm")
