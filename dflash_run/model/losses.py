"""Losses of the slots that count, with the vocabulary's logits in being for a chunk of slots at a time.

The head is frozen, so the gradient of a slot's loss with respect to its hidden state is a vector of its own,
(softmax - target) · head, which the forward pass computes while it has the logits. The backward pass only scales it
by what the slot turned out to weigh: weights may depend on all losses (D-PACE), and no logits are computed twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import Tensor

CHUNK_BYTES: Final = 1 << 30
"""Size of a chunk's logits in float32; a second tensor of that size (the target's) comes with soft losses."""


@dataclass(frozen=True)
class SlotLosses:
    """One number per slot that counts, N in all."""

    loss: Tensor
    """float32 [N], differentiable with respect to the hidden states."""
    entropy: Tensor
    """float32 [N], cross-entropy to the data's token, detached."""
    correct: Tensor
    """bool [N]: the most likely token is the data's."""


def slot_losses(
    hidden: Tensor, head: Tensor, labels: Tensor, last: Tensor | None = None, *, rows: int | None = None
) -> SlotLosses:
    """Losses of hidden [N, H] through the frozen head [V, H], all of hidden's dtype; N may be 0.

    labels int64 [N]. last [N, H]: the target's last hidden states, after its final norm, that predict the same
    tokens: the loss is the cross-entropy to the target's distribution instead of the data's token. Memory is
    O(rows · V); rows defaults to CHUNK_BYTES of logits.
    """
    rows = rows or chunk_rows(len(head))
    loss, entropy, correct = cast(tuple[Tensor, Tensor, Tensor], _apply(hidden, head, labels, last, rows))
    return SlotLosses(loss, entropy, correct)


def chunk_rows(vocab_size: int) -> int:
    """Slots whose logits are in being at a time."""
    return max(1, CHUNK_BYTES // (4 * vocab_size))


class _Head(torch.autograd.Function):
    """Frozen head and cross-entropy in one."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, labels: Tensor, last: Tensor | None, rows: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        count = len(hidden)
        loss = torch.empty(count, dtype=torch.float32, device=hidden.device)
        entropy, correct = torch.empty_like(loss), torch.empty_like(labels, dtype=torch.bool)
        slope = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None  # [N, H]
        for start in range(0, count, rows):
            part = slice(start, start + rows)
            index = labels[part, None]
            logits = (hidden[part] @ head.T).float()  # [rows, V]
            scale = logits.logsumexp(1)
            correct[part] = logits.argmax(1) == labels[part]
            entropy[part] = scale - logits.gather(1, index).squeeze(1)
            wanted = None if last is None else (last[part] @ head.T).float().softmax(1)
            loss[part] = entropy[part] if wanted is None else scale - (wanted * logits).sum(1)
            if slope is not None:
                surplus = logits.sub_(scale[:, None]).exp_()  # softmax - target
                if wanted is None:
                    surplus.scatter_add_(1, index, surplus.new_full((1, 1), -1.0).expand(index.shape))
                else:
                    surplus.sub_(wanted)
                slope[part] = surplus.to(head.dtype) @ head
                del surplus
            del logits, wanted  # or they would still be there when the next chunk's are made
        ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(entropy, correct)
        return loss, entropy, correct

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None, None, None]:
        (slope,) = ctx.saved_tensors
        scaled = torch.mul(slope, slopes[0][:, None], out=torch.empty_like(slope))  # float32 weights, no copy
        return scaled, None, None, None, None


_apply = cast(Any, _Head.apply)
