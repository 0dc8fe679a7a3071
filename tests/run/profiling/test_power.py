"""Reading what a GPU draws, from a driver that is played."""

import itertools
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from dflash_run.profiling import power  # noqa: E402
from dflash_run.profiling.power import PowerMeter  # noqa: E402


def play(monkeypatch: pytest.MonkeyPatch, usage: Any) -> list[int]:
    """A driver whose GPUs may draw 700 W and draw, in mW, what `usage` says; returns the numbers of GPUs asked for."""
    asked: list[int] = []

    def handle(number: int) -> int:
        asked.append(number)
        return number

    driver = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 8,
        nvmlDeviceGetName=lambda gpu: "of one kind",
        nvmlDeviceGetHandleByIndex=handle,
        nvmlDeviceGetEnforcedPowerLimit=lambda gpu: 700_000,
        nvmlDeviceGetPowerUsage=usage,
    )
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setattr(power, "_SETTLED_S", 0.0)
    monkeypatch.setattr(power, "_EVERY_S", 0.01)
    return asked


def test_limit_and_idle_draw_are_read_in_watts_from_the_gpu_that_this_process_sees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = play(monkeypatch, lambda gpu: 118_400)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,3")
    assert PowerMeter("cuda:1").room() == {"limit_watts": 700.0, "idle_watts": 118.4} and asked[-1] == 3


def test_of_a_gpu_that_the_driver_does_not_know_no_watts_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, lambda gpu: 118_400)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-of-another-host")
    assert PowerMeter("cuda:0").room() is None


def test_readings_are_collected_while_something_is_measured_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = itertools.count(200_000, 1_000)
    play(monkeypatch, lambda gpu: next(steps))
    with PowerMeter("cuda:0").watching() as readings:
        until = time.monotonic() + 5
        while len(readings) < 3 and time.monotonic() < until:
            time.sleep(0.01)
    count = len(readings)
    assert count >= 3 and readings[:2] == [200.0, 201.0]
    time.sleep(0.05)
    assert len(readings) == count


def test_what_was_drawn_before_is_in_no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's first numbers are means over a time that began before."""
    play(monkeypatch, lambda gpu: 350_000 if time.monotonic() < begin + 0.1 else 180_000)
    monkeypatch.setattr(power, "_SETTLED_S", 0.12)
    begin = time.monotonic()
    with PowerMeter("cuda:0").watching() as readings:
        until = time.monotonic() + 5
        while not readings and time.monotonic() < until:
            time.sleep(0.01)
    assert set(readings) == {180.0}
    with PowerMeter("cuda:0").watching() as readings:
        time.sleep(0.02)
    assert readings == []


def broken(gpu: int) -> int:
    raise RuntimeError("GPU is lost")


@pytest.mark.parametrize("name", ["host", "cpu", "cuda:0"])
def test_where_nothing_can_be_read_nothing_is_told(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    play(monkeypatch, broken)
    meter = PowerMeter(name)
    with meter.watching() as readings:
        time.sleep(0.05)
    assert readings == [] and meter.room() is None


def test_without_the_library_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    meter = PowerMeter("cuda:0")
    assert meter.room() is None
    with meter.watching() as readings:
        assert readings == []
