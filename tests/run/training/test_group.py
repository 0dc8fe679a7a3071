"""The drafters' group: what becomes of a collective when a peer does not come, or goes."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from dflash_run.training import group  # noqa: E402
from dflash_run.training.group import DrafterGroup  # noqa: E402


def test_a_group_that_did_not_form_breaks_at_its_first_collective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is it passed over, as that of a drafter that is alone."""
    monkeypatch.setattr(group, "_JOIN_S", 0.2)
    made = DrafterGroup(0, torch.device("cpu"))
    with pytest.raises(RuntimeError):
        made.join((0, 1), str(tmp_path / "store"))
    with pytest.raises(RuntimeError, match="did not form"):
        made.all_reduce(torch.zeros(3))
    made.leave()
    assert made.all_reduce(torch.zeros(3)).done()


class Slow:
    """A collective that is complete after so many looks at it; then the tensor is there."""

    def __init__(self, tensor: torch.Tensor, looks: float) -> None:
        self._tensor = tensor
        self._looks = looks

    def is_completed(self) -> bool:
        self._looks -= 1
        if self._looks <= 0:
            self._tensor.fill_(7)
        return self._looks <= 0

    def wait(self) -> None: ...


class Enqueued:
    """`torch.distributed` as NCCL makes it: what is asked for has not happened when the call returns."""

    def __init__(self, looks: float) -> None:
        self._looks = looks
        self.formed = False

    def init_process_group(self, *given: object, **named: object) -> None:
        self.formed = True

    def FileStore(self, *given: object) -> None: ...  # noqa: N802

    def is_initialized(self) -> bool:
        return self.formed

    def destroy_process_group(self) -> None:
        self.formed = False

    def all_reduce(self, tensor: torch.Tensor, async_op: bool = False) -> Slow:
        return Slow(tensor, self._looks)

    def broadcast(self, tensor: torch.Tensor, src: int, async_op: bool = False) -> Slow:
        return Slow(tensor, self._looks)


def grouped(monkeypatch: pytest.MonkeyPatch, dist: Enqueued) -> DrafterGroup:
    monkeypatch.setattr(group, "dist", dist)
    monkeypatch.setattr(group, "_JOIN_S", 0.05)
    return DrafterGroup(0, torch.device("cpu"))


def test_a_peer_that_goes_while_a_group_forms_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    dist = Enqueued(looks=float("inf"))
    made = grouped(monkeypatch, dist)
    with pytest.raises(RuntimeError, match="did not connect within 0.05 s"):
        made.join((0, 1), "store")
    assert not dist.formed


def test_weights_have_arrived_when_they_count_as_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    made = grouped(monkeypatch, Enqueued(looks=3))
    made.join((0, 1), "store")
    weights = [torch.zeros(4), torch.zeros(2, 3).t()]
    made.copy_from(1, weights)
    assert all(bool((each == 7).all()) for each in weights)


def test_weights_of_a_source_that_goes_are_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    dist = Enqueued(looks=3)
    made = grouped(monkeypatch, dist)
    made.join((0, 1), "store")
    dist._looks = float("inf")
    with pytest.raises(RuntimeError, match="weights did not arrive"):
        made.copy_from(1, [torch.zeros(4)])
    assert not dist.formed
