"""What a step or an evaluation gave."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dflash_run.training.objective import Figure


class StepReport:
    """An optimizer step over all replicas. Reading a figure waits for the step; until then nothing is waited for."""

    def __init__(self, figures: Tensor, norm: Tensor, applied: Tensor, lr: float) -> None:
        """figures float32 [len(Figure)]; norm and applied: scalars; all on the replica's device."""
        self.lr = lr
        """Learning rate of the step."""
        together = torch.cat([figures, torch.stack([norm, applied.float()])])
        self._event: torch.cuda.Event | None = None
        if together.is_cuda:  # pageable memory would be waited for
            self._numbers = torch.empty(together.shape, pin_memory=True).copy_(together, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()
        else:
            self._numbers = together

    @cached_property
    def _read(self) -> list[float]:
        if self._event is not None:
            self._event.synchronize()
        numbers: list[float] = self._numbers.tolist()
        return numbers

    @property
    def loss(self) -> float:
        """Weighted mean of the slots' losses in nats; 0 for a step without weight."""
        return _ratio(self._read[Figure.LOSS], self._read[Figure.WEIGHT])

    @property
    def expected_accepted_length(self) -> float:
        """Leading slots predicted right, per anchor; a slot that does not count ends its block. No bonus token."""
        return _ratio(self._read[Figure.ACCEPTED], self._read[Figure.ANCHORS])

    @property
    def grad_norm(self) -> float:
        """Norm of the normalised gradient before it was clipped."""
        return self._read[-2]

    @property
    def applied(self) -> bool:
        """Whether the weights moved: not in a step without weight or with a gradient that is not finite."""
        return self._read[-1] > 0

    @property
    def weight(self) -> float:
        """Total weight of the step's slots."""
        return self._read[Figure.WEIGHT]

    @property
    def anchors(self) -> int:
        """Blocks trained."""
        return int(self._read[Figure.ANCHORS])

    @property
    def tokens(self) -> int:
        """Real tokens of the samples trained."""
        return int(self._read[Figure.TOKENS])

    @property
    def samples(self) -> int:
        """Samples trained, those without anchors included."""
        return int(self._read[Figure.SAMPLES])

    @property
    def samples_without_anchors(self) -> int:
        """Samples that contributed nothing."""
        return int(self._read[Figure.WITHOUT_ANCHORS])


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Held-out figures."""

    loss: float
    """Weighted mean of the slots' losses in nats."""
    expected_accepted_length: float
    """Leading slots predicted right, per anchor, without the bonus token."""
    anchors: int
    """Blocks that were asked."""

    @classmethod
    def of(cls, figures: list[float]) -> Evaluation:
        """From the sums, one for each Figure."""
        return cls(
            loss=_ratio(figures[Figure.LOSS], figures[Figure.WEIGHT]),
            expected_accepted_length=_ratio(figures[Figure.ACCEPTED], figures[Figure.ANCHORS]),
            anchors=int(figures[Figure.ANCHORS]),
        )


def _ratio(total: float, count: float) -> float:
    return total / count if count > 0 else 0.0
