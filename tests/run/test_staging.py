"""Slots as the workers see them, without a GPU: what is opened, and what is kept."""

import weakref

import pytest

torch = pytest.importorskip("torch")

from dflash_run.transport.parcel import Slot  # noqa: E402
from dflash_run.transport.staging import Mapped  # noqa: E402


def test_a_slot_of_a_target_that_was_replaced_is_opened_anew_and_its_predecessors_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[int] = []

    def opening(handle: int) -> torch.UntypedStorage:
        opened.append(handle)
        return torch.full((64,), handle, dtype=torch.uint8).untyped_storage()

    monkeypatch.setattr(torch.UntypedStorage, "_new_shared_cuda", staticmethod(opening), raising=False)
    mapped, slot = Mapped(64, torch.device("cpu")), Slot(0, 0)
    first = weakref.ref(mapped.foreign(slot, (1,)))
    assert int(mapped.foreign(slot, (1,))[0]) == 1
    mapped.close(host_only=True)
    assert int(mapped.foreign(slot, (2,))[0]) == 2
    assert opened == [1, 2] and first() is None
    mapped.forget(0)
    assert int(mapped.foreign(slot, (2,))[0]) == 2 and opened == [1, 2, 2]
