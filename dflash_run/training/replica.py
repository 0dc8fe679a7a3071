"""One replica of the drafter: sums of gradients from micro-batches, and the optimizer step that they make together.

All gradients and the figures that normalise them lie in one flat buffer, so that one all-reduce of it makes a step
global. What is summed is never divided before `apply`: the mean is over all slots of all replicas and micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch import Tensor

from dflash_run.model.drafter import Drafter
from dflash_run.model.shape import DrafterShape
from dflash_run.model.tensorfile import read_tensors, write_tensors
from dflash_run.training.batch import MicroBatch
from dflash_run.training.objective import Figure, Objective
from dflash_run.training.report import Evaluation, StepReport
from dflash_run.training.schedule import learning_rate
from policies.sections.training import Training

WEIGHTS: Final = "weights.safetensors"
OPTIMIZER: Final = "optimizer.safetensors"
HELD_OUT: Final = -1
"""Epoch whose anchors held-out samples always have."""
_MOMENTS: Final = ("exp_avg", "exp_avg_sq", "step")


class Replica:
    """A drafter with its optimizer, on one device. For one thread."""

    def __init__(
        self,
        shape: DrafterShape,
        *,
        training: Training,
        embed: Tensor,
        head: Tensor,
        seed: int,
        weights: Mapping[str, Tensor] | None = None,
    ) -> None:
        """A new drafter, or one that starts from `weights` (all of them, as `read_exported` gives them).

        embed and head: the target's, [V, H], on the device to train on. The seed decides weights and anchors.
        """
        self.drafter = Drafter(shape, seed=seed, device=embed.device)
        if weights is not None:
            self.drafter.load_state_dict(weights)
        self._training = training
        self._samples = max(1, training.pass_slots // (training.anchors * shape.block_size))
        """Samples that go through the drafter at once: activations are what its memory is needed for."""
        self._objective = Objective(shape, training, embed, head, seed=seed)
        parameters = list(self.drafter.parameters())
        size = sum(parameter.numel() for parameter in parameters)
        self.flat = torch.zeros(size + len(Figure), device=embed.device)
        """float32: all gradient sums, then one sum for each Figure; what is to be all-reduced."""
        self._gradient, self._tail = self.flat[:size], self.flat[size:]
        parts = torch.split(self._gradient, [parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view(parameter.shape)  # backward passes add into it in place
        self._optimizer = _optimizer(parameters, training)

    def micro_batch(self, batch: MicroBatch, passed: Callable[[str], None] | None = None) -> None:
        """Add a micro-batch's gradient and figures to `flat`. If it raises, `flat` is undefined: `drop` it.

        `passed` is told when a forward pass is launched, and a backward pass.
        """
        for part in batch.split(self._samples):
            sums = self._objective.sums(self.drafter, part, epoch=batch.epoch)
            if passed is not None:
                passed("forward")
            if sums.loss is not None:
                sums.loss.backward()  # type: ignore[no-untyped-call]
            self._tail.add_(sums.figures)
            if passed is not None:
                passed("backward")

    def apply(self, progress: float) -> StepReport:
        """Step with what is in `flat`, and empty it; `progress` is the share of planned batches trained, these too.

        A step without weight, or whose gradient is not finite, moves neither weights nor optimizer. The device is
        not waited for; reading the report waits.
        """
        figures = self._tail.clone()
        weight = figures[Figure.WEIGHT]
        scale = torch.where(weight > 0, 1 / weight, 0.0)
        norm = torch.linalg.vector_norm(self._gradient) * scale
        applied = (weight > 0) & norm.isfinite()
        self._gradient.mul_(scale * (self._training.clip / (norm + 1e-6)).clamp(max=1.0))
        lr = learning_rate(progress, peak=self._training.learning_rate, warmup=self._training.warmup)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        # The fused step reads this on the device: a branch here would wait for the sums.
        cast(Any, self._optimizer).found_inf = (~applied).float()
        self._optimizer.step()
        self.drop()
        return StepReport(figures, norm, applied, lr)

    @torch.no_grad()
    def restart(self, seed: int) -> None:
        """As new: the weights that this seed gives, and an optimizer that has done nothing."""
        self.drafter.initialise(seed)
        for tensor in self._moments().values():
            tensor.zero_()
        self.drop()

    def drop(self) -> None:
        """Forget what was summed."""
        self.flat.zero_()

    @torch.no_grad()
    def evaluate(self, batches: Iterable[MicroBatch]) -> Evaluation:
        """Held-out figures, with anchors that are the same every time; changes nothing."""
        figures = torch.zeros(len(Figure), dtype=torch.float64, device=self.flat.device)
        for batch in batches:
            for part in batch.split(self._samples):
                figures += self._objective.sums(self.drafter, part, epoch=HELD_OUT).figures
        return Evaluation.of(figures.tolist())

    def state(self) -> list[Tensor]:
        """Weights and optimizer state, the tensors themselves, in an order that all replicas share."""
        return [*self._weights().values(), *self._moments().values()]

    def save(self, folder: Path) -> None:
        """Write weights and optimizer state, float32, into a folder, which is made. What is in `flat` is not kept."""
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / WEIGHTS, self._weights())
        write_tensors(folder / OPTIMIZER, self._moments())

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Take over what `save` wrote, and empty `flat`. Raises PipelineError, changing nothing, where it misfits."""
        pairs = []
        for file, ours in ((WEIGHTS, self._weights()), (OPTIMIZER, self._moments())):
            found = read_tensors(folder / file, ours, str(folder / file))
            pairs += [(tensor, found[name]) for name, tensor in ours.items()]
        for tensor, value in pairs:
            tensor.copy_(value)
        self.drop()

    def _weights(self) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in self.drafter.named_parameters()}

    def _moments(self) -> dict[str, Tensor]:
        state = self._optimizer.state
        return {f"{n}.{m}": state[p][m] for n, p in self.drafter.named_parameters() for m in _MOMENTS}


def kept_tensors(shape: DrafterShape) -> dict[str, dict[str, Tensor]]:
    """What `Replica.save` writes for a drafter: by file and name, tensors of the device `meta`."""
    weights = dict(Drafter(shape, seed=0, device="meta").named_parameters())
    once = torch.empty((), device="meta")
    moments = {f"{n}.{m}": once if m == "step" else p for n, p in weights.items() for m in _MOMENTS}
    return {WEIGHTS: {name: weight.detach() for name, weight in weights.items()}, OPTIMIZER: moments}


def _optimizer(parameters: list[torch.nn.Parameter], training: Training) -> torch.optim.AdamW:
    """Fused AdamW whose state exists from the start, so that it can be sent and received before the first step.

    Norms are not decayed.
    """
    matrices = [parameter for parameter in parameters if parameter.dim() > 1]
    norms = [parameter for parameter in parameters if parameter.dim() == 1]
    groups = [{"params": matrices, "weight_decay": training.weight_decay}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=training.learning_rate, fused=True)
    for parameter in parameters:
        optimizer.state[parameter] = {
            "step": torch.zeros((), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer
