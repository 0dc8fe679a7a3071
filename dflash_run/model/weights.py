"""How much each slot of a block weighs in the loss."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_SIZES, _GAMMAS = (8, 10, 16), (4.0, 5.0, 7.0)


def default_gamma(block_size: int) -> float:
    """The paper's decay: 4, 5, 7 for blocks of 8, 10, 16.

    Linear between them, and proportional to the block size outside, with the ratio of the nearer end.
    """
    nearest = min(max(block_size, _SIZES[0]), _SIZES[-1])
    return float(np.interp(nearest, _SIZES, _GAMMAS)) * block_size / nearest


def decay_weights(block_size: int, gamma: float | None, device: torch.device | str = "cpu") -> Tensor:
    """float32 [B]: exp(-(k - 1) / gamma) for slots k >= 1, 0 for the verified token at k = 0."""
    k = torch.arange(block_size, device=device, dtype=torch.float32)
    weights = torch.exp((1 - k) / (gamma or default_gamma(block_size)))
    weights[0].zero_()
    return weights


def dpace_weights(entropy: Tensor, counts: Tensor, alpha: float) -> Tensor:
    """D-PACE: what a slot's being right is worth to the expected accepted length of its block.

    entropy float32 [M, B], cross-entropy to the data's token in nats; counts bool [M, B]. With
    q_k = (1 - alpha)·exp(-entropy_k) + alpha, or 1 where a slot does not count, and C_j = q_1 ⋯ q_j, the weight of
    slot j is the sum of C_i over the slots i >= j that count. Returns float32 [M, B], detached, 0 at k = 0.
    """
    chance = (1 - alpha) * torch.exp(-entropy.detach()) + alpha
    reach = chance.masked_fill(~counts, 1.0).cumprod(1) * counts  # [M, B]; slot 0 never counts
    weights = reach.flip(1).cumsum(1).flip(1)
    return weights * counts
