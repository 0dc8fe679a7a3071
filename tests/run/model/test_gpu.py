"""On a GPU: the sparse compiled path against the dense one, in float32 and bfloat16."""

from dataclasses import replace

import pytest
import torch

from dflash_run.model.attention import attend
from dflash_run.model.mask import masks_for
from dflash_run.model.shape import DrafterShape
from dflash_run.training.arrivals import Arrivals
from dflash_run.training.messages import TrainOn
from dflash_run.training.objective import Figure
from dflash_run.training.replica import Replica
from dflash_run.transport.parcel import Parcel, Slot
from dflash_run.transport.staging import Mapped, states, write_head
from tests.run.model.tiny import SLIDING, batch, target, training

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),  # compiling brings up warnings of torch's own code
]

SHAPE = replace(SLIDING, head_dim=64, block_size=16, sliding_window=40)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 2e-3), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("context", [100, 333])
def test_compiled_sparse_attention_equals_dense_attention(dtype: torch.dtype, atol: float, context: int) -> None:
    draw = torch.Generator(device="cuda").manual_seed(0)
    anchors = torch.randint(0, context, (2, 24), generator=draw, device="cuda").sort(1).values
    documents = (torch.rand(2, context, generator=draw, device="cuda") < 0.05).cumsum(1)
    queries = 24 * SHAPE.block_size
    dense = masks_for(SHAPE, anchors, context, documents, sparse=False)
    sparse = masks_for(SHAPE, anchors, context, documents, sparse=True)
    for kind in dense:
        results = []
        for mask in (dense[kind], sparse[kind]):
            inputs = [
                torch.randn(2, heads, length, 64, generator=draw.manual_seed(1), device="cuda").to(dtype)
                for heads, length in ((4, queries), (2, context + queries), (2, context + queries))
            ]
            for each in inputs:
                each.requires_grad_()
            out = attend(*inputs, mask)
            out.square().sum().backward()
            results.append([out, *(each.grad for each in inputs)])
        for ours, theirs in zip(*results, strict=True):
            assert ours is not None and theirs is not None
            scale = float(theirs.detach().abs().max())
            torch.testing.assert_close(ours / scale, theirs / scale, rtol=0, atol=atol)


def _replica(shape: DrafterShape, device: str, **changes: object) -> Replica:
    embed, head = (tensor.to(device) for tensor in target(shape))
    return Replica(shape, training=training(**changes), embed=embed, head=head, seed=3)


@pytest.mark.parametrize("loss", ["ce", "soft"])
@pytest.mark.parametrize("weights", ["decay", "dpace"])
@pytest.mark.parametrize(("dtype", "rel"), [("float32", 5e-3), ("bfloat16", 5e-2)])
def test_a_step_on_the_gpu_equals_the_step_on_the_host(loss: str, weights: str, dtype: str, rel: float) -> None:
    device = _replica(SHAPE, "cuda", loss=loss, weights=weights, anchors=20, dtype=dtype)
    host = _replica(SHAPE, "cpu", loss=loss, weights=weights, anchors=20)
    for lengths in ([90, 70], [130, 40, 77]):  # shapes that differ must not disturb the compiled path
        each = batch(lengths, documents=True, shape=SHAPE)
        device.micro_batch(each)
        host.micro_batch(each)
    ours, theirs = (one.flat[: -len(Figure)].cpu() for one in (device, host))
    assert float((ours - theirs).norm() / theirs.norm()) < rel
    report, expected = device.apply(0.3), host.apply(0.3)
    assert report.loss == pytest.approx(expected.loss, rel=rel)
    assert report.grad_norm == pytest.approx(expected.grad_norm, rel=rel)
    assert (report.anchors, report.tokens, report.applied) == (expected.anchors, expected.tokens, True)


def test_an_empty_step_on_the_gpu_moves_nothing() -> None:
    one = _replica(SHAPE, "cuda", weight_decay=0.1)
    one.micro_batch(batch([90], shape=SHAPE))
    one.apply(0.2)
    before = [tensor.clone() for tensor in one.state()]
    one.micro_batch(batch([90], shape=SHAPE, supervised=0.0))
    assert not one.apply(0.3).applied
    assert all(torch.equal(ours, old) for ours, old in zip(one.state(), before, strict=True))


class _Here(Mapped):
    """One slot on this process's own GPU."""

    def foreign(self, slot: Slot, handle: tuple[object, ...]) -> torch.Tensor:
        return self.own(slot)


def test_a_batch_that_arrives_in_memory_just_let_go_of_is_not_overwritten() -> None:
    device, nbytes = torch.device("cuda"), 64 << 20
    mapped, slot = _Here(nbytes, device), Slot(0, 0, "")
    parcel = Parcel(7, slot, (2, 512, 1024), "bfloat16", None, ())
    source = states(mapped.own(slot), parcel.shape, parcel.dtype)
    source.copy_(torch.randn(parcel.shape, device=device))
    write_head(mapped.own(slot), parcel)
    torch.cuda.synchronize()
    arrivals = Arrivals(mapped, nbytes, 1, verify=False)
    let_go = torch.empty(nbytes, dtype=torch.uint8, device=device)
    address = let_go.data_ptr()
    torch.cuda._sleep(500_000_000)  # a quarter of a second of the training's own work, which ends with a write
    let_go.fill_(255)
    del let_go
    arrivals.order(TrainOn(0, parcel, 0, (0, 1), 0))
    assert arrivals.copying[0].buffer.data_ptr() == address, "the allocator gave other memory: the test says nothing"
    arrivals.copying[0].copied.wait()
    torch.cuda.synchronize()
    arrived = arrivals.arrived()
    assert arrived is not None and torch.equal(arrived.states, source)
