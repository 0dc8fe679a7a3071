"""Chunked losses against whole logits; the slots' weights by hand."""

import math

import pytest
import torch

from dflash_run.model.losses import slot_losses
from dflash_run.model.weights import decay_weights, default_gamma, dpace_weights


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("rows", [1, 4, 100, None])
def test_chunked_losses_and_gradients_equal_those_of_whole_logits(soft: bool, rows: int | None) -> None:
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(11, 8, generator=draw, requires_grad=True)
    head, last = torch.randn(30, 8, generator=draw), torch.randn(11, 8, generator=draw)
    labels, weights = torch.randint(30, (11,), generator=draw), torch.rand(11, generator=draw)
    ours = slot_losses(hidden, head, labels, last if soft else None, rows=rows)
    (ours.loss * weights).sum().backward()
    assert hidden.grad is not None
    found, hidden.grad = hidden.grad, None
    logits = hidden @ head.T
    wanted = (last @ head.T).softmax(-1) if soft else labels
    whole = torch.nn.functional.cross_entropy(logits, wanted, reduction="none")
    (whole * weights).sum().backward()
    torch.testing.assert_close(ours.loss, whole)
    torch.testing.assert_close(found, hidden.grad)
    torch.testing.assert_close(ours.entropy, torch.nn.functional.cross_entropy(logits, labels, reduction="none"))
    assert torch.equal(ours.correct, logits.argmax(-1) == labels) and not ours.entropy.requires_grad


def test_no_slots_give_no_losses_and_no_gradient() -> None:
    hidden = torch.zeros(0, 8, requires_grad=True)
    ours = slot_losses(hidden, torch.randn(30, 8), torch.zeros(0, dtype=torch.int64))
    ours.loss.sum().backward()
    assert hidden.grad is not None and hidden.grad.shape == (0, 8)


def test_a_whole_vocabulary_of_logits_never_exists_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = 0
    matmul = torch.Tensor.__matmul__

    def watched(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        nonlocal largest
        result = matmul(a, b)
        largest = max(largest, result.numel())
        return result

    monkeypatch.setattr(torch.Tensor, "__matmul__", watched)
    hidden = torch.randn(64, 4, requires_grad=True)
    slot_losses(hidden, torch.randn(50, 4), torch.zeros(64, dtype=torch.int64), rows=8).loss.sum().backward()
    assert largest == 8 * 50


def test_decay_weights_of_a_block_are_those_worked_out_by_hand() -> None:
    weights = decay_weights(4, 2.0)
    torch.testing.assert_close(weights, torch.tensor([0.0, 1.0, math.exp(-0.5), math.exp(-1.0)]))
    assert [default_gamma(size) for size in (4, 8, 9, 10, 13, 16, 32)] == [2, 4, 4.5, 5, 6, 7, 14]
    torch.testing.assert_close(decay_weights(16, None)[8], torch.tensor(math.exp(-1.0)))


def test_dpace_weights_of_a_block_are_those_worked_out_by_hand() -> None:
    # Probabilities 0.6, (masked), 0.2 with alpha 0.5: q = 0.8, 1, 0.6; C = 0.8, 0.8, 0.48.
    entropy = torch.tensor([[0.0, -math.log(0.6), 5.0, -math.log(0.2)]])
    counts = torch.tensor([[False, True, False, True]])
    torch.testing.assert_close(dpace_weights(entropy, counts, 0.5), torch.tensor([[0.0, 1.28, 0.0, 0.48]]))
    every = dpace_weights(torch.zeros(1, 4), torch.tensor([[False, True, True, True]]), 0.5)
    torch.testing.assert_close(every, torch.tensor([[0.0, 3.0, 2.0, 1.0]]))
