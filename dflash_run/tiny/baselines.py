"""What a trained drafter is compared with: the same drafter untrained, and a bigram of the training samples."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from dflash_run.data.bigram import bigram_accepted_length
from dflash_run.training.heldout import HELD_OUT_BATCH
from dflash_run.training.preparation import Preparation
from dflash_run.training.train import HELD_OUT_SAMPLES

LOSS: Final = "held_out_loss"
ACCEPTED: Final = "held_out_expected_accepted_length"


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Held-out figures of something that drafts."""

    accepted: float
    """Expected accepted length, without the bonus token."""
    loss: float | None = None
    """Nats; None for what gives no distribution."""


def bigram(prepared: Preparation) -> Figures:
    """The most frequent successor in the training samples, over every anchor of the held-out ones."""
    plan, block = prepared.plan, prepared.pipeline.model.block_size
    return Figures(accepted=bigram_accepted_length(prepared.corpus, plan.train, plan.held_out, block))


def untrained(prepared: Preparation) -> Figures:
    """The drafter with which the training begins, on the CPU, with the samples and anchors of its evaluations."""
    import torch

    from dflash_run.model.config import target_config
    from dflash_run.model.frozen import load_frozen
    from dflash_run.model.shape import DrafterShape
    from dflash_run.model.target import TappedTarget
    from dflash_run.training.batch import MicroBatch
    from dflash_run.training.replica import Replica

    pipeline = prepared.pipeline
    shape = DrafterShape.of(target_config(pipeline.model), pipeline.model, prepared.mask_token_id)
    frozen = load_frozen(pipeline.model, torch.device("cpu"), torch.float32, pipeline.seed)
    target = TappedTarget(pipeline.model, shape.taps, ("cpu",), seed=pipeline.seed)
    replica = Replica(shape, training=pipeline.training, embed=frozen.embed, head=frozen.head, seed=pipeline.seed)

    def held_out() -> Iterator[MicroBatch]:
        chosen = prepared.plan.held_out[:HELD_OUT_SAMPLES]
        for start in range(0, len(chosen), HELD_OUT_BATCH):
            samples = chosen[start : start + HELD_OUT_BATCH]
            given = prepared.corpus.pad(samples)
            ids, lengths = torch.from_numpy(given.input_ids), torch.from_numpy(given.lengths)
            yield MicroBatch(
                features=target.run(ids, lengths),
                last=None,
                input_ids=ids,
                loss_mask=torch.from_numpy(given.loss_mask),
                lengths=lengths,
                sample_ids=np.asarray(samples, np.int64),
                epoch=0,
            )

    found = replica.evaluate(held_out())
    return Figures(accepted=found.expected_accepted_length, loss=found.loss)
