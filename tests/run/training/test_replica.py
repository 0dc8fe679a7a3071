"""A replica's sums and steps: against a naive loop, over several replicas, and at the edges."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dflash_run.model.shape import DrafterShape
from dflash_run.training.objective import Figure
from dflash_run.training.replica import OPTIMIZER, WEIGHTS, Replica
from policies.faults import PipelineError
from policies.sections.training import Training
from tests.run.model.tiny import SHAPE, SLIDING, batch, naive_sums, replica, target, training


def _same(a: Replica, b: Replica, rtol: float = 1e-5) -> None:
    for ours, theirs in zip(a.state(), b.state(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=1e-7)


@pytest.mark.parametrize("loss", ["ce", "soft"])
@pytest.mark.parametrize("weights", ["decay", "dpace"])
@pytest.mark.parametrize(("shape", "documents"), [(SHAPE, False), (SLIDING, True)])
def test_sums_and_gradients_equal_a_loop_over_blocks(
    loss: str, weights: str, shape: DrafterShape, documents: bool
) -> None:
    settings = training(loss=loss, weights=weights, anchors=4)
    one = replica(settings, shape)
    each = batch([17, 9, 13], documents=documents)
    one.micro_batch(each)
    ours = one.flat.clone()
    one.drop()
    total, weight, accepted, anchors = naive_sums(one.drafter, settings, each)
    total.backward()
    size = len(ours) - len(Figure)
    figures = ours[size:]
    assert figures[Figure.ANCHORS] == anchors > 6 and figures[Figure.ACCEPTED] == accepted
    torch.testing.assert_close(figures[Figure.LOSS], total.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(float(figures[Figure.WEIGHT]), weight, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours[:size], one.flat[:size], rtol=1e-4, atol=1e-5)


def test_replicas_with_summed_gradients_step_as_one_replica_with_all_batches() -> None:
    batches = [batch([11 + 3 * i, 20, 7], ids=[10 * i, 10 * i + 1, 10 * i + 2]) for i in range(4)]
    alone, pair = replica(), [replica(), replica()]
    for step in range(3):
        for index, each in enumerate(batches):
            alone.micro_batch(replace(each, epoch=step))
            pair[index % 2].micro_batch(replace(each, epoch=step))
        total = pair[0].flat + pair[1].flat
        for one in pair:
            one.flat.copy_(total)
        reports = [one.apply(step / 3) for one in (alone, *pair)]
        assert reports[0].loss == pytest.approx(reports[1].loss, rel=1e-5)
        assert reports[1].loss == reports[2].loss and reports[0].applied
    _same(pair[0], pair[1], rtol=0)
    torch.testing.assert_close(
        torch.cat([w.flatten() for w in alone.drafter.parameters()]),
        torch.cat([w.flatten() for w in pair[0].drafter.parameters()]),
        rtol=1e-5,
        atol=1e-6,
    )


def test_micro_batches_weigh_by_their_slots_and_not_each_the_same() -> None:
    short, long_ = batch([10], ids=[1], supervised=1.0), batch([90], ids=[2], supervised=1.0)
    settings = training(anchors=1000)
    apart = []
    for each in (short, long_):
        one = replica(settings)
        one.micro_batch(each)
        apart.append(one.apply(0.0))
    both = replica(settings)
    both.micro_batch(short)
    both.micro_batch(long_)
    report = both.apply(0.0)
    expected = sum(each.loss * each.weight for each in apart) / sum(each.weight for each in apart)
    assert report.loss == pytest.approx(expected, rel=1e-6)
    assert abs(report.loss - (apart[0].loss + apart[1].loss) / 2) > 0.01
    assert (report.anchors, report.tokens, report.samples) == (9 + 89, 100, 2)


def test_the_gradient_of_a_step_is_the_mean_over_slots_however_it_is_cut() -> None:
    settings = training(anchors=1000)
    together, apart = replica(settings), replica(settings)
    together.micro_batch(batch([10, 90], ids=[1, 2]))
    apart.micro_batch(batch([10], ids=[1]))
    apart.micro_batch(batch([90], ids=[2]))
    torch.testing.assert_close(together.flat, apart.flat, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("loss", ["ce", "soft"])
def test_a_micro_batch_that_is_cut_to_fit_memory_gives_the_same_gradient(loss: str) -> None:
    each = batch([40, 7, 33, 60, 12], documents=True)
    whole, cut = replica(training(loss=loss)), replica(training(loss=loss, pass_slots=2 * 5 * SHAPE.block_size))
    whole.micro_batch(each)
    cut.micro_batch(each)
    torch.testing.assert_close(whole.flat, cut.flat, rtol=1e-4, atol=1e-4)
    assert whole.evaluate([each]).loss == pytest.approx(cut.evaluate([each]).loss, rel=1e-5)


def test_a_step_without_weight_moves_nothing_and_makes_no_nan() -> None:
    one = replica(training(weight_decay=0.1))
    one.micro_batch(batch([20, 15]))
    one.apply(0.1)
    before = [tensor.clone() for tensor in one.state()]
    one.micro_batch(batch([20, 1], supervised=0.0))
    report = one.apply(0.2)
    for ours, old in zip(one.state(), before, strict=True):
        assert torch.equal(ours, old)
    assert (report.loss, report.expected_accepted_length, report.anchors, report.applied) == (0.0, 0.0, 0, False)
    assert report.grad_norm == 0.0 and not one.flat.any()
    assert (report.tokens, report.samples, report.samples_without_anchors) == (21, 2, 2)


def test_a_gradient_that_is_not_finite_moves_nothing_and_is_told() -> None:
    one = replica()
    before = [tensor.clone() for tensor in one.state()]
    one.micro_batch(batch([20]))
    one.flat[3] = float("nan")
    report = one.apply(0.5)
    assert not report.applied and report.grad_norm != report.grad_norm
    assert all(torch.equal(ours, old) for ours, old in zip(one.state(), before, strict=True))
    assert torch.equal(one.flat, torch.zeros_like(one.flat))


def test_a_step_is_clipped_decayed_and_scheduled_as_adamw_says() -> None:
    settings = training(clip=0.01, weight_decay=0.1, warmup=0.5, learning_rate=1e-2)
    one = replica(settings)
    weights = {name: tensor.detach().clone() for name, tensor in one.drafter.named_parameters()}
    one.micro_batch(batch([30, 20]))
    gradient = one.flat[: -len(Figure)] / one.flat[-len(Figure) + Figure.WEIGHT]
    report = one.apply(0.25)
    assert report.lr == pytest.approx(5e-3) and report.grad_norm == pytest.approx(float(gradient.norm()), rel=1e-5)
    start = 0
    for name, tensor in one.drafter.named_parameters():
        slope = gradient[start : start + tensor.numel()].view(tensor.shape) * (0.01 / gradient.norm())
        start += tensor.numel()
        decay = 1 - 5e-3 * 0.1 if tensor.dim() > 1 else 1.0
        expected = weights[name] * decay - 5e-3 * slope / (slope.abs() + 1e-8)
        torch.testing.assert_close(tensor.detach(), expected, rtol=1e-4, atol=1e-5)


def test_a_saved_replica_goes_on_exactly_as_the_one_that_was_not(tmp_path: Path) -> None:
    one, other = replica(), replica()
    for each in (batch([20, 30]), batch([12])):
        one.micro_batch(each)
        one.apply(0.3)
    one.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {WEIGHTS, OPTIMIZER}
    other.micro_batch(batch([9]))  # forgotten by loading
    other.load(tmp_path)
    for each in (one, other):
        each.micro_batch(batch([25], ids=[5]))
        each.apply(0.6)
    _same(one, other, rtol=0)


def test_a_checkpoint_of_another_drafter_is_refused_name_by_name(tmp_path: Path) -> None:
    replica(shape=replace(SHAPE, layers=1, taps=(1,), layer_types=())).save(tmp_path)
    one = replica()
    before = [tensor.clone() for tensor in one.state()]
    with pytest.raises(PipelineError) as refused:
        one.load(tmp_path)
    assert any("layers.1.mlp.up_proj.weight" in str(fault) for fault in refused.value.faults)
    assert any("fc.weight" in str(fault) for fault in refused.value.faults)
    assert all(torch.equal(ours, old) for ours, old in zip(one.state(), before, strict=True))


def test_a_laggard_that_copies_the_state_is_the_same_replica() -> None:
    ahead, laggard = replica(), replica(seed=50)
    ahead.micro_batch(batch([20, 30]))
    ahead.apply(0.3)
    for ours, theirs in zip(laggard.state(), ahead.state(), strict=True):
        ours.copy_(theirs)
    for one in (ahead, laggard):
        one.flat.zero_()
        one.flat[:-1] = torch.linspace(-1, 1, len(one.flat) - 1)
        one.flat[-len(Figure)] = 4.0
        one.apply(0.5)
    _same(ahead, laggard, rtol=0)


def test_evaluation_changes_nothing_and_always_asks_the_same() -> None:
    one = replica()
    before = [tensor.clone() for tensor in one.state()]
    held_out = [batch([20, 30, 1]), batch([9], ids=[8], supervised=0.0)]
    first = one.evaluate(held_out)
    second = one.evaluate([replace(each, epoch=4) for each in held_out])
    assert first == second and first.anchors == 10 and first.loss > 0
    assert all(torch.equal(ours, old) for ours, old in zip(one.state(), before, strict=True))
    assert not one.flat.any()
    assert one.evaluate([]).anchors == 0


@pytest.mark.parametrize(("loss", "weights"), [("ce", "decay"), ("soft", "dpace")])
def test_a_drafter_learns_a_tiny_batch_by_heart(loss: str, weights: str) -> None:
    one = replica(training(loss=loss, weights=weights, anchors=4, learning_rate=5e-3))
    each = batch([20, 14], supervised=1.0)
    if loss == "soft":  # a target that is sure of the data's tokens
        wanted = target()[1][each.input_ids.roll(-1, 1)]
        each = replace(each, last=wanted * (20 / wanted.norm(dim=-1, keepdim=True)))
    reports = []
    for step in range(60):
        one.micro_batch(each)
        reports.append(one.apply(step / 60))
    assert reports[-1].expected_accepted_length > 2.9 > 1.0 > reports[0].expected_accepted_length
    assert reports[-1].loss < 0.5 * reports[0].loss


def test_accepted_slots_end_at_the_first_wrong_one() -> None:
    settings = training(anchors=6, learning_rate=5e-3)
    one, each, seen = replica(settings), batch([20, 14], supervised=1.0), set()
    for step in range(24):
        one.micro_batch(each)
        if step % 4 == 3:
            with torch.no_grad():
                _, _, accepted, anchors = naive_sums(one.drafter, settings, each)
            report = one.apply(step / 24)
            assert report.expected_accepted_length == pytest.approx(accepted / anchors, rel=1e-6)
            seen.add(accepted)
        else:
            one.apply(step / 24)
    assert len(seen) > 3  # it got better step by step, with blocks half right on the way


def test_bfloat16_on_the_host_stays_near_float32() -> None:
    figures = []
    for dtype in ("float32", "bfloat16"):
        one = replica(Training(dtype=dtype, anchors=5))
        one.micro_batch(batch([20, 30]))
        assert all(tensor.dtype == torch.float32 for tensor in one.state())
        figures.append(one.apply(0.5))
    assert figures[0].loss == pytest.approx(figures[1].loss, rel=0.02)
    assert figures[0].grad_norm == pytest.approx(figures[1].grad_norm, rel=0.05)


def test_soft_losses_without_last_hidden_states_are_refused() -> None:
    one = replica(training(loss="soft"))
    with pytest.raises(ValueError, match="last hidden states"):
        one.micro_batch(replace(batch([20]), last=None))
