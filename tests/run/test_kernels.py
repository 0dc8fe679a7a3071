"""The products that are launched ahead are those that targets and drafters compute."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from dflash_run.model.losses import slot_losses  # noqa: E402
from dflash_run.model.target import TappedTarget  # noqa: E402
from dflash_run.partitions.kernels import (  # noqa: E402
    launch,
    product_of_head,
    products_of_drafter,
    products_of_target,
)
from dflash_run.synthetic import write_target  # noqa: E402
from dflash_run.training.replica import Replica  # noqa: E402
from policies.sections.training import Model  # noqa: E402
from tests.run.model.tiny import SHAPE, batch, target, training  # noqa: E402

CPU = torch.device("cpu")


class Products(TorchDispatchMode):
    """The sizes and strides of matrix products of which one dimension is so many rows."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._rows = rows
        self.seen: set[tuple[Any, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            sides = [tuple(each.shape) for each in args[-2:]]
            if any(self._rows in side for side in sides):
                turned = tuple(each.stride()[0] < each.stride()[1] for each in args[-2:])
                self.seen.add((*sides, turned, args[-1].dtype))
        return func(*args, **(kwargs or {}))


def test_all_products_of_a_target_over_a_batch_are_launched_ahead(tmp_path: Path) -> None:
    write_target(tmp_path / "target", "tiny")
    model = Model(name_or_path=str(tmp_path / "target"), random_weights=True, dtype="float32")
    one = TappedTarget(model, (1,))
    with Products(2 * 37) as real:
        one.run(torch.ones(2, 37, dtype=torch.int64), torch.tensor([37, 30]))
    with Products(2 * 37) as ahead:
        launch(products_of_target(model, 2), [10, 2 * 37, 2 * 37], CPU)
    assert real.seen and real.seen <= ahead.seen


def test_all_products_of_a_drafter_over_the_context_are_launched_ahead_with_their_gradients() -> None:
    embed, head = target(SHAPE)
    replica = Replica(SHAPE, training=training(), embed=embed, head=head, seed=3)
    rows = 2 * 41
    with Products(rows) as real:
        replica.micro_batch(batch([41, 33]))
    with Products(rows) as ahead:
        launch(products_of_drafter(SHAPE, torch.float32), [rows], CPU)
    assert len(real.seen) > 3 and real.seen <= ahead.seen


def test_the_products_of_a_head_are_launched_ahead_for_what_chunks_leave() -> None:
    _, head = target(SHAPE)
    hidden = torch.ones(2 * 10 + 7, SHAPE.hidden_size, requires_grad=True)
    with Products(7) as real:
        slot_losses(hidden, head, torch.zeros(len(hidden), dtype=torch.int64), rows=10).loss.sum().backward()
    with Products(7) as ahead:
        launch([product_of_head(SHAPE, torch.float32)], [7], CPU)
    assert real.seen and real.seen <= ahead.seen


def test_nothing_to_launch_is_no_mistake() -> None:
    launch(products_of_drafter(SHAPE, torch.float32), [], CPU)
