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
