"""What a bigram would draft: the simplest drafter, for comparison with a trained one."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from dflash_run.data.corpus import Corpus

I64 = NDArray[np.int64]

NOTHING: Final = -1
"""Follows a token that was never seen with a supervised one after it."""


def bigram_successors(corpus: Corpus, train: I64) -> I64:
    """int64[V], V = corpus.largest_id + 1: the supervised token that follows each most often in the samples `train`.

    The lowest id where several do; NOTHING where none does.
    """
    size = corpus.largest_id + 1
    pairs = [np.zeros(0, np.int64)]
    for sample in train:
        ids, mask = corpus.input_ids(int(sample)).astype(np.int64), corpus.loss_mask(int(sample))
        pairs.append((ids[:-1] * size + ids[1:])[mask[1:]])
    seen, counts = np.unique(np.concatenate(pairs), return_counts=True)
    successors = np.full(size, NOTHING, np.int64)
    order = np.lexsort((-seen, counts))  # the most frequent is written last; of equals, the lowest
    successors[seen[order] // size] = seen[order] % size
    return successors


def bigram_accepted_length(corpus: Corpus, train: I64, held_out: I64, block_size: int) -> float:
    """Expected accepted length of a bigram of `train` over all anchors of `held_out`; 0 without anchors.

    As for a drafter while it trains: the mean over anchors a (a and a+1 supervised) of the number of leading slots
    k = 1 … block_size - 1 whose token is right; a slot beyond the sample or not supervised ends the run. The bonus
    token is not counted.
    """
    successors = bigram_successors(corpus, train)
    accepted = anchors = 0
    for sample in held_out:
        ids, mask = corpus.input_ids(int(sample)).astype(np.int64), corpus.loss_mask(int(sample))
        starts = np.flatnonzero(mask[:-1] & mask[1:])
        drafted, going = ids[starts], np.ones(len(starts), np.bool_)
        for slot in range(1, block_size):
            known = drafted >= 0
            drafted = np.where(known, successors[np.where(known, drafted, 0)], NOTHING)
            inside = starts + slot < len(ids)
            place = np.where(inside, starts + slot, 0)
            going &= inside & mask[place] & (ids[place] == drafted)
            accepted += int(going.sum())
        anchors += len(starts)
    return accepted / anchors if anchors else 0.0
