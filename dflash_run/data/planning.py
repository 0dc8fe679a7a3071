"""The batch plan of a training: which samples of the corpus form which batch, and what is held out."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dflash_run.data.corpus import Corpus, Padded
from dflash_run.data.faults import refused
from policies.batches import Arrangement, BatchPlan, BatchPlanError, batches_from_lengths
from policies.sections.data import Data

I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TrainingPlan:
    """All batches of a training; a pure function of (data section, corpus, seed)."""

    batches: BatchPlan
    """Its `sample_ids` count the training samples; `samples_of` below gives the corpus's."""
    train: I64
    """int64: corpus ids of the samples trained on, rising."""
    held_out: I64
    """int64: corpus ids of the samples kept for evaluation, rising."""

    def samples_of(self, batch: int) -> I64:
        """Corpus ids of a batch's samples, int64."""
        return self.train[self.batches.samples_of(batch)]

    def batch(self, corpus: Corpus, batch: int) -> Padded:
        """A batch's samples, padded."""
        return corpus.pad(self.samples_of(batch))


def plan_for_training(data: Data, corpus: Corpus, seed: int) -> TrainingPlan:
    """Plan the batches over the training share of `corpus` (`data.held_out` is kept back).

    Raises PipelineError where the plan would be too large.
    """
    train, held_out = corpus.split(data.held_out, seed)
    arrangement = Arrangement(buckets=data.buckets, order=data.order, epochs=data.epochs, seed=seed)
    samples, max_tokens = data.batch.samples, data.batch.max_tokens
    try:
        plan = batches_from_lengths(corpus.lengths[train], arrangement, samples=samples, max_tokens=max_tokens)
    except BatchPlanError as error:
        key = "data.path" if error.key.startswith("data.lengths") else error.key
        raise refused(key, error.value, error.rule, error.remedy) from None
    return TrainingPlan(plan, train, held_out)
