"""The attention rule: dense, sparse, and against its wording."""

import warnings

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from dflash_run.model.attention import attend
from dflash_run.model.compiled import compiled
from dflash_run.model.mask import mask_mod, masks_for
from tests.run.model.tiny import SLIDING


def _case(seed: int) -> tuple[torch.Tensor, torch.Tensor | None, int]:
    draw = torch.Generator().manual_seed(seed)
    context = int(torch.randint(5, 60, (), generator=draw))
    anchors = torch.randint(0, context, (2, 1 + seed % 5), generator=draw).sort(1).values
    documents = (torch.rand(2, context, generator=draw) < 0.2).cumsum(1) * 3 % 7 if seed % 2 else None
    return anchors, documents, context


@pytest.mark.parametrize("seed", range(6))
def test_the_dense_mask_says_what_the_rule_says(seed: int) -> None:
    anchors, documents, context = _case(seed)
    dense = masks_for(SLIDING, anchors, context, documents, sparse=False)
    size, window = SLIDING.block_size, SLIDING.sliding_window or 0
    for b in range(2):
        for q in range(anchors.shape[1] * size):
            anchor, place = int(anchors[b, q // size]), int(anchors[b, q // size]) + q % size
            for kv in range(context + anchors.shape[1] * size):
                if kv < context:
                    full = kv < anchor and (documents is None or bool(documents[b, kv] == documents[b, anchor]))
                    near = full and place - kv < window
                else:
                    full = near = (kv - context) // size == q // size
                assert dense["full_attention"][b, 0, q, kv] == full
                assert dense["sliding_attention"][b, 0, q, kv] == near


@pytest.mark.parametrize("seed", range(4))
def test_the_sparse_mask_and_the_dense_mask_attend_alike(seed: int) -> None:
    anchors, documents, context = _case(seed)
    queries = anchors.shape[1] * SLIDING.block_size
    draw = torch.Generator().manual_seed(seed)
    q = torch.randn(2, 4, queries, 16, generator=draw)
    k, v = (torch.randn(2, 2, context + queries, 16, generator=draw) for _ in range(2))
    dense = masks_for(SLIDING, anchors, context, documents, sparse=False)
    sparse = masks_for(SLIDING, anchors, context, documents, sparse=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # flex is slow where it is not compiled, and says so
        for kind, mask in sparse.items():
            assert isinstance(mask, BlockMask)
            torch.testing.assert_close(
                attend(q, k, v, mask), attend(q, k, v, dense[kind]), rtol=0, atol=1e-6
            )


def test_a_block_without_context_sees_itself_only() -> None:
    rule = mask_mod(torch.zeros(1, 2, dtype=torch.int64), 4, 2)
    seen = [[bool(rule(*map(torch.tensor, (0, 0, q, kv)))) for kv in range(8)] for q in range(4)]
    own = [[False] * 4 + [True, True, False, False]] * 2 + [[False] * 6 + [True, True]] * 2
    assert seen == own


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # tracing brings up warnings of torch's own code
def test_the_compiled_mask_is_the_same_for_shapes_that_change() -> None:
    for seed in (0, 2, 4):
        anchors, documents, context = _case(seed)
        queries = anchors.shape[1] * 4
        rule = mask_mod(anchors, context, 4, documents=documents, window=7)
        ours = compiled(create_block_mask)(rule, 2, None, queries, context + queries, device="cpu", BLOCK_SIZE=16)
        theirs = create_block_mask(rule, 2, None, queries, context + queries, device="cpu", BLOCK_SIZE=16)
        assert torch.equal(ours.to_dense(), theirs.to_dense())
