"""The attention rule: dense, sparse, and against its wording."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention.flex_attention import BlockMask, create_mask, flex_attention

import dflash_run.model.compiled as compiling
from dflash_run.model.attention import attend
from dflash_run.model.compiled import compiled
from dflash_run.model.mask import masks_for
from dflash_run.model.rule import mask_mod
from dflash_run.model.tiles import TILE, block_mask
from tests.run.model.tiny import SHAPE, SLIDING


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


@pytest.mark.parametrize("seed", range(12))
def test_tiles_that_are_skipped_hold_nothing_and_whole_tiles_hold_everything(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    size, context = (4, 8, 16, 6)[seed % 4], int(torch.randint(5, 900, (), generator=draw))
    anchors = torch.randint(0, context, (2, int(torch.randint(1, 60, (), generator=draw))), generator=draw)
    documents = (torch.rand(2, context, generator=draw) < 0.01).cumsum(1) if seed % 3 == 1 else None
    window = 150 if seed % 3 == 2 else None
    rule = mask_mod(anchors, context, size, documents=documents, window=window)
    ours = block_mask(rule, anchors, context, size, documents=documents is not None, window=window)
    queries = anchors.shape[1] * size
    keys = context + queries
    dense = create_mask(rule, 2, 1, queries, keys, device="cpu")[:, 0]
    rows, columns = -(-queries // TILE), -(-keys // TILE)
    part, whole = _tiles(ours.kv_num_blocks, ours.kv_indices), _tiles(ours.full_kv_num_blocks, ours.full_kv_indices)
    assert not (part & whole).any() and part.shape == (2, rows, columns)
    for row in range(rows):
        for column in range(columns):
            tile = dense[:, row * TILE : (row + 1) * TILE, column * TILE : (column + 1) * TILE].flatten(1)
            here, all_of_it = part[:, row, column], whole[:, row, column]
            assert (tile.any(1) <= (here | all_of_it)).all() and (all_of_it <= tile.all(1)).all()
    if documents is None and window is None:
        assert part.sum() + whole.sum() < part.numel() or rows == 1, "something is skipped"


def _tiles(counts: torch.Tensor | None, which: torch.Tensor | None) -> torch.Tensor:
    """bool [b, rows, columns] of what flex_attention is told."""
    assert counts is not None and which is not None
    named = torch.arange(which.shape[-1]) < counts[..., None]
    return torch.zeros(which.shape, dtype=torch.bool).scatter(-1, which.long(), named)[:, 0]


def test_attention_is_compiled_once_for_all_lengths_and_numbers_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variant that turns up late stops a drafter for seconds in the middle of its run."""
    counter = CompileCounterWithBackend("eager")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    torch._dynamo.reset()
    compiling._configure()
    flex = compiling._compiled.__wrapped__(flex_attention)
    draw = torch.Generator().manual_seed(0)
    for samples, context in [(2, 77), (3, 128), (8, 256), (2, 300)]:
        anchors = torch.randint(0, context, (samples, 64), generator=draw).sort(1).values
        mask = masks_for(SHAPE, anchors, context, None, sparse=True)["full_attention"]
        queries = 64 * SHAPE.block_size
        shapes = ((4, queries), (2, context + queries), (2, context + queries))
        flex(*(torch.randn(samples, *each, 16, generator=draw) for each in shapes), block_mask=mask, enable_gqa=True)
    assert counter.frame_count == 1


def test_every_thread_compiles_with_the_same_settings() -> None:
    """torch keeps them by thread: what the main thread sets, others do not have."""
    from torch._dynamo import config
    from torch.fx.experimental import _config as shapes

    def settings() -> tuple[object, ...]:
        compiled(flex_attention)
        return shapes.use_duck_shape, config.recompile_limit, config.error_on_nested_fx_trace

    with ThreadPoolExecutor(1) as other:
        assert other.submit(settings).result() == settings() == (False, 64, False)
