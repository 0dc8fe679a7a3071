"""Anchors and the blocks laid out at them."""

import numpy as np
import torch

from dflash_run.model.anchors import candidates, draw_anchors
from dflash_run.model.blocks import lay_out
from tests.run.model.tiny import batch


def _drawn(each, rows=slice(None), **changes):  # type: ignore[no-untyped-def]
    settings = {"seed": 5, "epoch": 0, "most": 6, **changes}
    return draw_anchors(
        each.loss_mask.numpy()[rows], each.lengths.numpy()[rows], each.sample_ids[rows], **settings
    )


def test_anchors_depend_on_seed_epoch_and_sample_but_not_on_the_batch() -> None:
    each = batch([40, 25, 60], ids=[3, 1, 8])
    together = _drawn(each)
    for row in range(3):
        alone = _drawn(each, slice(row, row + 1))
        assert np.array_equal(alone.positions[0], together.positions[row, : alone.counts[0]])
    cut = batch([25, 60], ids=[1, 8])  # other company, other order, other padding
    assert np.array_equal(_drawn(cut).positions, together.positions[1:])
    for other in ({"seed": 6}, {"epoch": 1}, {"epoch": -1}):
        assert not np.array_equal(_drawn(each, **other).positions, together.positions)
    same_text = batch([40, 40], ids=[3, 3])
    same_text.sample_ids[1] = 4
    assert not np.array_equal(*_drawn(same_text).positions)


def test_anchors_are_drawn_without_replacement_among_supervised_pairs() -> None:
    each = batch([40, 25, 60, 2, 1], supervised=0.5)
    drawn = _drawn(each)
    for row, (count, length) in enumerate(zip(drawn.counts, each.lengths, strict=True)):
        mask = each.loss_mask[row]
        allowed = {a for a in range(int(length) - 1) if mask[a] and mask[a + 1]}
        chosen = drawn.positions[row, :count].tolist()
        assert count == min(6, len(allowed)) and set(chosen) <= allowed and chosen == sorted(set(chosen))
    everything = _drawn(each, most=1000)
    assert everything.counts.tolist() == candidates(each.loss_mask.numpy(), each.lengths.numpy()).sum(1).tolist()


def test_every_candidate_is_drawn_about_as_often() -> None:
    mask, lengths = np.ones((1000, 11), dtype=np.bool_), np.full(1000, 11)
    drawn = draw_anchors(mask, lengths, np.arange(1000), seed=1, epoch=0, most=3)
    often = np.bincount(drawn.positions.ravel(), minlength=10)
    assert len(often) == 10 and np.all(np.abs(often - 300) < 5 * 300**0.5)


def test_a_sample_without_two_supervised_neighbours_has_no_anchor() -> None:
    mask = np.array([[1, 0, 1, 0, 1], [0, 0, 0, 0, 0], [1, 1, 0, 1, 1]], dtype=np.bool_)
    drawn = draw_anchors(mask, np.array([5, 5, 4]), np.arange(3), seed=0, epoch=0, most=9)
    assert drawn.counts.tolist() == [0, 0, 1] and drawn.positions[2].tolist() == [0]
    papers = np.array([[0] * 5, [0] * 5, [0, 1, 1, 1, 1]])
    apart = draw_anchors(mask, np.array([5, 5, 4]), np.arange(3), seed=0, epoch=0, most=9, documents=papers)
    assert apart.counts.tolist() == [0, 0, 0] and apart.positions.shape == (3, 0)


def test_slots_count_where_supervised_in_range_and_in_the_document() -> None:
    mask = torch.tensor([[1, 1, 1, 0, 1, 1, 1, 1]], dtype=torch.bool)
    ids = torch.arange(10, 18)[None]
    drawn = draw_anchors(mask.numpy(), np.array([7]), np.arange(1), seed=0, epoch=0, most=9)
    assert drawn.positions.tolist() == [[0, 1, 4, 5]]
    papers = torch.tensor([[0, 0, 0, 0, 0, 0, 1, 1]])
    asked = {}
    for name, documents in (("one", None), ("two", papers)):
        blocks = lay_out(
            ids, mask, torch.tensor([7]), drawn, block_size=4, mask_token_id=99, documents=documents, multiple=3
        )
        assert blocks.tokens.view(-1, 4).tolist()[:2] == [[10, 99, 99, 99], [11, 99, 99, 99]]
        assert blocks.positions.view(-1, 4)[2].tolist() == [4, 5, 6, 7] and blocks.anchors.shape == (1, 6)
        assert (blocks.teachers + 11).tolist() == blocks.labels.tolist()
        asked[name] = [divmod(slot, 4) for slot in blocks.slots.tolist()]
    assert asked["one"] == [(0, 1), (0, 2), (1, 1), (1, 3), (2, 1), (2, 2), (3, 1)]
    assert asked["two"] == [(0, 1), (0, 2), (1, 1), (1, 3), (2, 1)]
