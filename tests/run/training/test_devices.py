"""Which GPUs a training's figures are of, from a driver that is played."""

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dflash_run.training import devices
from dflash_run.training.devices import DeviceSampler
from dflash_run.training.handles import handle_of

UUIDS = ("GPU-aa00", "GPU-ab11", "GPU-bb22", "GPU-bc33")


class Refused(Exception):
    """What the driver raises."""


def driver(names: tuple[str, ...] = ("H200",) * 4) -> Any:
    """Handles are UUIDs; GPU n is used n/10. A part of a GPU has memory only."""

    def by_uuid(uuid: str) -> str:
        if uuid in (*UUIDS, "MIG-part"):
            return uuid
        raise Refused(uuid)

    def used(handle: str) -> Any:
        if handle in UUIDS:
            return SimpleNamespace(gpu=10 * UUIDS.index(handle))
        raise Refused(handle)

    return SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 4,
        nvmlDeviceGetHandleByIndex=lambda number: UUIDS[number],
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetUUID=lambda handle: handle,
        nvmlDeviceGetName=lambda handle: names[UUIDS.index(handle)],
        nvmlDeviceGetUtilizationRates=used,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=5),
    )


@pytest.mark.parametrize(
    ("visible", "gpu", "handle"),
    [
        (None, 2, "GPU-bb22"),
        ("3,1", 0, "GPU-bc33"),
        (" 3, 1 ", 1, "GPU-ab11"),
        ("GPU-bb22,GPU-aa00", 0, "GPU-bb22"),
        ("GPU-bb22,GPU-aa00", 1, "GPU-aa00"),
        ("GPU-bb", 0, "GPU-bb22"),
        ("MIG-part", 0, "MIG-part"),
        ("GPU-a", 0, None),  # of two
        ("GPU-cc44,GPU-aa00", 0, None),
        ("MIG-other", 0, None),
        ("3", 1, None),
        ("9", 0, None),
        ("", 0, None),
        ("-1", 0, None),
        ("NoDevFiles", 0, None),
    ],
)
def test_the_gpu_is_the_one_that_the_environment_names_or_none(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, gpu: int, handle: str | None
) -> None:
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert handle_of(driver(), gpu) == handle


def test_numbers_among_gpus_of_several_kinds_mean_something_only_in_the_drivers_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mixed = driver(("T4", "H200", "H200", "T4"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,GPU-ab11")
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    assert handle_of(mixed, 0) is None and handle_of(mixed, 1) == "GPU-ab11"
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert handle_of(mixed, 0) == "GPU-aa00"


def sampled(monkeypatch: pytest.MonkeyPatch, folder: Path, visible: str, gpus: list[int]) -> list[dict[str, Any]]:
    """The first lines of a run on these GPUs."""
    monkeypatch.setitem(sys.modules, "pynvml", driver())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(devices, "_EVERY_S", 0.005)
    file, until = folder / "devices.jsonl", time.monotonic() + 5
    with DeviceSampler(folder, gpus, time.monotonic):
        while time.monotonic() < until and not (file.is_file() and "\n" in file.read_text()):
            time.sleep(0.005)
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_use_is_of_the_gpus_that_uuids_name_and_an_unknown_one_has_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = sampled(monkeypatch, tmp_path, "GPU-bc33,GPU-cc44,MIG-part", [0, 1, 2])
    found = {line.pop("device"): {name: line[name] for name in line if name != "time_s"} for line in lines}
    assert found == {"cuda:0": {"utilization": 0.3, "memory_bytes": 5}, "cuda:2": {"memory_bytes": 5}}


def test_where_no_gpu_is_known_the_file_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (line,) = sampled(monkeypatch, tmp_path, "GPU-cc44", [0])
    assert "cannot be told" in line["missing"]
